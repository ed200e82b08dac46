// What adapters add to a product (lora/adapter.h), for ops::AdapterOps. Plain data, with shapes in
// the comments.
#pragma once

#include <array>
#include <cstdint>

#include "rudder/tensor/view.h"

namespace rudder::ops {

inline constexpr int32_t kMaxAdapterParts = 3;  // of a stacked product: q, k, v

// Of matrices on the device: a multiple of 16.
inline constexpr int32_t padded_rank(int32_t rank) {
  return (rank + 15) / 16 * 16;
}

// The adapters of one product, by row of the adapter table: of each row matrices for each part of
// the product, all of `rank`. An adapter of a smaller rank has zeros behind its own. The rows of
// the product that belong to part p end before part_end[p]. A scale of 0: the row's adapter leaves
// the part as it is, and its matrices are not read.
struct AdapterWeights {
  tensor::View a;       // [table rows, parts * rank, in] act
  tensor::View b;       // [table rows, out, rank] act
  tensor::View scales;  // [table rows, parts] f32
  int32_t num_parts = 0;
  int32_t rank = 0;
  std::array<int64_t, kMaxAdapterParts> part_end = {};

  bool empty() const { return num_parts == 0; }
  int64_t in() const { return a.shape[2]; }
  int64_t out() const { return b.shape[1]; }
  int64_t mid_width() const { return int64_t{num_parts} * rank; }
};

// out[t, o] += scale * sum over r of b[o, r] * m[t, r], with m[t, r] = sum over i of a[r, i] *
// x[t, i], of the table row of token t and the part that o belongs to; both sums and the product
// with the scale in fp32, added to `out` in fp32 and rounded once. A token whose row is below 0
// keeps the bits that it has. The order of sums depends on the shapes alone.
struct AddAdaptersArgs {
  tensor::View x;     // [T, in] act
  tensor::View rows;  // [T] i32: of the adapter table
  const AdapterWeights* weights = nullptr;
  tensor::View mid;  // scratch, f32: AdapterOps::mid_floats(T, mid_width) of them
  tensor::View out;  // [T, out] act, in place
};

}  // namespace rudder::ops
