// launch_recur() of a decay of each key channel.
#pragma once

#include "rudder/cuda/kernels/states/states.h"

namespace rudder::cuda {

cudaError_t launch_recur_by_channel(const RecurParams& params, int32_t columns,
                                    cudaStream_t stream);

}  // namespace rudder::cuda
