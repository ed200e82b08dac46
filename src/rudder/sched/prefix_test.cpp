// Prefix sharing as the scheduler does it: what is found, what is waited for, what is never shared.
#include <gtest/gtest.h>

#include <algorithm>

#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;
using testing::test_prompt;
using testing::test_sequence;

testing::FakeOptions prefix_fake(int32_t num_blocks = 256) {
  testing::FakeOptions options;
  options.capacity.num_blocks = num_blocks;
  return options;
}

SchedSettings prefix_settings() {
  SchedSettings settings;
  settings.model_identity = "model";
  return settings;
}

TEST(PrefixTest, CachedTokensAroundABlockEdge) {
  // A cached prompt of 64 tokens; at least one token is computed again.
  const std::pair<int32_t, int32_t> cases[] = {{1, 0},   {15, 0},  {16, 0},  {17, 16},
                                               {32, 16}, {33, 32}, {64, 48}, {65, 64}};
  for (const auto& [len, cached] : cases) {
    SchedLoop loop(prefix_fake(), prefix_settings());
    loop.add(test_sequence(1, test_prompt(64, 1), 3));
    ASSERT_EQ(loop.run(), "");
    loop.add(test_sequence(2, test_prompt(len, 1), 3));
    ASSERT_EQ(loop.run(), "");
    EXPECT_EQ(loop.record(2).cached_tokens, cached) << len;
  }
}

TEST(PrefixTest, ASecondTurnFindsTheFirstOnesOutput) {
  SchedLoop loop(prefix_fake(), prefix_settings());
  loop.add(test_sequence(1, test_prompt(20, 1), 30));
  ASSERT_EQ(loop.run(), "");
  std::vector<int32_t> prompt = test_prompt(20, 1);
  const std::vector<int32_t>& output = loop.record(1).tokens;
  prompt.insert(prompt.end(), output.begin(), output.end());
  prompt.push_back(7);
  loop.add(test_sequence(2, prompt, 5));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(2).cached_tokens, 48);  // of 49 computed tokens
}

TEST(PrefixTest, ChoicesShareThePromptsFullBlocks) {
  constexpr int32_t kChoices = 8;
  constexpr int32_t kPrompt = 100;
  SchedLoop loop(prefix_fake(), prefix_settings());
  for (uint64_t id = 1; id <= kChoices; ++id) {
    loop.add(test_sequence(id, test_prompt(kPrompt, 1), 20));
  }
  // One step computes the prompt, the others wait for it and then compute 4 tokens each.
  ASSERT_TRUE(loop.launch());
  EXPECT_EQ(loop.plans()[0]->num_tokens(), kPrompt);
  ASSERT_TRUE(loop.launch());
  EXPECT_EQ(loop.plans()[1]->num_tokens(), 1);
  loop.collect();
  ASSERT_TRUE(loop.launch());
  EXPECT_EQ(loop.plans()[2]->num_tokens(), 1 + (kChoices - 1) * (kPrompt % 16));
  EXPECT_EQ(loop.scheduler().stats().blocks_in_use, kPrompt / 16 + kChoices);
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(1).cached_tokens, 0);
  for (uint64_t id = 2; id <= kChoices; ++id) EXPECT_EQ(loop.record(id).cached_tokens, 96);
  const uint64_t outputs = kChoices * 19;  // the last token of each is never computed
  EXPECT_EQ(loop.executor().computed_tokens(), kPrompt + (kChoices - 1) * 4 + outputs);
}

TEST(PrefixTest, WaitersFollowAChunkedPrompt) {
  SchedSettings small = prefix_settings();
  small.max_num_batched_tokens = 40;
  SchedLoop loop(prefix_fake(), small);
  for (uint64_t id = 1; id <= 3; ++id) loop.add(test_sequence(id, test_prompt(330, 1), 2));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(2).cached_tokens, 320);
  EXPECT_EQ(loop.record(3).cached_tokens, 320);
  EXPECT_EQ(loop.executor().computed_tokens(), 330u + 2 * 10 + 3);
}

TEST(PrefixTest, OthersPassThoseThatWaitForAPrefix) {
  SchedLoop loop(prefix_fake(), prefix_settings());
  loop.add(test_sequence(1, test_prompt(100, 1), 5));
  loop.add(test_sequence(2, test_prompt(100, 1), 5));
  loop.add(test_sequence(3, test_prompt(100, 3), 5));
  ASSERT_TRUE(loop.launch());
  const std::vector<SequenceId> first = {SequenceId(1), SequenceId(3)};
  EXPECT_EQ(loop.first_planned(), first);
  EXPECT_EQ(loop.run(), "");
}

// The one that computes the prefix goes away: who waited computes it.
TEST(PrefixTest, AWaiterIsNotStrandedByACancel) {
  SchedSettings small = prefix_settings();
  small.max_num_batched_tokens = 20;
  SchedLoop loop(prefix_fake(), small);
  loop.add(test_sequence(1, test_prompt(100, 1), 5));
  loop.add(test_sequence(2, test_prompt(100, 1), 5));
  loop.launch();
  loop.launch();
  loop.finish(1);
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(2).cached_tokens, 32);  // what was computed before the cancel is kept
  EXPECT_EQ(loop.record(2).tokens.size(), 5u);
}

TEST(PrefixTest, SaltsAreApart) {
  for (const int32_t hash_bits : {1, 128}) {
    SchedSettings bits = prefix_settings();
    bits.hash_bits = hash_bits;
    SchedLoop loop(prefix_fake(), bits);
    for (uint64_t id = 1; id <= 4; ++id) {
      NewSequence sequence = test_sequence(id, test_prompt(64, 1), 5);
      sequence.cache_salt = id % 2 == 0 ? "tenant a" : "tenant b";
      loop.add(std::move(sequence));
      ASSERT_EQ(loop.run(), "");
      EXPECT_EQ(loop.record(id).cached_tokens, id <= 2 ? 0 : 48);
    }
  }
}

TEST(PrefixTest, OneBitKeysGiveTheSameTokens) {
  SchedSettings bits = prefix_settings();
  bits.hash_bits = 1;
  SchedLoop loop(prefix_fake(), bits);
  for (uint64_t id = 1; id <= 30; ++id) {
    const auto n = static_cast<int32_t>(id);
    loop.add(test_sequence(id, test_prompt(10 + n * 3, n % 4), 12));
    loop.turn();
  }
  ASSERT_EQ(loop.run(), "");
  EXPECT_GT(loop.scheduler().stats().prefix_hits, 0u);
}

TEST(PrefixTest, AFullCacheMakesRoomForAdmissions) {
  SchedLoop loop(prefix_fake(16), prefix_settings());
  for (uint64_t id = 1; id <= 20; ++id) {
    loop.add(test_sequence(id, test_prompt(100, static_cast<int32_t>(id)), 10));
    ASSERT_EQ(loop.run(), "");
  }
  const SchedStats stats = loop.scheduler().stats();
  EXPECT_GT(stats.blocks_cached, 10);
  EXPECT_GT(stats.cached.evictions, 100u);
  EXPECT_EQ(stats.preemptions, 0u);
}

TEST(PrefixTest, NumericalBlocksAreNotShared) {
  testing::FakeOptions options = prefix_fake();
  options.numerical = [](uint64_t seed, int32_t position) { return seed == 1 && position == 64; };
  SchedSettings small = prefix_settings();
  small.max_num_batched_tokens = 32;
  SchedLoop loop(options, small);
  loop.add(test_sequence(1, test_prompt(64, 1), 5));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(1).end, step::SeqEnd::kNumerical);
  EXPECT_TRUE(loop.record(1).tokens.empty());
  // Not even the chunk that was computed well before.
  EXPECT_EQ(loop.scheduler().stats().blocks_cached, 0);
  loop.add(test_sequence(2, test_prompt(65, 1), 5));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(2).cached_tokens, 0);
  EXPECT_EQ(loop.record(2).end, step::SeqEnd::kLength);
}

TEST(PrefixTest, ResetForgetsButRunsOn) {
  SchedLoop loop(prefix_fake(), prefix_settings());
  loop.add(test_sequence(1, test_prompt(64, 1), 20));
  loop.turn();
  loop.turn();
  loop.scheduler().reset_prefix_cache();
  ASSERT_TRUE(loop.scheduler().check_integrity());
  loop.add(test_sequence(2, test_prompt(32, 9), 20));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.scheduler().stats().blocks_cached, 3);  // of the second; the first ran before
  loop.add(test_sequence(3, test_prompt(64, 1), 20));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.record(3).cached_tokens, 0);
  loop.scheduler().reset_prefix_cache();
  EXPECT_EQ(loop.scheduler().stats().blocks_free, loop.scheduler().stats().num_blocks);
}

TEST(PrefixTest, OffMeansOff) {
  SchedSettings off = prefix_settings();
  off.enable_prefix_caching = false;
  SchedLoop loop(prefix_fake(), off);
  for (uint64_t id = 1; id <= 3; ++id) loop.add(test_sequence(id, test_prompt(64, 1), 5));
  ASSERT_EQ(loop.run(), "");
  EXPECT_EQ(loop.executor().computed_tokens(), 3u * 68);
  EXPECT_EQ(loop.scheduler().stats().blocks_free, loop.scheduler().stats().num_blocks);
}

}  // namespace
}  // namespace rudder::sched
