// What adapters add to a product (lora/adapter.h), for ops::AdapterOps. Plain data, with shapes in
// the comments.
#pragma once

#include <array>
#include <cstdint>

#include "rudder/ops/adapter_batch.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

inline constexpr int32_t kMaxAdapterParts = 3;  // of a stacked product: q, k, v

// Of matrices on the device: a multiple of 16.
inline constexpr int32_t padded_rank(int32_t rank) {
  return (rank + 15) / 16 * 16;
}

// The adapters of one product, by row of the adapter table: of each row matrices for each part of
// the product, all of `rank`. An adapter of a smaller rank has zeros behind its own. The rows of
// the product that belong to part p end before part_end[p]. A scale of 0: the row's adapter adds
// nothing to the part, whatever its matrices. A part with gains (of DoRA) has 1 beside its
// scale, one without 0; then its gains and offsets are not read.
struct AdapterWeights {
  tensor::View a;        // [table rows, parts * rank, in] act
  tensor::View b;        // [table rows, out, rank] act
  tensor::View scales;   // [table rows, parts, 2] f32: the scale; 1 where it has gains
  tensor::View gains;    // [table rows, out] f32
  tensor::View offsets;  // [table rows, out] f32; empty: all are 0
  int32_t num_parts = 0;
  int32_t rank = 0;
  std::array<int64_t, kMaxAdapterParts> part_end = {};

  bool empty() const { return num_parts == 0; }
  int64_t num_rows() const { return a.shape[0]; }
  int64_t in() const { return a.shape[2]; }
  int64_t out() const { return b.shape[1]; }
  int64_t mid_width() const { return int64_t{num_parts} * rank; }
};

// Of the table row of token t, and the part that o belongs to, with
//   delta = scale * sum over r of b[o, r] * m[t, r],  m[t, r] = sum over i of a[r, i] * x[t, i]
//   out[t, o] = out[t, o] + delta, or with gains: gain[o] * (out[t, o] + delta) + offset[o].
// Both sums and what is made of them are fp32, rounded once to `out`. The order of sums depends on
// the shapes alone. A token whose row is below 0 keeps the bits that it has.
struct AdaptArgs {
  tensor::View x;  // [T, in] act
  AdapterBatch tokens;
  const AdapterWeights* weights = nullptr;
  tensor::View mid;  // scratch, f32: T * mid_width of them
  tensor::View out;  // [T, out] act, in place; shrink_adapters() does not read it
};

}  // namespace rudder::ops
