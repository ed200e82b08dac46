// qkv_prep for many tokens (row_stream.cuh): same bits as qkv_prep.h's kernels, which call it.
#pragma once

#include "rudder/cuda/kernels/qkv_prep.h"

namespace rudder::cuda {

// From so many tokens on it is faster.
extern int64_t kStreamedTokens;

// `lanes` of lanes_of_head(); 0: a head that has no runs, or rows that are not aligned.
bool streams(const QkvPrepParams& params, int lanes);
cudaError_t launch_streamed_qkv_prep(const QkvPrepParams& params, int lanes, cudaStream_t stream);

}  // namespace rudder::cuda
