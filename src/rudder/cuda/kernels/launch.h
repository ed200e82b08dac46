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

// Launches in clusters of `cluster` blocks along x; safe in a capture. lets_next_begin: the kernel
// asks for the division of a multiprocessor's memory that the product's kernel needs. With another
// one, which a small kernel gets by itself, a multiprocessor has room for no block of the product
// until all that run there have ended.
template <typename... Params, typename... Args>
cudaError_t launch_pdl_in_front(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem,
                                unsigned cluster, bool lets_next_begin, cudaStream_t stream,
                                const Args&... args) {
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = cluster;
    attributes[count].val.clusterDim.y = 1;
    attributes[count++].val.clusterDim.z = 1;
  }
  if (lets_next_begin) {
    attributes[count].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[count++].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
  return error != cudaSuccess ? error : cudaGetLastError();
}

template <typename... Params, typename... Args>
cudaError_t launch_pdl_cluster(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem,
                               unsigned cluster, cudaStream_t stream, const Args&... args) {
  return launch_pdl_in_front(kernel, grid, block, smem, cluster, false, stream, args...);
}

template <typename... Params, typename... Args>
cudaError_t launch_pdl(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem,
                       cudaStream_t stream, const Args&... args) {
  return launch_pdl_cluster(kernel, grid, block, smem, 1, stream, args...);
}

}  // namespace rudder::cuda

#endif  // __CUDACC__
