// The numbers of tokens that products are measured for. All numbers of a bucket, from the one
// behind the bucket below it to its own, are multiplied by the kernel that was fastest for the
// largest. Powers of two to 128, four to an octave above: there products are bound by arithmetic,
// and a kernel whose tiles fill the multiprocessors' last round at 1,024 tokens leaves half of them
// idle at 640.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rudder::cuda {

// Largest number of tokens of a bucket, which is its name.
int64_t bucket_of(int64_t tokens);
// Smallest number of tokens of a bucket.
int64_t least_tokens(int64_t bucket);
// Buckets in ascending order have 0, 1, 2, ...
size_t bucket_index(int64_t bucket);

inline constexpr size_t kNumTokenBuckets = 72;  // up to 2^23 tokens

}  // namespace rudder::cuda
