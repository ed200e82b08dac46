// The choice of experts (ops::RouteArgs), and the list of who chose which (expert_list.h). One
// kernel: a warp has a token; the block that is done last makes the list. It moves T * experts * 2
// bytes of logits and some words a pair, so launches are what it costs.
//
// Scores are in fp32; a token's bits depend on its own logits alone. What is no number is chosen as
// the largest, so that a choice always names different experts that there are. The order of pairs
// within an expert may differ between runs; no result depends on it.
//
// Reference: testing/reference_model.h, reference_route; cpu/experts.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/experts/expert_list.h"
#include "rudder/ops/router_kind.h"

namespace rudder::cuda {

inline constexpr int kMostExperts = 512;
inline constexpr int kMostChosen = 32;
inline constexpr int kMostGroups = 32;

struct RouteParams {
  const void* logits = nullptr;       // [tokens, experts] bf16; null: `chosen` is there, and listed
  const float* correction = nullptr;  // [experts], optional
  ops::RouterKind kind = ops::RouterKind::kSoftmaxThenTop;
  bool renormalises = false;
  float scale = 1.0f;
  const float* expert_scales = nullptr;  // [experts], optional
  int32_t groups = 1;
  int32_t kept_groups = 1;
  int64_t tokens = 0;
  int32_t experts = 0;
  int32_t k = 0;
  int32_t* chosen = nullptr;  // [tokens, k]
  float* weights = nullptr;   // [tokens, k]
  ExpertList list;
};

// Whether there is a kernel for so many experts and groups.
constexpr bool is_routable(const RouteParams& p) {
  return p.experts > 0 && p.experts <= kMostExperts && p.k > 0 && p.k <= kMostChosen &&
         p.groups > 0 && p.groups <= kMostGroups && p.experts % p.groups == 0 &&
         p.k <= p.experts / p.groups * p.kept_groups && p.list.run_pairs > 0;
}

cudaError_t launch_route(const RouteParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
