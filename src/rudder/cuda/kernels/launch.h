// How every kernel of this room is launched: as a programmatic dependent of the kernel before it on
// the stream, so that its blocks are in place when that one ends. Included by .cu files only; to a
// host compiler it is empty.
//
// The rule that makes this safe: a kernel calls dependency_wait() before it touches anything that
// an earlier kernel reads or writes, its own outputs included; weights that nothing writes may be
// loaded before. dependency_trigger() comes after the wait; it only lets the next kernel's blocks
// start on multiprocessors that have room. So code before the wait runs beside exactly one earlier
// kernel: all kernels in front of that one have ended, and their results may be read as well.
// Without the attribute both calls do nothing.
//
// Kernels right in front of a product may trigger before they wait (`lets_next_begin`), where the
// product's kernel fetches weights ahead: so it begins as soon as blocks of the product before it
// end. What follows such a kernel runs beside two earlier ones, and before its wait it reads what
// no kernel writes.
#pragma once

#ifdef __CUDACC__

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace rudder::cuda {

inline __device__ void dependency_wait() {
  cudaGridDependencySynchronize();
}
inline __device__ void dependency_trigger() {
  cudaTriggerProgrammaticLaunchCompletion();
}

// Launches in clusters of `cluster` blocks along x; safe in a capture.
template <typename... Params, typename... Args>
cudaError_t launch_pdl_cluster(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem,
                               unsigned cluster, cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
  return error != cudaSuccess ? error : cudaGetLastError();
}

template <typename... Params, typename... Args>
cudaError_t launch_pdl(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem,
                       cudaStream_t stream, const Args&... args) {
  return launch_pdl_cluster(kernel, grid, block, smem, 1, stream, args...);
}

}  // namespace rudder::cuda

#endif  // __CUDACC__
