// The experts of a token that is alone in its step, or of few: two launches from the router's
// logits to the sums, where the list and tiles of many tokens (expert_product.h) take four.
//
// What bounds it: W of a token's k experts once. For Qwen3-30B-A3B (128 experts of 2048 -> 2 * 768
// -> 2048, k = 8, e4m3) 25.2 MB of gate and up and 12.6 MB of down, 6.3 and 3.2 us at 4.0 TB/s. Of
// several tokens an expert that two of them chose is read twice, the second time mostly from L2.
//
// open: a block has 8 rows of gate and the 8 of up of one token's expert, all of their inputs, a
// quarter a warp; then the next tile of them, which it asks for before it adds up the one at hand.
// Every block makes the token's choice itself, from some hundred logits: a launch costs more. All
// blocks are on their multiprocessor from the start. close: a block has 16 outputs of a token, of
// all its experts; warps share the experts, and the inputs of one where there are fewer experts
// than warps. Of e4m3 it quantises the experts' rows itself, as ops::QuantiseArgs would; it adds up
// as combine_experts.h does. The expert that every token has runs along, where its W has their
// form: of open it is one more row of blocks, of close a warp has an eighth of its inputs beside an
// expert; its gate every block makes itself. Sums are those of an instruction of 32 (bf16: 16)
// inputs, in an order that the shape alone decides; not that of expert_product.h.
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

struct OpenWeight {
  ExpertForm form = ExpertForm::kBf16;  // any but kLow
  const void* weight = nullptr;         // as ExpertProductParams.weight
  const float* w_scale = nullptr;       // [experts * out] of e4m3
  const void* bias = nullptr;           // [experts * out] bf16, optional
  int64_t out = 0;                      // of an expert
  int64_t in = 0;
};

struct OpenExpertsParams {
  RouteParams route;   // of T tokens; without logits their choice is there
  OpenWeight product;  // rows of gate, then of up
  ops::Activation activation = ops::Activation::kSilu;
  const void* x = nullptr;         // [T, in] bf16, e4m3 of such a W
  const float* x_scale = nullptr;  // [T], of e4m3
  void* y = nullptr;               // [T * k, out / 2] bf16
  OpenWeight shared;               // of one expert, in the form of `product`; no weight: none
  ops::Activation shared_activation = ops::Activation::kSilu;
  void* shared_y = nullptr;  // [T, shared.out / 2] bf16
  int32_t num_sms = 132;
};

struct CloseExpertsParams {
  OpenWeight product;
  int32_t tokens = 0;  // T
  int32_t k = 0;
  const int32_t* chosen = nullptr;    // [T, k]
  const float* weights = nullptr;     // [T, k]
  const void* x = nullptr;            // [T * k, in] bf16
  const void* shared = nullptr;       // [T, out] bf16, optional; may be y
  const void* shared_gate = nullptr;  // [T] bf16, optional
  // In place of `shared`, the expert that makes it: its W, in the form of `product`, and x [T, in]
  // bf16; and in place of `shared_gate` a row of W and its x, [T, gate_in] bf16, optional.
  OpenWeight shared_weight;
  const void* shared_x = nullptr;
  const void* gate_weight = nullptr;
  const void* gate_x = nullptr;
  int64_t gate_in = 0;
  void* y = nullptr;  // [T, out] bf16
  int32_t num_sms = 132;
};

// Of more tokens tiles of pairs are faster.
constexpr int64_t kMostOpenTokens = 1;

// Rows of whole pieces of 16 bytes, of codes whole groups; whole tiles of rows.
constexpr bool open_takes(const OpenWeight& one) {
  if (one.form == ExpertForm::kLow || one.out % 16 != 0) return false;
  if (one.form == ExpertForm::kE2m1) return one.in % kCodeGroup == 0;
  return one.in % (one.form == ExpertForm::kE4m3 ? 16 : 8) == 0;
}
// Rows of a token in e4m3 that close has room for, in bytes: of its k experts and the shared one.
constexpr int64_t kMostQuantised = 40 << 10;
constexpr bool close_takes(const OpenWeight& one, int64_t k, int64_t shared_in) {
  return open_takes(one) &&
         (one.form != ExpertForm::kE4m3 || k * one.in + shared_in <= kMostQuantised);
}

cudaError_t launch_open_experts(const OpenExpertsParams& params, cudaStream_t stream);
cudaError_t launch_close_experts(const CloseExpertsParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
