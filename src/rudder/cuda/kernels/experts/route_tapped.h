// The choice of experts with taps (ops::RouteTappedArgs): what route.h does, of logits in fp32 that
// programs have changed, and captures of these and of what was chosen. A kernel of its own, so that
// a step without such taps runs route.h as before. It moves what route.h moves and the vectors of
// programs, experts * 4 bytes each.
//
// A warp has a token, whose row of logits lies in shared memory. Sums run over its lanes in one
// order, so a token's bits depend on its own row alone; one without a program has those of route.h.
// No dictionary reads or writes routers, so no op here is of features.
//
// Reference: testing/reference_taps.h; cpu/experts.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include "rudder/cuda/kernels/experts/route.h"
#include "rudder/cuda/kernels/taps/taps.h"

namespace rudder::cuda {

// Points that the kernel passes.
inline constexpr int kLogitsPoint = 0;  // router_logits: rows of f32
inline constexpr int kChosenPoint = 1;  // routed_experts: rows of i16, captured alone
inline constexpr int kRouterPoints = 2;

// `params` with logits.
cudaError_t launch_route_tapped(const RouteParams& params, const TapParams<kRouterPoints>& taps,
                                cudaStream_t stream);

}  // namespace rudder::cuda
