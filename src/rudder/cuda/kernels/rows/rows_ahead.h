// The row kernels for many rows (rows_ahead.cuh). They give the bits of rows.h's, which call them
// where they are faster.
#pragma once

#include "rudder/cuda/kernels/rows/rows.h"

namespace rudder::cuda {

bool goes_ahead(const ResidualNormParams& params);
cudaError_t launch_residual_norm_ahead(const ResidualNormParams& params, cudaStream_t stream);

bool goes_ahead(const QuantiseParams& params);
cudaError_t launch_quantise_ahead(const QuantiseParams& params, cudaStream_t stream);

// Into fp8.
bool goes_ahead(const GatedActParams& params);
cudaError_t launch_gated_act_ahead(const GatedActParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
