// What a kernel asks for on behalf of one behind it: weights that it needs nothing of itself come
// to L2 while it waits for something else. No kernel writes weights, so they may be asked for at
// any time. Included by .cu files only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rudder::cuda {

// Asks for the part-th of so many equal parts of `bytes` bytes at `data`, which is 16-byte aligned;
// by one thread.
__device__ __forceinline__ void prefetch_part(const void* data, int64_t bytes, int64_t part,
                                              int64_t parts) {
  const int64_t each = ((bytes + parts - 1) / parts + 15) / 16 * 16;
  const int64_t begin = part * each;
  const int64_t size = min(each, bytes / 16 * 16 - begin);
  if (size <= 0) return;
  const auto from = __cvta_generic_to_global(static_cast<const char*>(data) + begin);
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from),
               "r"(static_cast<uint32_t>(size))
               : "memory");
}

}  // namespace rudder::cuda
