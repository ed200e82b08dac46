// qkv_prep for many tokens (rows_ahead.cuh). It gives the bits of qkv_prep.h's kernels, whose
// launcher calls it where it is faster.
#pragma once

#include "rudder/cuda/kernels/qkv/qkv_prep.h"

namespace rudder::cuda {

// Of heads that are split into runs, `lanes` lanes of two each.
bool goes_ahead(const QkvPrepParams& params, int lanes);
cudaError_t launch_qkv_prep_ahead(const QkvPrepParams& params, int lanes, cudaStream_t stream);

}  // namespace rudder::cuda
