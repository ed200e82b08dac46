// Floats in buckets by value, and the k-th largest of many by them. Pure functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace rudder::cpu {

// Floats by sign, exponent and three bits of mantissa, in ascending order of value: coarse enough
// for counters in the first-level cache, fine enough that a bucket holds few of a row's values.
inline constexpr size_t kNumBuckets = 4096;
inline size_t bucket_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t flip = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u;
  return (bits ^ flip) >> 20;
}

// The k-th largest of `values`, which are reordered; k in [1, values.size()].
inline float kth_largest(std::vector<float>& values, size_t k,
                         std::vector<uint32_t>& bucket_count) {
  if (values.size() > kNumBuckets) {
    bucket_count.assign(kNumBuckets, 0);
    for (const float x : values) ++bucket_count[bucket_of(x)];
    size_t bucket = kNumBuckets - 1;
    while (bucket_count[bucket] < k) k -= bucket_count[bucket--];
    std::erase_if(values, [bucket](float x) { return bucket_of(x) != bucket; });
  }
  const auto kth = values.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(values.begin(), kth, values.end(), std::greater<>());
  return *kth;
}

}  // namespace rudder::cpu
