#include "rudder/cuda/kernels/states/recur_by_channel.h"

#include "rudder/cuda/kernels/states/recur.cuh"

namespace rudder::cuda {

cudaError_t launch_recur_by_channel(const RecurParams& p, int32_t columns, cudaStream_t stream) {
  if (p.rule == ops::RecurRule::kDelta) return launch_recur_of<true, true>(p, columns, stream);
  return launch_recur_of<false, true>(p, columns, stream);
}

}  // namespace rudder::cuda
