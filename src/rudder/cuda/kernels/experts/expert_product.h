// Products of pairs with the weights of their experts: y[pair, :] = x[row of pair, :] . W_e^T,
// where e is the pair's expert; with an activation y = act(gate) * up of the two halves of that.
//
// What bounds it: up to about 100 pairs an expert, reading W of the experts that are hit once (out
// * in elements each); above, 2 * pairs * out * in operations of the tensor cores, and what blocks
// ask L2 for. For Qwen3-30B-A3B (in 2048, out 2 * 768; and back) one expert is 4.7 MB in fp8, 9.4
// in bf16: 37.7 MB a layer for one token, about 527 for 32 tokens, 604 when all 128 are hit.
//
// Grid: a block on each multiprocessor, for tiles of a run of pairs (expert_list.h) by some rows of
// W in turn; how many tiles there are it reads on the device. The copy engine brings 128 bytes of
// each row of W at a time, a warp's cp.async those of x, which lie anywhere. Warpgroups multiply 64
// pairs each, as x . W^T: so a row's sum is taken in the same order in whatever tile it lies. Of
// fp8 tensor cores add 512 columns at a time, and fp32 what they give (products/ring_product.h). Of
// codes of 4 bits (expert_codes.h) warpgroups make rows of bf16 in shared memory: 4.25 bits a
// number are read, 13.5 MB of an expert of gpt-oss (in 2880, out 2 * 2880; and back), which four of
// them take 12.3 us of at 4.4 TB/s, and sums have the bits of products in bf16. What bounds it
// beside memory are the two instructions on whole numbers that a number takes, 64 a clock and
// multiprocessor: 3.9 TB/s of codes.
//
// Reference: testing/reference_ops.h, reference_linear.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/experts/expert_codes.h"
#include "rudder/cuda/kernels/experts/expert_list.h"
#include "rudder/cuda/kernels/experts/expert_shape.h"
#include "rudder/cuda/kernels/products/low_bits.h"
#include "rudder/ops/activation.h"

namespace rudder::cuda {

// Of W; x has bf16 but for kE4m3.
enum class ExpertForm : uint8_t { kBf16, kE4m3, kE2m1, kLow };

struct ExpertProductParams {
  // [experts * out, in] bf16 or e4m3, or as expert_codes.h has it, or LowBits of each expert
  // (products/low_bits.h); 16-byte aligned.
  const void* weight = nullptr;
  const float* w_scale = nullptr;  // [experts * out] of e4m3; of LowBits, as its rows lie
  const void* bias = nullptr;      // [experts * out] bf16, optional
  const void* x = nullptr;         // [rows, in] bf16 or e4m3; 16-byte aligned
  const float* x_scale = nullptr;  // [rows] of e4m3
  int32_t pairs_each = 1;          // that read a row of x: row r is of pairs from r * pairs_each on
  int64_t experts = 0;
  int64_t out = 0;  // of an expert
  int64_t in = 0;
  ExpertForm form = ExpertForm::kBf16;
  bool is_gated = false;  // rows of W are those of gate, then of up; y has half as many columns
  ops::Activation activation = ops::Activation::kSilu;
  LowBits low;               // of kLow
  bool interleaves = false;  // of kLow: eight rows of W's first half, eight of its second, in turn
  // An element has the same bits whatever the number of pairs is, but for kLow, which always has.
  bool in_one_order = false;
  ExpertList list;
  int64_t most_runs = 0;  // of the list
  // The kernel in front of this one has not written the list: W is asked for before it ends.
  bool list_is_old = false;
  void* y = nullptr;  // [pairs, out or out / 2] bf16
};

// Of LowBits: eight rows of x lie in shared memory.
inline constexpr int64_t kMostLowIn = 13 << 10;

// Whether rows of so many elements are whole pieces of 16 bytes, and of codes whole blocks, which
// is what it takes.
constexpr bool expert_product_takes(ExpertForm form, int64_t in, int64_t out, bool is_gated) {
  if (form == ExpertForm::kLow) return in % 8 == 0 && in <= kMostLowIn && out % 16 == 0;
  if (form != ExpertForm::kE2m1) return in % (form == ExpertForm::kE4m3 ? 16 : 8) == 0;
  return in % kCodeGroup == 0 && out % (is_gated ? 2 * kCodeRows : kCodeRows) == 0;
}

cudaError_t launch_expert_product(const ExpertProductParams& params, int32_t num_sms,
                                  cudaStream_t stream);

}  // namespace rudder::cuda
