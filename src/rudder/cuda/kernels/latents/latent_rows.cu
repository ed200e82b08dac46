#include "rudder/cuda/kernels/latents/latent_rows.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

__global__ void __launch_bounds__(kLatentRowThreads)
    latent_rows_kernel(const __grid_constant__ LatentRowsParams p) {
  dependency_wait();
  dependency_trigger();
  keep_latent_row(p, blockIdx.x);
  turn_latent_queries(p, blockIdx.x, 1, 0, p.num_heads);
}

}  // namespace

cudaError_t launch_latent_rows(const LatentRowsParams& params, cudaStream_t stream) {
  if (params.tokens <= 0) return cudaSuccess;
  if (!takes_latent_rows(params)) return cudaErrorInvalidValue;
  return launch_pdl(latent_rows_kernel, dim3(static_cast<unsigned>(params.tokens)),
                    dim3(kLatentRowThreads), 0, stream, params);
}

}  // namespace rudder::cuda
