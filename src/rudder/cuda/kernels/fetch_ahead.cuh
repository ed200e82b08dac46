// Device code of FetchAhead (fetch_ahead.h). Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/fetch_ahead.h"

namespace rudder::cuda {

// By all threads of all `blocks` blocks of the grid, of which this one is `block`. The lanes of a
// warp ask one behind the other, so pieces go to all warps in turn.
__device__ inline void fetch_ahead(const FetchAhead& fetch, unsigned block, unsigned blocks) {
  if (fetch.weight == nullptr || block < fetch.first_block) return;
  const unsigned warps = (blocks - fetch.first_block) * (blockDim.x / 32);
  const unsigned warp = (block - fetch.first_block) * (blockDim.x / 32) + threadIdx.x / 32;
  for (unsigned piece = threadIdx.x % 32 * warps + warp;
       piece < static_cast<unsigned>(fetch.pieces); piece += 32 * warps) {
    asm volatile(
        "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(fetch.weight + piece * fetch.stride),
        "r"(fetch.bytes));
  }
}

}  // namespace rudder::cuda
