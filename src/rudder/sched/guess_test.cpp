// Sequences whose drafts the executor guesses: tokens are those of plain decoding, and the proposer
// runs every token.
#include <gtest/gtest.h>

#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;

constexpr int32_t kMostGuessed = 4;

testing::FakeOptions guessing_fake(uint64_t seed, int32_t in_flight) {
  testing::FakeOptions fake;
  fake.seed = seed;
  fake.capacity.max_draft = kMostGuessed;
  fake.capacity.guesses = true;
  fake.capacity.block_size = 4;
  fake.capacity.num_blocks = 40;
  fake.capacity.max_in_flight = in_flight;
  return fake;
}

SchedSettings guessing_settings(int32_t in_flight, bool is_paced) {
  SchedSettings settings;
  settings.model_identity = "model";
  settings.max_in_flight = in_flight;
  settings.max_num_batched_tokens = 48;
  settings.pace_drafts = is_paced;
  return settings;
}

// The machine objects where its proposer has not run a token, or has no block.
TEST(GuessStress, TheTokensAreThoseOfPlainDecoding) {
  for (const int32_t depth : {1, 2, 3}) {
    for (const bool is_paced : {false, true}) {
      SchedLoop loop(guessing_fake(static_cast<uint64_t>(depth), depth),
                     guessing_settings(depth, is_paced));
      for (uint64_t id = 1; id <= 20; ++id) {
        NewSequence sequence = testing::test_sequence(
            id, testing::test_prompt(static_cast<int32_t>(id), 3), 4 * static_cast<int32_t>(id));
        sequence.sampling.stop_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
        sequence.sampling.min_tokens = static_cast<int32_t>(id) / 2;
        sequence.is_drafted = id % 7 != 0;
        if (id % 3 == 0) sequence.sampling.presence_penalty = 0.5f;
        loop.add(std::move(sequence));
      }
      ASSERT_EQ(loop.run(), "") << depth;
      const SchedStats stats = loop.scheduler().stats();
      EXPECT_GT(stats.preemptions, 0u);
      if (is_paced) continue;
      EXPECT_GT(stats.accepted_tokens, 100u);
      EXPECT_GT(stats.draft_tokens, stats.accepted_tokens + 40);
    }
  }
}

}  // namespace
}  // namespace rudder::sched
