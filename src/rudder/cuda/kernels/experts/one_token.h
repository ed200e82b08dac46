// The experts of a token that is alone in its step: two launches from the router's logits to the
// sum, where the list and tiles of many tokens (expert_product.h) take four.
//
// What bounds it: W of the k experts once. For Qwen3-30B-A3B (128 experts of 2048 -> 2 * 768 ->
// 2048, k = 8, e4m3) 25.2 MB of gate and up and 12.6 MB of down, 6.3 and 3.2 us at 4.0 TB/s.
//
// open: a block has 8 rows of gate and the 8 of up of one expert, all of their inputs, a quarter a
// warp. Every block makes the token's choice itself, from some hundred logits: a launch costs more.
// Blocks are few enough that all are on their multiprocessor from the start, so all of W is asked
// for at once. close: a block has 16 outputs, of all experts; a warp has every eighth expert. For
// e4m3 it quantises the expert's row itself, as ops::QuantiseArgs would, and adds up as
// combine_experts.h does. Sums are those of an instruction of 32 (bf16: 16) inputs, in an order
// that the shape alone decides; not that of expert_product.h.
//
// Reference: testing/reference_ops.h, reference_linear.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/experts/expert_codes.h"
#include "rudder/cuda/kernels/experts/expert_product.h"
#include "rudder/cuda/kernels/experts/route.h"
#include "rudder/ops/activation.h"

namespace rudder::cuda {

struct OneTokenWeight {
  ExpertForm form = ExpertForm::kBf16;  // any but kLow
  const void* weight = nullptr;         // as ExpertProductParams.weight
  const float* w_scale = nullptr;       // [experts * out] of e4m3
  const void* bias = nullptr;           // [experts * out] bf16, optional
  int64_t out = 0;                      // of an expert
  int64_t in = 0;

  constexpr int64_t expert_bytes() const {
    if (form == ExpertForm::kE2m1) return out * code_row_bytes(in);
    return out * in * (form == ExpertForm::kE4m3 ? 1 : 2);
  }
};

struct OpenExpertsParams {
  RouteParams route;       // of one token; without logits its choice is there
  OneTokenWeight product;  // rows of gate, then of up
  ops::Activation activation = ops::Activation::kSilu;
  const void* x = nullptr;         // [in] bf16, e4m3 of such a W
  const float* x_scale = nullptr;  // [1], of e4m3
  void* y = nullptr;               // [k, out / 2] bf16
  const void* next = nullptr;      // the W that multiplies y, optional
  int64_t next_expert_bytes = 0;   // of it
};

struct CloseExpertsParams {
  OneTokenWeight product;
  int32_t k = 0;
  const int32_t* chosen = nullptr;    // [k]
  const float* weights = nullptr;     // [k]
  const void* x = nullptr;            // [k, in] bf16
  const void* shared = nullptr;       // [out] bf16, optional; may be y
  const void* shared_gate = nullptr;  // [1] bf16, optional
  void* y = nullptr;                  // [out] bf16
};

// Rows of whole pieces of 16 bytes that a block has room for, of codes whole groups; whole tiles of
// rows.
constexpr int64_t kMostTokenInputs = 4096;
constexpr bool one_token_takes(const OneTokenWeight& one) {
  if (one.form == ExpertForm::kLow || one.in > kMostTokenInputs || one.out % 16 != 0) return false;
  if (one.form == ExpertForm::kE2m1) return one.in % kCodeGroup == 0;
  return one.in % (one.form == ExpertForm::kE4m3 ? 16 : 8) == 0;
}

cudaError_t launch_open_experts(const OpenExpertsParams& params, cudaStream_t stream);
cudaError_t launch_close_experts(const CloseExpertsParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
