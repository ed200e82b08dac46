// RowTeam: the threads of a cluster of blocks that have one row in their registers, and their sums
// over it. Numbered through the cluster they are the threads that one block would have for the row
// (row_block.cuh), and a sum has the order of that block's: so a row's bits do not depend on the
// size of the cluster. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/rows/row_block.cuh"

namespace rudder::cuda {

class RowTeam {
 public:
  static constexpr unsigned kMaxBlocks = 8;

  // Two of each in turn: who writes one again has heard of the sum in between from every warp,
  // which has read it before it told.
  struct alignas(16) Shared {
    float of_warp[2][32];
    uint64_t told[2];
  };

  // `threads` that have runs of the row, whole warps, up to 1024; a cluster may have more, but no
  // more than 32 warps.
  __device__ RowTeam(Shared& shared, int threads)
      : shared_(shared),
        size_(cluster_size()),
        threads_(threads),
        thread_(static_cast<int>(cluster_rank() * blockDim.x + threadIdx.x)) {}

  // All threads call begin() before the first sum, and end() behind the last.
  __device__ void begin() const {
    if (size_ > 1 && threadIdx.x == 0) {
      for (uint64_t& barrier : shared_.told) barrier_init(shared_address(&barrier), 1);
      barrier_init_fence();
    }
    __syncthreads();
    if (size_ > 1) cluster_arrive();
  }
  __device__ void end() const {
    if (n_ == 0) join();
  }

  __device__ bool is_leader() const { return thread_ == 0; }
  // Where a run of the thread begins; `width` or more: it has none.
  __device__ int column(int run, int width) const {
    return thread_ < threads_ ? (run * threads_ + thread_) * kRun : width;
  }
  __device__ float sum(float v) {
    const float* const of_warp = tell(warp_sum(v));
    return warp_sum(is_warp() ? of_warp[threadIdx.x % 32] : 0.0f);
  }
  // Of values >= 0.
  __device__ float max(float v) {
    const float* const of_warp = tell(warp_max(v));
    return warp_max(is_warp() ? of_warp[threadIdx.x % 32] : 0.0f);
  }

 private:
  // Until then other blocks may not have begun.
  __device__ void join() const {
    if (size_ > 1) cluster_wait();
  }
  // Whether the thread's lane is the number of a warp that has runs.
  __device__ bool is_warp() const { return static_cast<int>(threadIdx.x % 32) < threads_ / 32; }

  // Each warp's number to all blocks; those of all warps, once they have told.
  __device__ const float* tell(float of_warp) {
    const unsigned lane = threadIdx.x % 32;
    if (n_ == 0) join();
    const unsigned n = n_++;
    float* const all = shared_.of_warp[n % 2];
    float* const mine = all + thread_ / 32;
    if (size_ == 1) {  // a launch without clusters has no st.async
      if (lane == 0) *mine = of_warp;
      __syncthreads();
      return all;
    }
    const uint32_t told = shared_address(&shared_.told[n % 2]);
    if (threadIdx.x == 0) barrier_expect(told, size_ * (blockDim.x / 32) * sizeof(float));
    if (lane < size_) {
      store_to_rank(shared_of_rank(shared_address(mine), lane), of_warp,
                    shared_of_rank(told, lane));
    }
    barrier_wait(told, n / 2 % 2);
    return all;
  }

  Shared& shared_;
  const unsigned size_;
  const int threads_;
  const int thread_;
  unsigned n_ = 0;
};

__device__ inline float sum_over_row(float v, RowTeam& team) {
  return team.sum(v);
}

}  // namespace rudder::cuda
