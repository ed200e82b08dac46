#include "rudder/sched/step_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace rudder::sched {
namespace {

using Law = std::function<double(const StepShape&)>;

StepShape shape(int64_t sequences, int64_t context, int64_t kv_len, int64_t q_len) {
  StepShape shape{.decode_tokens = sequences, .decode_keys = sequences * context};
  if (q_len > 0) shape.add_prompt(kv_len, q_len);
  return shape;
}

// About what a 7B model takes on a GPU, in microseconds; prompts run op by op.
double straight(const StepShape& s) {
  const auto tokens = static_cast<double>(s.decode_tokens + s.prompt_tokens);
  return 3000 + (s.prompt_tokens > 0 ? 1500 : 0) + 11 * tokens +
         0.02 * static_cast<double>(s.decode_keys) + 0.0008 * static_cast<double>(s.prompt_pairs);
}

// Weights are read in the time in which 300 tokens are multiplied.
double bent(const StepShape& s) {
  const auto tokens = static_cast<double>(s.decode_tokens + s.prompt_tokens);
  return straight(s) - 11 * std::min(tokens, 300.0);
}

class Feed {
 public:
  explicit Feed(Law law, double noise) : law_(std::move(law)), noise_(noise) {}

  void decodes(StepCost& cost, int steps) {
    for (int i = 0; i < steps; ++i) observe(cost, shape(below(256) + 1, below(2000), 0, 0));
  }
  void mixed(StepCost& cost, int steps, int most_tokens) {
    for (int i = 0; i < steps; ++i) {
      observe(cost, shape(below(256), below(2000), below(4000), below(most_tokens) + 1));
    }
  }
  void observe(StepCost& cost, const StepShape& s) {
    const double us = law_(s) * std::exp(noise_ * normal_(random_));
    cost.observe(s, static_cast<int64_t>(us));
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

 private:
  const Law law_;
  const double noise_;
  std::mt19937_64 random_{1};
  std::normal_distribution<double> normal_;
};

TEST(StepCostTest, LearnsALinearLaw) {
  Feed feed(straight, 0.02);
  StepCost cost;
  feed.decodes(cost, 100);
  feed.mixed(cost, 100, 2048);
  for (const int64_t q_len : {0, 16, 256, 1024, 2048}) {
    for (const int64_t kv_len : {0, 4000}) {
      const StepShape s = shape(128, 1000, kv_len, q_len);
      EXPECT_NEAR(cost.predict_us(s) / straight(s), 1.05, 0.12) << q_len << " " << kv_len;
    }
  }
}

TEST(StepCostTest, ABentLawIsHardlyUnderestimated) {
  Feed feed(bent, 0.02);
  StepCost cost;
  feed.decodes(cost, 100);
  feed.mixed(cost, 200, 2048);
  for (const int64_t q_len : {64, 256, 512, 1024, 2048}) {
    const StepShape s = shape(128, 1000, 0, q_len);
    EXPECT_GT(cost.predict_us(s) / bent(s), 0.9) << q_len;
    EXPECT_LT(cost.predict_us(s) / bent(s), 1.5) << q_len;
  }
}

TEST(StepCostTest, OutliersHardlyMoveIt) {
  Feed feed(straight, 0.02);
  StepCost cost;
  feed.decodes(cost, 100);
  feed.mixed(cost, 100, 2048);
  const StepShape s = shape(128, 1000, 500, 512);
  const double before = cost.predict_us(s);
  for (int i = 0; i < 5; ++i) {
    cost.observe(s, 200'000);  // a pause of the machine
    feed.decodes(cost, 20);
    feed.mixed(cost, 20, 2048);
  }
  EXPECT_NEAR(cost.predict_us(s) / before, 1, 0.3);
}

TEST(StepCostTest, FollowsADeviceThatSlowsDown) {
  StepCost cost;
  Feed fast(straight, 0.02);
  fast.decodes(cost, 100);
  fast.mixed(cost, 100, 2048);
  Feed slow([](const StepShape& s) { return 2 * straight(s); }, 0.02);
  slow.decodes(cost, 300);
  slow.mixed(cost, 300, 2048);
  const StepShape s = shape(128, 1000, 500, 512);
  EXPECT_NEAR(cost.predict_us(s) / (2 * straight(s)), 1.05, 0.12);
}

TEST(StepCostTest, AnHourOfDecodesForgetsNoPrompt) {
  Feed feed(straight, 0.02);
  StepCost cost;
  feed.mixed(cost, 100, 2048);
  feed.decodes(cost, 200'000);
  const StepShape s = shape(128, 1000, 500, 1024);
  EXPECT_NEAR(cost.predict_us(s) / straight(s), 1.05, 0.15);
}

// Before anything is known little is tried, then at most twice as much as was seen.
TEST(StepCostTest, GoesNoFurtherThanTwiceWhatWasSeen) {
  StepCost cost;
  EXPECT_EQ(cost.tokens_within({}, 0, 2048, 1e9), 32);
  int64_t seen = 32;
  for (int i = 0; i < 6; ++i) {
    cost.observe(shape(1, 10, 0, seen), 1000);
    EXPECT_EQ(cost.tokens_within({}, 0, 1 << 20, 1e9), 2 * seen);
    seen *= 2;
  }
  EXPECT_EQ(cost.tokens_within({}, 0, 100, 1e9), 100);
  // 100 tokens behind 10^5 others have twenty times the pairs of anything seen.
  EXPECT_LT(cost.tokens_within({}, 100'000, 100, 1e9), 60);
}

TEST(StepCostTest, TokensWithinIsTheLargestChunkThatFits) {
  Feed feed(straight, 0.01);
  StepCost cost;
  feed.decodes(cost, 100);
  feed.mixed(cost, 100, 2048);
  const StepShape decodes = shape(128, 1000, 0, 0);
  for (const double limit : {10'000.0, 15'000.0, 25'000.0}) {
    for (const int32_t kv_len : {0, 3000}) {
      const int32_t tokens = cost.tokens_within(decodes, kv_len, 4096, limit);
      ASSERT_GT(tokens, 0) << limit;
      StepShape with = decodes;
      with.add_prompt(kv_len, tokens);
      EXPECT_LE(cost.predict_us(with), limit);
      StepShape more = decodes;
      more.add_prompt(kv_len, tokens + 1);
      EXPECT_GT(cost.predict_us(more), limit);
    }
  }
  EXPECT_EQ(cost.tokens_within(decodes, 0, 4096, 5'000), 0);  // the decodes alone take longer
}

// Tiles fill the device up to 1,536 tokens of a step; 64 more take a sixth longer, and 192 more
// less than that.
TEST(StepCostTest, AStepEndsWhereTilesFillTheDevice) {
  const auto in_tiles = [](const StepShape& s) {
    const int64_t pieces = (s.decode_tokens + s.prompt_tokens + 63) / 64;
    const double us = 3000 + 64 * 13.2 * static_cast<double>(pieces);
    return us * (pieces == 25 || pieces == 26 ? 1.15 : 1);
  };
  Feed feed(in_tiles, 0.005);
  StepCost cost;
  feed.decodes(cost, 100);
  for (int i = 0; i < 40; ++i) {
    for (int64_t pieces = 10; pieces <= 32; ++pieces) {
      feed.observe(cost, shape(400, 200, 0, 64 * pieces - 400));
    }
  }
  const StepShape decodes = shape(400, 200, 0, 0);
  const auto total = [&](double limit_us) {
    return 400 + cost.tokens_within(decodes, 0, 4096, limit_us);
  };
  EXPECT_EQ(total(1.05 * (3000 + 13.2 * 1536)), 1536);
  // 1,728 fit where 1,664 would not.
  EXPECT_LT(1.04 * (3000 + 13.2 * 1728), 1.15 * (3000 + 13.2 * 1664));
  EXPECT_GE(total(1.04 * (3000 + 13.2 * 1728)), 1728);
}

TEST(StepCostTest, AnUnknownTimeTeachesNothing) {
  StepCost cost;
  cost.observe(shape(1, 10, 0, 1000), 0);
  EXPECT_EQ(cost.predict_us(shape(1, 10, 0, 1000)), 0);
  EXPECT_EQ(cost.tokens_within({}, 0, 2048, 1e9), 32);
}

}  // namespace
}  // namespace rudder::sched
