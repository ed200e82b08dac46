// What the kernels of attention patterns share: the rows that a token asks for, and the division of
// work over blocks. Included by patterns.cu and end_patterns.cu only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/patterns/patterns.h"

namespace rudder::cuda {

inline constexpr int kPatternThreads = 256;
inline constexpr int kPatternWarps = kPatternThreads / 32;
inline constexpr int kPatternChunk = 128;  // keys of a pair of sums
inline constexpr int kPatternWords = tap::kMaxPatternHeads / 32;

// Every chunk of a row of several chunks has a pair of sums of its own, at the place of the row in
// the ring: a row of n > 1 chunks is at least n times kPatternSumElements long.
static_assert(2 * ops::kPatternSumElements <= kPatternChunk);

__device__ inline int pattern_chunks(int keys) {
  return (keys + kPatternChunk - 1) / kPatternChunk;
}

// Heads below `head` that are asked for.
__device__ inline int heads_before(const ops::PatternEntry& entry, int head) {
  int count = 0;
#pragma unroll
  for (int w = 0; w < kPatternWords; ++w) {
    const int bits = min(max(head - w * 32, 0), 32);
    count += __popc(entry.heads[w] & (bits == 32 ? ~0u : (1u << bits) - 1));
  }
  return count;
}

// The sequence of a token: the last one that begins at or before it; -1 past the last.
__device__ inline int sequence_of(const PatternBatch& batch, int token) {
  if (batch.num_seqs == 0 || token >= batch.q_begin[batch.num_seqs]) return -1;
  int low = 0;
  int high = batch.num_seqs;  // q_begin[low] <= token < q_begin[high]
  while (high - low > 1) {
    const int mid = (low + high) / 2;
    (batch.q_begin[mid] <= token ? low : high) = mid;
  }
  return low;
}

// What is asked of a token and layer.
struct TokenPatterns {
  ops::PatternEntry entry;
  int seq = -1;  // -1: nothing

  __device__ TokenPatterns(const PatternBatch& batch, int token, int layer) {
    const int set = batch.capture_set[token];
    if (set < 0) return;
    entry = batch.entries[int64_t{set} * batch.num_layers + layer];
    if (entry.offset < 0) return;
    const int found = sequence_of(batch, token);
    if (found >= 0 && batch.kv_len[found] > 0) seq = found;
  }
  // Where the row of the nth head of those that are asked for, of this rank, begins in the ring.
  __device__ int64_t row(const PatternBatch& batch, int token, int n) const {
    return (int64_t{batch.capture_begin[token]} + entry.offset) * tap::kCaptureAlign +
           int64_t{entry.first_row + n} * entry.keys;
  }
};

// The row's pair of sums of chunk 0.
__device__ inline float2* pattern_sums(const PatternBatch& batch, int64_t row) {
  return batch.sums + row / ops::kPatternSumElements;
}

// The sum of the counts of this thread and those in front of it in the block. `warp_counts`
// [kPatternWarps] in shared memory is free again after the next __syncthreads().
__device__ inline int count_up_to(int count, int* warp_counts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, count, step);
    if (lane >= step) count += before;
  }
  if (lane == 31) warp_counts[warp] = count;
  __syncthreads();
  for (int w = 0; w < warp; ++w) count += warp_counts[w];
  return count;
}

// Item i of `num_items` has count(i) units of work. They lie on one line, item after item, that is
// cut in equal parts, one for each of the grid's workers; of this one's part calls work(i, begin,
// end), of units [begin, end) of an item. All threads of a block call it together; `worker` may
// differ from warp to warp if `work` has no barrier.
template <typename Count, typename Work>
__device__ void share_pattern_work(int num_items, int worker, int num_workers, Count&& count,
                                   Work&& work) {
  __shared__ int ends[kPatternThreads];  // of the units of each item of a tile
  __shared__ int warp_counts[kPatternWarps];
  for (int tile = 0; tile < num_items; tile += kPatternThreads) {
    const int own = tile + static_cast<int>(threadIdx.x);
    const int units = own < num_items ? count(own) : 0;
    if (__syncthreads_or(units) == 0) continue;
    ends[threadIdx.x] = count_up_to(units, warp_counts);
    __syncthreads();
    const int64_t total = ends[kPatternThreads - 1];
    int next = static_cast<int>(total * worker / num_workers);
    const int end = static_cast<int>(total * (worker + 1) / num_workers);
    // Tiles of few units go to other workers than the tile before.
    worker = static_cast<int>((worker + total) % num_workers);
    while (next < end) {
      int low = 0;
      int high = kPatternThreads - 1;  // the first item whose units end behind `next`
      while (low < high) {
        const int mid = (low + high) / 2;
        if (ends[mid] > next) {
          high = mid;
        } else {
          low = mid + 1;
        }
      }
      const int begin = low > 0 ? ends[low - 1] : 0;
      const int stop = min(end, ends[low]);
      work(tile + low, next - begin, stop - begin);
      next = stop;
    }
    __syncthreads();
  }
}

}  // namespace rudder::cuda
