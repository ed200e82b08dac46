// The experts of a token that is alone in its step: two launches from the router's logits to the
// sum, where the list and tiles of many tokens (expert_product.h) take four. Of two tokens and more
// those are faster.
//
// What bounds it: W of the k experts once. For Qwen3-30B-A3B (128 experts of 2048 -> 2 * 768 ->
// 2048, k = 8, e4m3) 25.2 MB of gate and up and 12.6 MB of down, 6.3 and 3.2 us at 4.0 TB/s. Of
// MXFP4 also the instructions that make numbers of codes.
//
// open: a block has 8 rows of gate and the 8 of up of an expert, all of their inputs, a quarter a
// warp; then the next tile of them, which it asks for before it adds up the one at hand. Every
// block makes the choice itself, from some hundred logits and as far as its own expert: a launch
// costs more. All blocks are on their multiprocessor from the start. close: a block has 16 outputs,
// of all experts; warps share the experts, and the inputs of one where there are fewer experts than
// warps. Of e4m3 a warp quantises its expert's row itself, as ops::QuantiseArgs would; the block
// adds up as combine_experts.h does. What it reads is all asked for before any of it is used. The
// expert that every token has runs along, where its W has their form: of open it is one more row of
// blocks, of close a warp has an eighth of its inputs beside an expert; its gate every block makes
// itself. Sums are those of an instruction of 32 (bf16: 16) inputs, in an order that the shape
// alone decides; not that of expert_product.h.
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
  RouteParams route;   // of one token; without logits its choice is there
  OpenWeight product;  // rows of gate, then of up
  ops::Activation activation = ops::Activation::kSilu;
  const void* x = nullptr;         // [in] bf16, e4m3 of such a W
  const float* x_scale = nullptr;  // [1], of e4m3
  void* y = nullptr;               // [k, out / 2] bf16
  OpenWeight shared;               // of one expert, in the form of `product`; no weight: none
  ops::Activation shared_activation = ops::Activation::kSilu;
  void* shared_y = nullptr;  // [shared.out / 2] bf16
  int32_t num_sms = 132;
};

struct CloseExpertsParams {
  OpenWeight product;
  int32_t k = 0;
  const int32_t* chosen = nullptr;    // [k]
  const float* weights = nullptr;     // [k]
  const void* x = nullptr;            // [k, in] bf16
  const void* shared = nullptr;       // [out] bf16, optional; may be y
  const void* shared_gate = nullptr;  // [1] bf16, optional
  // In place of `shared`, the expert that makes it: its W, in the form of `product`, and x [in]
  // bf16; and in place of `shared_gate` a row of W and its x, [gate_in] bf16, optional.
  OpenWeight shared_weight;
  const void* shared_x = nullptr;
  const void* gate_weight = nullptr;
  const void* gate_x = nullptr;
  int64_t gate_in = 0;
  void* y = nullptr;  // [out] bf16
  int32_t num_sms = 132;
};

// Rows of whole pieces of 16 bytes, of codes whole groups; whole tiles of rows.
constexpr bool open_takes(const OpenWeight& one) {
  if (one.form == ExpertForm::kLow || one.out % 16 != 0) return false;
  if (one.form == ExpertForm::kE2m1) return one.in % kCodeGroup == 0;
  return one.in % (one.form == ExpertForm::kE4m3 ? 16 : 8) == 0;
}
// A row of an expert and of the shared one in e4m3, for which each warp of close has room.
constexpr int64_t kMostQuantised = 5 << 10;
constexpr bool close_takes(const OpenWeight& one, int64_t shared_in) {
  return open_takes(one) && (one.form != ExpertForm::kE4m3 || one.in + shared_in <= kMostQuantised);
}

cudaError_t launch_open_experts(const OpenExpertsParams& params, cudaStream_t stream);
cudaError_t launch_close_experts(const CloseExpertsParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
