// Products of low-bit weights: y[T, out] = x[T, in] . W[out, in]^T with W as
// LowBits and x in bf16. What bounds it with few tokens is reading W once (out
// * in * (bits / 8 + 4 / group) bytes), with many the 2 * T * out * in
// operations in bf16. No number of W is written to global memory.
//
// Warpgroups turn codes into bf16 in registers, which are operand A of wgmma;
// tokens, which the copy engine brings, are operand B: so the tensor cores
// compute W . x^T. A warp brings codes, in blocks as they lie, which are on
// their way before the kernel in front has ended. Up to 8 tokens have a kernel
// of their own (low_gemv.h). Above, in groups of 128 with zeros, codes less
// their zero, which bf16 has, may be multiplied, and a chunk's sums scaled in
// f32 (kCodes). Up to 32 tokens, in groups of 32 and longer ones, codes may be
// multiplied above a constant that makes them bf16 by one instruction for two;
// each group's sum is scaled, and the group's sum of the token's inputs, which a
// warp adds up by tensor cores, takes the constant and the zero or minimum off
// (kShifted). With any number of tokens and any group numbers may be made in f32
// and rounded to bf16 once (kNumbers).
//
// The work is tiles of rows by tokens, of so many inputs each. Either a block
// has a tile, and then others; or all of them have as much of it each
// (`splits`): a range of chunks, of the tiles one after the other. Then the
// block with the first chunks of a tile adds the sums of the others to its own,
// in the order of the chunks. So a sum's order follows from the shape of W,
// LowShape and the number of tiles of tokens alone; without `splits`, from the
// shape of W and how codes are multiplied.
//
// Reference: testing/reference_ops.h, reference_linear.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/products/low_bits.h"

namespace rudder::cuda {

enum class LowWay : uint8_t { kNumbers, kCodes, kShifted, kWhole, kGemv };

struct LowProductParams {
  const void* weight = nullptr;       // blocks (low_bits.h)
  const float* row_factor = nullptr;  // [out]
  const void* x = nullptr;            // [tokens, in] bf16; 16-byte aligned
  const void* bias = nullptr;         // [out] bf16; optional
  void* y = nullptr;                  // [tokens, out] bf16 or f32
  LowBits form;
  int64_t out = 0;
  int64_t in = 0;
  int32_t tokens = 0;
  float softcap = 0.0f;  // 0 = off; else y = softcap * tanh(y / softcap)
  bool y_is_f32 = false;
  // Of the device, for products with splits; the flags are zero between
  // launches.
  const float* x_scale = nullptr;  // of kWhole; launch_low_product sets it
  // Of the device, for kWhole: tokens of 8 bits and their scales.
  void* room = nullptr;
  int64_t room_bytes = 0;
  float* parts = nullptr;     // low_parts_bytes()
  uint32_t* flags = nullptr;  // [low_num_flags()]
};

// How the work is cut up; none if tokens is 0.
struct LowShape {
  int32_t tokens = 0;  // of a tile: 8, 16, 32, 64, 128 or 256
  int32_t blocks = 1;  // of 64 rows, of a warpgroup: 1 or 2; of kGemv, of a cluster
  bool splits = false;
  LowWay way = LowWay::kNumbers;

  bool operator==(const LowShape& other) const {
    return tokens == other.tokens && blocks == other.blocks && splits == other.splits &&
           way == other.way;
  }
};
constexpr int32_t kMostCodeTokens = 32;

// Of the parts of a device of so many multiprocessors: each leaves one tile.
constexpr int64_t low_parts_bytes(int32_t num_sms) {
  return int64_t{num_sms} * 256 * 128 * static_cast<int64_t>(sizeof(float));
}

constexpr int64_t low_num_flags(int32_t num_sms) {
  return int64_t{num_sms} * 4;
}

// The n-th shape that the tokens of a bucket may be multiplied in, best guess
// first; tokens 0: there are no more.
LowShape low_shape(const LowBits& form, int64_t tokens, int n);

// Without splits, and numbers are made: a row of y has the same bits whatever
// `tokens` is.
LowShape low_shape_for_all(int64_t tokens);

// True when launch_low_product takes rows of this width.
constexpr bool low_product_takes(int64_t in) {
  return in % 8 == 0;
}

cudaError_t launch_low_product(const LowProductParams& product, const LowShape& shape,
                               int32_t num_sms, cudaStream_t stream);

}  // namespace rudder::cuda
