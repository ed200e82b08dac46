// The k largest of a row of features, by a block: a radix select, eight bits of the values at a
// time. Included by .cu files only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

struct KeepLargestShared {
  unsigned counts[256];
  unsigned of_warp[32];
  unsigned digit;  // of the k-th largest, at the bits at hand; kNoDigit: there are fewer values
  unsigned above;  // values whose digit is larger
};
inline constexpr unsigned kNoDigit = 256;

// The digit that the `wanted`-th largest value has, by warp 0: a lane has eight digits.
__device__ inline void find_digit(unsigned wanted, KeepLargestShared& shared) {
  const unsigned lane = threadIdx.x;
  const unsigned largest = 255 - 8 * lane;
  unsigned own = 0;
  for (unsigned i = 0; i < 8; ++i) own += shared.counts[largest - i];
  unsigned above = own;  // and those of the lanes before
  for (unsigned step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(0xffffffffu, above, step);
    if (lane >= step) above += other;
  }
  if (lane == 31 && above < wanted) shared.digit = kNoDigit;
  above -= own;
  if (above >= wanted || above + own < wanted) return;
  unsigned digit = largest;
  while (above + shared.counts[digit] < wanted) above += shared.counts[digit--];
  shared.digit = digit;
  shared.above = above;
}

// Of values that equal `value`, those behind the first `wanted` become 0: each thread has some next
// to each other.
template <int kThreads>
__device__ void drop_equal(float* values, int count, unsigned value, unsigned wanted,
                           KeepLargestShared& shared) {
  const auto thread = static_cast<int>(threadIdx.x);
  const auto is_equal = [&](int i) { return __float_as_uint(__ldcg(values + i)) == value; };
  const int per_thread = (count + kThreads - 1) / kThreads;
  const int begin = min(thread * per_thread, count);
  const int end = min(begin + per_thread, count);
  unsigned equal = 0;
  for (int i = begin; i < end; ++i) equal += is_equal(i) ? 1 : 0;
  unsigned before = equal;  // and those of the threads before
  for (unsigned step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(0xffffffffu, before, step);
    if (threadIdx.x % 32 >= step) before += other;
  }
  if (threadIdx.x % 32 == 31) shared.of_warp[thread / 32] = before;
  __syncthreads();
  before -= equal;
  for (int w = 0; w < thread / 32; ++w) before += shared.of_warp[w];
  for (int i = begin; i < end; ++i) {
    if (is_equal(i) && before++ >= wanted) __stcg(values + i, 0.0f);
  }
}

// Of `values` [count], none of them negative, the k largest stay, of equal ones the first; the
// others become 0. They are read and written past L1. All threads of a block of kThreads make the
// same call; 0 < k < count.
template <int kThreads>
__device__ void keep_largest(float* values, int count, int k, KeepLargestShared& shared) {
  static_assert(kThreads >= 256 && kThreads % 32 == 0);
  const auto thread = static_cast<int>(threadIdx.x);
  const auto bits_at = [&](int i) { return __float_as_uint(__ldcg(values + i)); };
  unsigned prefix = 0;                     // of the k-th largest, the bits that are known
  auto wanted = static_cast<unsigned>(k);  // of the values that begin with it
  unsigned equal = 0;                      // those that do
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    if (thread < 256) shared.counts[thread] = 0;
    __syncthreads();
#pragma unroll 8
    for (int i = thread; i < count; i += kThreads) {
      const unsigned bits = bits_at(i);
      // Zeros need no place among the largest.
      const bool is_open = shift == 24 || bits >> (shift + 8) == prefix >> (shift + 8);
      if (bits != 0 && is_open) atomicAdd(&shared.counts[bits >> shift & 0xff], 1u);
    }
    __syncthreads();
    if (thread < 32) find_digit(wanted, shared);
    __syncthreads();
    if (shared.digit == kNoDigit) return;
    prefix |= shared.digit << shift;
    wanted -= shared.above;
    equal = shared.counts[shared.digit];
  }
#pragma unroll 8
  for (int i = thread; i < count; i += kThreads) {
    const unsigned bits = bits_at(i);
    if (bits != 0 && bits < prefix) __stcg(values + i, 0.0f);
  }
  if (equal > wanted) drop_equal<kThreads>(values, count, prefix, wanted, shared);
}

}  // namespace rudder::cuda
