// Two warpgroups that have tiles of a product in turn: one multiplies while the other writes what
// it has multiplied. Or, with kInTurns false, warpgroups that have all tiles together. Included by
// .cu files only.
#pragma once

#include <cstdint>

#include "rudder/cuda/kernels/products/ring.cuh"

namespace rudder::cuda {

// kFirstBarrier and the one behind it are named barriers that nobody else uses.
template <bool kInTurns, int kFirstBarrier>
struct TileTurns {
  static constexpr int kCount = kInTurns ? 2 : 1;

  __device__ static uint32_t warpgroup() { return __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); }
  // Which of so many tiles is the warpgroup's.
  __device__ static int own() { return kInTurns ? static_cast<int>(warpgroup()) : 0; }

  // `at`: of the warpgroup, in a ring of `slots`; a tile has `chunks` of them.
  __device__ static void begin(RingWalk& at, int32_t chunks, int32_t slots) {
    if (own() == 0) return;
    let_begin(0);
    at.skip(chunks, slots);
  }
  // Until all chunks of the other's tile have been read: else one would wait for a phase of a slot
  // whose phase before has not begun.
  __device__ static void wait() {
    if constexpr (kInTurns) {
      asm volatile("bar.sync %0, 256;" ::"r"(kFirstBarrier + own()) : "memory");
    }
  }
  __device__ static void end(RingWalk& at, int32_t chunks, int32_t slots) {
    if constexpr (kInTurns) {
      let_begin(1 - own());
      at.skip(chunks, slots);
    }
  }

 private:
  __device__ static void let_begin(int other) {
    asm volatile("bar.arrive %0, 256;" ::"r"(kFirstBarrier + other) : "memory");
  }
};

}  // namespace rudder::cuda
