// Kernels that make LowBits of a weight while a model is loaded, and the gather
// of rows of one. What is between is a weight as plain rows on the device: a
// whole number of a byte for each input, and for each group an f32 scale and an
// f32 zero or minimum. Launched by low_weight.cpp and cuda_ops.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/products/low_bits.h"
#include "rudder/cuda/kernels/rows/rows.h"
#include "rudder/ops/code_table.h"

namespace rudder::cuda {

// A weight as plain rows, or a run of its rows.
struct PlainLowRows {
  int8_t* codes = nullptr;   // [rows, in]
  float* scales = nullptr;   // [rows, groups]
  float* offsets = nullptr;  // [rows, groups]: zeros, or minima
  int64_t rows = 0;
  int64_t in = 0;
  int32_t group = 0;  // inputs that share a scale
};

enum class LowOffset : uint8_t { kNone, kMinimum, kZero, kMiddle };

// Of a part as a file has it, whose tensors are on the device: codes, numbers
// of a table times `table_factor`, scales over it.
struct ReadLowPartParams {
  const void* codes = nullptr;  // [rows, in] i8, or [rows, in / 2] of two u4
  bool is_u4 = false;
  ops::CodeTable table = ops::CodeTable::kNone;
  const void* scales = nullptr;  // [blocks of rows, file groups]
  Element scale_element = Element::kF32;
  bool scales_are_e8m0 = false;
  int64_t file_group = 0;  // a multiple of to.group, or all of `in`
  int64_t block_rows = 1;
  LowOffset offset = LowOffset::kNone;
  const void* offsets = nullptr;  // of scale_element, or u8 zeros
  bool takes_zeros = true;        // into `to`: zeros, else minima
  PlainLowRows to;
};
cudaError_t launch_read_low_part(const ReadLowPartParams& params, cudaStream_t stream);

// Codes 0 to 15 around 8 of wide rows, to nearest: a group's scale is its
// largest magnitude over 7.5, as compressed-tensors rounds symmetric weights;
// with 8 bits codes -128 to 127 and 127.5.
struct RoundLowRowsParams {
  const void* from = nullptr;  // [to.rows, to.in]
  Element element = Element::kBf16;
  int32_t bits = 4;
  PlainLowRows to;
};
cudaError_t launch_round_low_rows(const RoundLowRowsParams& params, cudaStream_t stream);

// Plain rows as blocks. `row_factor` [rows]: the power of two at or below each
// row's largest scale.
struct PackLowBitsParams {
  PlainLowRows from;
  LowBits form;
  bool interleaves = false;  // eight of the first half of `from`, eight of the second, in turn
  void* to = nullptr;
  float* row_factor = nullptr;
};
cudaError_t launch_pack_low_bits(const PackLowBitsParams& params, cudaStream_t stream);

// out[t] = row ids[t] of the weight * scale. Numbers are rounded to bf16 first,
// as those of a bf16 table are.
struct EmbedLowBitsParams {
  const void* table = nullptr;
  const float* row_factor = nullptr;
  LowBits form;
  const int32_t* ids = nullptr;  // [rows]
  float scale = 1.0f;
  int64_t rows = 0;
  int64_t hidden = 0;
  void* out = nullptr;  // [rows, hidden] bf16
};
cudaError_t launch_embed_low_bits(const EmbedLowBitsParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
