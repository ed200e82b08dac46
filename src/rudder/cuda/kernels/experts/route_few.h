// Of few tokens the router's product and the choice behind it in one kernel: logits = x . W^T,
// rounded to bf16, then route.h. What bounds it is one launch instead of two, and reading W
// (experts * in elements, 0.5 MB for Qwen3-30B-A3B), which is asked for while the kernel in front
// still runs.
//
// Grid: one cluster of blocks; a warp has some experts' rows of W, a block all rows of x. The first
// block is sent all logits, chooses and makes the list. A token's bits depend on its own row alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/experts/route.h"

namespace rudder::cuda {

inline constexpr int64_t kFewRouted = 8;
inline constexpr int64_t kMostFewRoutedIn = 8192;

struct RouteFewParams {
  const void* x = nullptr;       // [tokens, in] bf16; 16-byte aligned
  const void* weight = nullptr;  // [experts, in] bf16; 16-byte aligned
  int64_t in = 0;                // a multiple of 8, up to kMostFewRoutedIn
  void* logits = nullptr;        // [tokens, experts] bf16, written
  RouteParams route;             // without logits
};

cudaError_t launch_route_few(const RouteFewParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
