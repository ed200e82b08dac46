#include "rudder/engine/repetition.h"

#include <gtest/gtest.h>

#include <random>

namespace rudder::engine {
namespace {

// As the definition has it: some pattern of a length in range fills the tail so many times.
bool repeats(const std::vector<int32_t>& tokens, const RepetitionLimits& limits) {
  const auto size = static_cast<int64_t>(tokens.size());
  for (int64_t p = std::max(1, limits.min_pattern); p <= limits.max_pattern; ++p) {
    const int64_t tail = p * limits.min_count;
    if (tail > size) continue;
    bool same = true;
    for (int64_t i = size - tail + p; i < size; ++i) {
      same = same && tokens[static_cast<size_t>(i)] == tokens[static_cast<size_t>(i - p)];
    }
    if (same) return true;
  }
  return false;
}

TEST(RepetitionDetector, AgreesWithTheDefinitionOnEveryTail) {
  std::mt19937 random(7);
  int found = 0;
  for (int round = 0; round < 400; ++round) {
    RepetitionLimits limits;
    limits.max_pattern = 1 + static_cast<int32_t>(random() % 6);
    limits.min_pattern = static_cast<int32_t>(random() % static_cast<uint32_t>(limits.max_pattern));
    limits.min_count = 2 + static_cast<int32_t>(random() % 3);
    RepetitionDetector detector(limits);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 60; ++i) {
      tokens.push_back(static_cast<int32_t>(random() % 2));
      const bool expected = repeats(tokens, limits);
      ASSERT_EQ(detector.push(tokens.back()), expected) << "round " << round << ", token " << i;
      found += expected ? 1 : 0;
    }
  }
  EXPECT_GT(found, 1000);
}

TEST(RepetitionDetector, LooksForNothingUnlessAsked) {
  RepetitionDetector detector(RepetitionLimits{});
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(detector.push(1));
}

}  // namespace
}  // namespace rudder::engine
