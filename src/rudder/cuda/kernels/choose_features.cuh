// Which of a row's features are the k largest, by a block: a radix select, ten bits of the values
// at a time. Included by .cu files only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

// Of numbers that are not negative, as bits: those above `least` are kept, and the first `equal` of
// those that equal it. Zeros never are.
struct Kept {
  unsigned least = 0;
  unsigned equal = 0;
};

struct SelectShared {
  static constexpr int kBins = 2048;
  unsigned counts[kBins];
  unsigned of_warp[32];
  unsigned digit;  // of the k-th largest, at the bits at hand; kNoDigit: there are fewer values
  unsigned above;  // values whose digit is larger
};
inline constexpr unsigned kNoDigit = SelectShared::kBins;

// The digit that the `wanted`-th largest value has: a thread has some digits next to each other,
// the first thread the largest.
template <int kThreads>
__device__ void find_digit(unsigned wanted, int bins, SelectShared& shared) {
  constexpr int kOwn = SelectShared::kBins / kThreads;
  static_assert(kOwn * kThreads == SelectShared::kBins);
  const auto thread = static_cast<int>(threadIdx.x);
  const int largest = bins - 1 - thread * kOwn;  // below 0: the thread has none
  unsigned own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own += largest >= i ? shared.counts[largest - i] : 0;
  unsigned above = own;  // and those of the lanes before
  for (unsigned step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(0xffffffffu, above, step);
    if (threadIdx.x % 32 >= step) above += other;
  }
  if (thread % 32 == 31) shared.of_warp[thread / 32] = above;
  __syncthreads();
  above -= own;
  for (int w = 0; w < thread / 32; ++w) above += shared.of_warp[w];
  if (above >= wanted || above + own < wanted) return;
  int digit = largest;
  while (above + shared.counts[digit] < wanted) above += shared.counts[digit--];
  shared.digit = static_cast<unsigned>(digit);
  shared.above = above;
}

// The k largest of `count` values, k > 0; bits_at(i) are those of a value. All threads of a block
// of kThreads make the same call.
template <int kThreads, typename Bits>
__device__ Kept find_largest(const Bits& bits_at, int count, int k, SelectShared& shared) {
  const auto thread = static_cast<int>(threadIdx.x);
  Kept kept = {0, static_cast<unsigned>(k)};  // `least` grows by the bits that are known
  // The sign is 0: eleven bits, then twice ten.
  for (int shift = 20; shift >= 0; shift -= 10) {
    const int bins = shift == 20 ? SelectShared::kBins : SelectShared::kBins / 2;
    __syncthreads();
    for (int i = thread; i < bins; i += kThreads) shared.counts[i] = 0;
    if (thread == 0) shared.digit = kNoDigit;
    __syncthreads();
#pragma unroll 8
    for (int i = thread; i < count; i += kThreads) {
      const unsigned bits = bits_at(i);
      const bool is_open = shift == 20 || bits >> (shift + 10) == kept.least >> (shift + 10);
      if (bits != 0 && is_open) atomicAdd(&shared.counts[bits >> shift & (bins - 1)], 1u);
    }
    __syncthreads();
    find_digit<kThreads>(kept.equal, bins, shared);
    __syncthreads();
    if (shared.digit == kNoDigit) return {};
    kept.least |= shared.digit << shift;
    kept.equal -= shared.above;
  }
  return kept;
}

}  // namespace rudder::cuda
