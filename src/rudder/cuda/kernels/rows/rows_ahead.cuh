// What the kernels share that take many rows, as steps with prompts have them: a block has one row
// after the other, and while it works on one it has asked for the next, which comes to shared
// memory without registers. A thread reads back only what it asked for itself, so that this needs
// no barrier. A thread does the work of several of row_block.cuh's, which are called virtual here:
// sums have the order that they have there, so that a row has the same bits. Included by .cu files
// only.
#pragma once

#include <algorithm>

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {

inline constexpr int kAheadRuns = 4;  // of a thread
inline constexpr int kMaxAheadThreads = 1024;

// Where a thread's runs begin: run r of a warp's 32 threads lies behind run r - 1 of all of them.
__device__ inline int ahead_column() {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  return (warp * kAheadRuns * 32 + static_cast<int>(threadIdx.x) % 32) * kRun;
}
inline constexpr int kAheadStride = 32 * kRun;  // from run to run of a thread

// A thread's own pieces of 16 bytes in shared memory, and a number beside them: a row's scale,
// which as a load of its own the compiler would wait for at once.
template <int kCells>
class AheadCells {
 public:
  static size_t bytes(unsigned threads) { return (size_t{16} * kCells + sizeof(float)) * threads; }

  __device__ explicit AheadCells(uint4* shared)
      : own_(shared_address(shared + threadIdx.x / 32 * 32 * kCells + threadIdx.x % 32)),
        number_(shared_address(shared + blockDim.x * kCells) + threadIdx.x * 4) {}

  // Until wait() the cell holds nothing; zeros where nothing `exists`.
  __device__ void ask(int cell, const void* from, bool exists) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(own_ + cell * kStride),
                 "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
  }
  __device__ void ask_number(const float* from) const {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(number_), "l"(from) : "memory");
  }
  __device__ void wait() const { asm volatile("cp.async.wait_all;" ::: "memory"); }

  __device__ Packed take(int cell) const { return take_at(own_ + cell * kStride); }
  // What another lane of the warp asked for.
  __device__ Packed take_of(unsigned lane, int cell) const {
    return take_at(own_ + (lane - threadIdx.x % 32) * 16 + cell * kStride);
  }
  __device__ float take_number() const {
    float out;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(out) : "r"(number_) : "memory");
    return out;
  }

  // Floats take two cells.
  __device__ void keep(int cell, const Floats& floats) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(own_ + (cell + i) * kStride),
                   "f"(floats.v[4 * i]), "f"(floats.v[4 * i + 1]), "f"(floats.v[4 * i + 2]),
                   "f"(floats.v[4 * i + 3])
                   : "memory");
    }
  }
  __device__ Floats take_floats(int cell) const {
    Floats out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Packed bits = take(cell + i);
      memcpy(&out.v[4 * i], &bits, sizeof(bits));
    }
    return out;
  }

 private:
  static constexpr int kStride = 32 * 16;

  __device__ static Packed take_at(uint32_t address) {
    uint4 bits;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "r"(address)
                 : "memory");
    Packed out;
    memcpy(&out, &bits, sizeof(out));
    return out;
  }

  const uint32_t own_;
  const uint32_t number_;
};

// Sums and maxima over the threads of a block that has a row.
class AheadBlock {
 public:
  // Two in turn: who writes one again has passed the barrier in between, which all reach after they
  // have read it.
  struct Shared {
    float of_warp[2][32];
  };
  __device__ explicit AheadBlock(Shared& shared) : shared_(shared) {}

  // Over `count` virtual threads, whole warps, up to 1024; lane l of warp w has the lanes l of the
  // virtual warps w * kVirtual, w * kVirtual + 1, ... The order is block_sum()'s.
  template <int kVirtual>
  __device__ float sum(float (&x)[kVirtual], int count) {
    const unsigned lane = threadIdx.x % 32;
    int step = 16;
#pragma unroll
    for (int left = kVirtual / 2; left > 0; left /= 2) {
      // Half of the lanes go on with half of the sums.
      const bool is_upper = (lane & static_cast<unsigned>(step)) != 0;
#pragma unroll
      for (int j = 0; j < left; ++j) {
        const float kept = is_upper ? x[j + left] : x[j];
        const float given = is_upper ? x[j] : x[j + left];
        x[j] = kept + __shfl_xor_sync(0xffffffffu, given, step);
      }
      step /= 2;
    }
#pragma unroll
    for (int rest = 16 / kVirtual; rest > 0; rest /= 2) {
      x[0] += __shfl_xor_sync(0xffffffffu, x[0], rest);
    }
    float* const of_warp = shared_.of_warp[n_++ % 2];
    constexpr unsigned kLanes = 32 / kVirtual;
    if (lane % kLanes == 0) of_warp[threadIdx.x / 32 * kVirtual + lane / kLanes] = x[0];
    __syncthreads();
    return warp_sum(static_cast<int>(lane) < count / 32 ? of_warp[lane] : 0.0f);
  }
  // Of values >= 0.
  __device__ float max(float x) {
    // Floats that are not negative have the order of their bits.
    const unsigned lane = threadIdx.x % 32;
    const uint32_t own = __reduce_max_sync(0xffffffffu, __float_as_uint(x));
    float* const of_warp = shared_.of_warp[n_++ % 2];
    if (lane == 0) of_warp[threadIdx.x / 32] = __uint_as_float(own);
    __syncthreads();
    const uint32_t other = lane < blockDim.x / 32 ? __float_as_uint(of_warp[lane]) : 0u;
    return __uint_as_float(__reduce_max_sync(0xffffffffu, other));
  }

 private:
  Shared& shared_;
  unsigned n_ = 0;
};

// Of a block whose threads have kAheadRuns runs of a row each.
inline unsigned ahead_threads(int64_t width) {
  constexpr int64_t kOfWarp = int64_t{kRun} * kAheadRuns * 32;
  return static_cast<unsigned>((width + kOfWarp - 1) / kOfWarp * 32);
}
// Whether each of them has all.
inline bool is_whole_ahead(int64_t width) {
  return width % (int64_t{kRun} * kAheadRuns * 32) == 0;
}

// As many blocks as the device has at once: blocks that lie on one multiprocessor may differ by a
// row. A row may have several blocks, its parts.
inline dim3 ahead_grid(int64_t rows, unsigned parts, unsigned threads, int64_t threads_per_sm,
                       size_t shared_bytes) {
  constexpr int64_t kSms = 132;
  constexpr int64_t kBlocksPerSm = 32;
  constexpr int64_t kSharedPerSm = int64_t{227} * 1024;
  constexpr int64_t kSharedBeside = 2048;  // of a block, at most
  const int64_t per_sm = std::max(
      int64_t{1}, std::min({kBlocksPerSm, threads_per_sm / threads,
                            kSharedPerSm / (static_cast<int64_t>(shared_bytes) + kSharedBeside)}));
  const int64_t at_once = std::max(int64_t{1}, kSms * per_sm / parts);
  return dim3(static_cast<unsigned>(std::min(rows, at_once)), parts);
}

template <typename Params>
cudaError_t launch_ahead(void (*kernel)(Params), const Params& p, dim3 grid, unsigned threads,
                         size_t shared_bytes, bool lets_next_begin, cudaStream_t stream) {
  constexpr size_t kAlwaysAllowed = 46 * 1024;
  if (shared_bytes > kAlwaysAllowed) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return launch_pdl_in_front(kernel, grid, dim3(threads), shared_bytes, 1, lets_next_begin, stream,
                             p);
}

}  // namespace rudder::cuda
