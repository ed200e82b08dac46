// Sequences whose drafts the executor guesses: tokens are those of plain decoding, and the proposer
// runs every token, or none where it guesses from rows.
#include <gtest/gtest.h>

#include "rudder/testing/random_tree.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;

constexpr int32_t kMostGuessed = 4;

enum class From : uint8_t { kTokens, kKeptTokens, kRows, kLookUp };

testing::FakeOptions guessing_fake(uint64_t seed, int32_t in_flight, From from = From::kTokens) {
  testing::FakeOptions fake;
  fake.seed = seed;
  fake.capacity.drafts.max_draft = kMostGuessed;
  fake.capacity.drafts.guesses = true;
  fake.capacity.drafts.guesses_from_rows = from == From::kRows || from == From::kLookUp;
  fake.capacity.drafts.keeps_guesses = from == From::kKeptTokens || from == From::kLookUp;
  if (from == From::kLookUp) fake.capacity.drafts.look_up = {.min_n = 2, .max_n = 3};
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

class GuessStress : public ::testing::TestWithParam<From> {};

// The machine objects where its proposer has not run a token, or has no block, where one that
// guesses from rows gets tokens to run, and where one that looks up has none to look up.
TEST_P(GuessStress, TheTokensAreThoseOfPlainDecoding) {
  for (const int32_t depth : {1, 2, 3}) {
    for (const bool is_paced : {false, true}) {
      SchedLoop loop(guessing_fake(static_cast<uint64_t>(depth), depth, GetParam()),
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
      EXPECT_GT(stats.draft_tokens, stats.accepted_tokens + 30);
    }
  }
}

std::string from_name(const ::testing::TestParamInfo<From>& test) {
  constexpr const char* kNames[] = {"Tokens", "KeptTokens", "Rows", "LookUp"};
  return kNames[static_cast<size_t>(test.param)];
}

INSTANTIATE_TEST_SUITE_P(Of, GuessStress,
                         ::testing::Values(From::kTokens, From::kKeptTokens, From::kRows,
                                           From::kLookUp),
                         from_name);

// Drafts that stay in slots are planned behind steps whose tokens are not known, more behind those,
// and no step waits for them.
TEST(Guesses, ThatAreKeptLetStepsRunAhead) {
  for (const auto& [from, is_paced] :
       {std::pair{From::kLookUp, false}, std::pair{From::kLookUp, true},
        std::pair{From::kKeptTokens, false}, std::pair{From::kKeptTokens, true}}) {
    testing::FakeOptions fake = guessing_fake(7, 2, from);
    fake.guess_odds = 0.9;
    fake.capacity.num_blocks = 400;
    testing::VirtualClock clock;
    fake.clock = &clock;
    SchedLoop loop(fake, guessing_settings(2, is_paced));
    for (uint64_t id = 1; id <= 3; ++id) {
      loop.add(testing::test_sequence(id, testing::test_prompt(20, id), 300));
    }
    int64_t num_ahead = 0;  // steps with drafts, launched before the one in front was collected
    int64_t num_plans = 0;
    while (loop.launch()) {
    }
    while (loop.scheduler().has_work() && loop.error().empty()) {
      const bool is_behind = loop.scheduler().steps_in_flight() > 0;
      const bool launched = loop.launch();
      EXPECT_FALSE(loop.scheduler().is_holding());
      if (launched) {
        ++num_plans;
        const auto& seqs = loop.plans().back()->seqs;
        num_ahead += is_behind && std::ranges::any_of(seqs, &step::SeqWork::takes_guess) ? 1 : 0;
      } else {
        loop.collect();
      }
    }
    EXPECT_EQ(loop.run(), "");
    EXPECT_GT(num_ahead, num_plans * 3 / 4) << is_paced << from_name({from, 0});
    const SchedStats stats = loop.scheduler().stats();
    EXPECT_GT(stats.accepted_tokens, 400u);
    EXPECT_LT(stats.accepted_tokens, stats.draft_tokens);
  }
}

// Trees of every shape; where masks or captures follow from a path, the chain of first children.
TEST(Guesses, TreesGiveTheTokensOfPlainDecoding) {
  uint64_t num_trees = 0;
  for (const int32_t depth : {1, 2, 3}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      testing::FakeOptions fake = guessing_fake(seed, depth, From::kRows);
      fake.capacity.drafts.takes_trees = true;
      fake.capacity.drafts.max_draft = static_cast<int32_t>(4 * seed);
      fake.capacity.drafts.guess_tree = testing::random_tree(seed, fake.capacity.drafts.max_draft);
      SchedSettings settings = guessing_settings(depth, seed % 3 == 0);
      settings.max_num_batched_tokens = 60;
      SchedLoop loop(fake, settings);
      for (uint64_t id = 1; id <= 20; ++id) {
        NewSequence sequence = testing::test_sequence(
            id, testing::test_prompt(static_cast<int32_t>(id), 3), 4 * static_cast<int32_t>(id));
        sequence.sampling.stop_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
        sequence.sampling.min_tokens = static_cast<int32_t>(id) / 2;
        sequence.is_drafted = id % 7 != 0;
        if (id % 3 == 0) sequence.sampling.presence_penalty = 0.5f;
        loop.add(std::move(sequence));
      }
      ASSERT_EQ(loop.run(), "") << depth << ", " << seed;
      const SchedStats stats = loop.scheduler().stats();
      for (const auto& plan : loop.plans()) {
        for (const step::SeqWork& work : plan->seqs) num_trees += work.tree.empty() ? 0 : 1;
      }
      if (settings.pace_drafts) continue;
      EXPECT_GT(stats.accepted_tokens, 100u);
      EXPECT_GT(stats.draft_tokens, stats.accepted_tokens + 40);
    }
  }
  EXPECT_GT(num_trees, 1000u);
}

// Behind a cached prefix that a step's budget does not cover: one that runs tokens catches up
// first.
TEST(Guesses, FromRowsBeginWithTheFirstToken) {
  constexpr int32_t kCached = 56;
  const auto first_guess = [&](bool from_rows) {
    testing::FakeOptions fake = guessing_fake(5, 1, from_rows ? From::kRows : From::kTokens);
    SchedSettings settings = guessing_settings(1, false);
    settings.max_num_batched_tokens = 16;
    SchedLoop loop(fake, settings);
    loop.add(testing::test_sequence(1, testing::test_prompt(kCached, 3), 4));
    EXPECT_EQ(loop.run(), "");
    const size_t num_plans = loop.plans().size();
    loop.add(testing::test_sequence(2, testing::test_prompt(kCached + 1, 3), 24));
    EXPECT_EQ(loop.run(), "");
    EXPECT_EQ(loop.record(2).cached_tokens, kCached);
    int32_t num_steps = 0;  // that sampled before one guessed
    for (size_t i = num_plans; i < loop.plans().size(); ++i) {
      const step::SeqWork& work = loop.plans()[i]->seqs.at(0);
      if (from_rows) {
        EXPECT_TRUE(work.guess.tokens.empty());
      }
      if (work.guess.num_guess > 0) return num_steps;
      num_steps += work.logits == step::LogitsWanted::kNone ? 0 : 1;
    }
    return -1;
  };
  EXPECT_EQ(first_guess(true), 0);
  EXPECT_GT(first_guess(false), 1);
}

}  // namespace
}  // namespace rudder::sched
