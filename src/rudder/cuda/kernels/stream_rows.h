// The row kernels for many rows (row_stream.cuh): same bits as those of rows.h, which call them.
#pragma once

#include "rudder/cuda/kernels/rows.h"

namespace rudder::cuda {

// From so many rows on they are faster.
extern int64_t kStreamedRows;

bool streams(const ResidualNormParams& params);
cudaError_t launch_streamed_residual_norm(const ResidualNormParams& params, cudaStream_t stream);
bool streams(const QuantiseParams& params);
cudaError_t launch_streamed_quantise(const QuantiseParams& params, cudaStream_t stream);
// Into fp8.
bool streams(const GatedActParams& params, bool is_aligned);
cudaError_t launch_streamed_gated_act(const GatedActParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
