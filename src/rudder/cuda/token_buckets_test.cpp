#include "rudder/cuda/token_buckets.h"

#include <gtest/gtest.h>

#include <vector>

namespace rudder::cuda {
namespace {

TEST(TokenBuckets, ArePowersOfTwoAndThenQuartersOfOctaves) {
  std::vector<int64_t> buckets;
  for (int64_t bucket = 1; bucket <= 1024; bucket = bucket_of(bucket + 1)) {
    buckets.push_back(bucket);
  }
  EXPECT_EQ(buckets, (std::vector<int64_t>{1,   2,   4,   8,   16,  32,  64,  128, 160, 192,
                                           224, 256, 320, 384, 448, 512, 640, 768, 896, 1024}));
}

TEST(TokenBuckets, EveryNumberIsInTheBucketThatSaysSo) {
  size_t index = 0;
  int64_t below = 0;
  for (int64_t bucket = 1; bucket <= 1 << 23; bucket = bucket_of(bucket + 1)) {
    EXPECT_EQ(bucket_index(bucket), index++);
    EXPECT_EQ(least_tokens(bucket), below + 1);
    for (const int64_t tokens : {below + 1, (below + 1 + bucket) / 2, bucket}) {
      EXPECT_EQ(bucket_of(tokens), bucket) << tokens;
    }
    below = bucket;
  }
  EXPECT_EQ(index, kNumTokenBuckets);
}

}  // namespace
}  // namespace rudder::cuda
