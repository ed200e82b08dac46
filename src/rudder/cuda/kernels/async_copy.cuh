// Copies of 16 bytes from global to shared memory that threads do not wait for (cp.async). Included
// by .cu files only.
#pragma once

#include <cstdint>

namespace rudder::cuda {

// `bytes`: 16, or 0 for zeros, which reads nothing. Both addresses are multiples of 16.
__device__ inline void copy_async(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// Ends a group of the thread's copies, which may be empty.
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kLeft of the thread's last groups are on their way.
template <int kLeft>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace rudder::cuda
