// What the guesses of an executor cost and bring, by virtual clocks: a model that is no use costs
// next to nothing, a good one pays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "rudder/sched/draft_pacer.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;

constexpr int32_t kGuesses = 4;

// Steps whose guesses take 40 ms more for what is set up in them, and whether the executor knows.
struct Setups {
  int64_t count = 0;
  bool are_known = true;
};

// Two guesses at each of the next four tokens; the first of them goes on.
step::DraftTree small_tree() {
  step::DraftTree tree;
  for (const int32_t parent : {0, 0, 1, 1, 3, 3, 5, 5}) tree.add(parent);
  return tree;
}

// Microseconds of 1,200 tokens a sequence where a step takes 3 ms and 20 us a token, and 1.2 ms for
// its guesses, 300 us for each token of a chain, but nothing where they are looked up; and how many
// steps guess.
double guessed_us(double odds, int32_t num_sequences, bool guesses, int64_t* num_guessing = nullptr,
                  const step::DraftTree& tree = {}, int64_t* num_drafts = nullptr,
                  bool looks_up = false, const Setups& setups = {}) {
  testing::VirtualClock clock;
  testing::FakeOptions fake;
  fake.capacity = {.num_slots = num_sequences,
                   .num_blocks = num_sequences * 80,
                   .block_size = 16,
                   .max_tokens_per_step = 1024,
                   .max_seq_len = 4096,
                   .vocab_size = 1000,
                   .max_in_flight = 2,
                   .drafts = {.max_draft = guesses ? kGuesses : 0, .guesses = guesses}};
  fake.clock = &clock;
  fake.step_us = 3000;
  fake.token_us = 20;
  fake.guess_us = tree.empty() ? 300 : 4 * 300 / tree.size();
  if (!tree.empty()) {
    fake.capacity.drafts.max_draft = tree.size();
    fake.capacity.drafts.takes_trees = fake.capacity.drafts.guesses_from_rows = true;
    fake.capacity.drafts.guess_tree = tree;
  }
  fake.num_setups = setups.count;
  fake.setup_us = 40'000;
  fake.knows_setups = setups.are_known;
  if (looks_up) {
    fake.guess_us = 0;
    fake.capacity.drafts.guesses_from_rows = true;
    fake.capacity.drafts.keeps_guesses = true;
    fake.capacity.drafts.look_up = {.min_n = 3, .max_n = 5};
  }
  fake.guess_odds = odds;
  SchedSettings settings;
  settings.model_identity = "model";
  settings.max_in_flight = 2;
  settings.pace_drafts = true;
  settings.max_num_seqs = num_sequences;
  settings.max_num_batched_tokens = 1024;
  settings.enable_prefix_caching = false;
  SchedLoop loop(fake, settings);
  loop.set_host_us(100);
  loop.set_check_every(50);
  for (int32_t i = 0; i < num_sequences; ++i) {
    loop.add(
        testing::test_sequence(static_cast<uint64_t>(i + 1), testing::test_prompt(8, i), 1200));
  }
  EXPECT_EQ(loop.run(), "");
  const auto guesses_any = [](const auto& plan) {
    return std::ranges::any_of(plan->seqs, [](const auto& seq) { return seq.guess.num_guess > 0; });
  };
  if (num_guessing != nullptr) *num_guessing = std::ranges::count_if(loop.plans(), guesses_any);
  if (num_drafts != nullptr) {
    *num_drafts = static_cast<int64_t>(loop.scheduler().stats().draft_tokens);
  }
  return static_cast<double>(clock.now_us());
}

TEST(GuessPacing, AModelThatIsNoUseCostsNothing) {
  for (const int32_t n : {1, 8, 32}) {
    const double plain = guessed_us(0, n, false);
    for (const double odds : {0.0, 0.03}) {
      int64_t num_guessing = 0;
      const double ratio = guessed_us(odds, n, true, &num_guessing) / plain;
      std::printf("%d sequences, %.2f right: %.3f of the time\n", n, odds, ratio);
      EXPECT_LT(ratio, 1.01) << n;
      EXPECT_GT(num_guessing, 1) << "it is tried now and then";
    }
  }
}

TEST(GuessPacing, AGoodModelPays) {
  // Sequences, and the least gain. Of one: 4.1 tokens for 4.4 ms, in place of one for 3.
  for (const auto& [n, least] : {std::pair{1, 1.8}, {8, 1.8}, {32, 1.6}}) {
    const double plain = guessed_us(0, n, false);
    const double gain = plain / guessed_us(0.9, n, true);
    std::printf("%d sequences: %.2f times as fast\n", n, gain);
    EXPECT_GT(gain, least) << n;
  }
}

// What is set up in the first guesses says nothing about those behind them. Where the executor does
// not know of it, that is true of the first of all.
TEST(GuessPacing, WhatIsPaidOnceIsNotWhatGuessesCost) {
  for (const step::DraftTree& tree : {step::DraftTree(), small_tree()}) {
    for (const int32_t n : {1, 8}) {
      int64_t num_usual = 0;
      guessed_us(0.9, n, true, &num_usual, tree);
      for (const bool are_known : {true, false}) {
        int64_t num_guessing = 0;
        guessed_us(0.9, n, true, &num_guessing, tree, nullptr, false,
                   {.count = are_known ? 20 : 1, .are_known = are_known});
        std::printf("%d sequences, setups %s: %lld steps guess, usually %lld\n", n,
                    are_known ? "known" : "not known", static_cast<long long>(num_guessing),
                    static_cast<long long>(num_usual));
        EXPECT_GT(num_guessing, num_usual * 19 / 20) << n;
      }
    }
  }
}

// Guesses that seem to take long are not made, and so not timed again but for some that the
// proposer first has to catch up for: what those take is enough to know better.
TEST(GuessPacing, ABoundMendsWhatWasTimedWrong) {
  StepCost cost;
  const StepShape plain = {.decode_tokens = 8, .decode_keys = 800};
  for (int32_t i = 0; i < 16; ++i) {
    cost.observe(plain, 3000);
    cost.observe({.decode_tokens = 40, .decode_keys = 4000}, 3000);
  }
  DraftPacer pacer;
  const DraftRecord record;
  const std::vector<const DraftRecord*> records(8, &record);
  const auto note = [&](int64_t guess_us, bool has_caught_up) {
    pacer.note_step(cost, {.shape = plain,
                           .us = 3000,
                           .num_guess = 4,
                           .guess_seqs = 8,
                           .guess_us = guess_us,
                           .has_caught_up = has_caught_up});
  };
  // Behind so many plain steps the purse is full, and a guess is tried, but a short one.
  const auto pays = [&] {
    for (int32_t i = 0; i < 2000; ++i) pacer.note_step(cost, {.shape = plain, .us = 3000});
    return pacer.choose_guess(records, cost, plain, 4) > 2;
  };
  EXPECT_TRUE(pays());
  note(50'000, false);
  EXPECT_TRUE(pays()) << "the first of all says nothing";
  note(0, false);
  EXPECT_TRUE(pays()) << "its time is not known";
  note(12'000, false);
  EXPECT_FALSE(pays());
  note(20'000, true);
  EXPECT_FALSE(pays()) << "this is no news";
  note(1'000, true);
  EXPECT_TRUE(pays());
  note(20'000, true);
  EXPECT_TRUE(pays()) << "nobody knows how much of it is guesses";
}

// A tree too: what is guessed in vain is next to nothing, and of one that is right often the drafts
// that are worth it are verified, with more sequences fewer.
TEST(GuessPacing, ATreeCostsNothingWhereItIsNoUse) {
  for (const int32_t n : {1, 8, 32}) {
    const double plain = guessed_us(0, n, false);
    for (const double odds : {0.0, 0.03}) {
      int64_t num_guessing = 0;
      const double ratio = guessed_us(odds, n, true, &num_guessing, small_tree()) / plain;
      std::printf("%d sequences, tree, %.2f right: %.3f of the time\n", n, odds, ratio);
      EXPECT_LT(ratio, 1.01) << n;
      EXPECT_GT(num_guessing, 1) << "it is tried now and then";
    }
  }
}

double looked_up_us(double odds, int32_t num_sequences, int64_t* num_drafts = nullptr) {
  return guessed_us(odds, num_sequences, true, nullptr, {}, num_drafts, true);
}

TEST(GuessPacing, WhatIsLookedUpCostsNothingWhereItIsNoUse) {
  for (const int32_t n : {1, 8, 32, 128}) {
    const double plain = guessed_us(0, n, false);
    for (const double odds : {0.0, 0.03, 0.1}) {
      int64_t num_drafts = 0;
      const double ratio = looked_up_us(odds, n, &num_drafts) / plain;
      std::printf("%d sequences, looked up, %.2f right: %.3f of the time, %.3f drafts a token\n", n,
                  odds, ratio, static_cast<double>(num_drafts) / (1200.0 * n));
      EXPECT_LT(ratio, 1.01) << n;
    }
  }
}

// Steps go on behind each other, where guesses that the host has to know end that: the gain of four
// drafts, of which 3.44 are right, is all that they can bring.
TEST(GuessPacing, WhatIsLookedUpPaysWithoutAWait) {
  for (const int32_t n : {1, 8, 32}) {
    const double plain = guessed_us(0, n, false);
    const double gain = plain / looked_up_us(0.9, n);
    const double ideal = 4.1 * (3000 + 20 * n) / (3000 + 20 * n * 5);
    std::printf("%d sequences, looked up: %.2f times as fast, of %.2f\n", n, gain, ideal);
    EXPECT_GT(gain, 0.9 * ideal) << n;
  }
}

// One client that asks again and again: its answers end on tokens that nobody foresees, after 40 on
// average, so with four drafts in the tenth step or so. A step behind the last one would be in
// vain.
TEST(GuessPacing, WhatIsLookedUpWaitsWhereAnAnswerMayEnd) {
  constexpr uint64_t kAnswers = 300;
  const auto run = [&](bool looks_up, uint64_t* num_in_vain) {
    testing::VirtualClock clock;
    testing::FakeOptions fake;
    fake.capacity.drafts.max_draft = looks_up ? kGuesses : 0;
    if (looks_up) {
      fake.capacity.drafts.guesses = fake.capacity.drafts.guesses_from_rows = true;
      fake.capacity.drafts.keeps_guesses = true;
      fake.capacity.drafts.look_up = {.min_n = 3, .max_n = 5};
    }
    fake.clock = &clock;
    fake.step_us = 3000;
    fake.guess_odds = 0.95;
    SchedSettings settings;
    settings.model_identity = "model";
    settings.max_in_flight = 2;
    settings.pace_drafts = true;
    settings.enable_prefix_caching = false;
    SchedLoop loop(fake, settings);
    loop.set_host_us(100);
    loop.set_check_every(50);
    for (uint64_t id = 1; id <= kAnswers; ++id) {
      NewSequence sequence =
          testing::test_sequence(id, testing::test_prompt(8, static_cast<int32_t>(id)), 900);
      for (int32_t token = 0; token < 25; ++token) sequence.sampling.stop_ids.push_back(40 * token);
      loop.add(std::move(sequence));
      while (loop.record(id).end == step::SeqEnd::kNone && loop.turn()) {
      }
    }
    EXPECT_EQ(loop.run(), "");
    *num_in_vain = loop.executor().masked_results();
    return static_cast<double>(clock.now_us());
  };
  uint64_t of_plain = 0;
  uint64_t of_drafted = 0;
  const double gain = run(false, &of_plain) / run(true, &of_drafted);
  std::printf("%.2f times as fast, %llu of %llu answers with a step in vain\n", gain,
              static_cast<unsigned long long>(of_drafted),
              static_cast<unsigned long long>(kAnswers));
  EXPECT_GT(of_plain, kAnswers * 9 / 10);
  EXPECT_LT(of_drafted, kAnswers / 3);
  EXPECT_GT(gain, 3.0);
}

// A text that says old things for a while, then new ones: what is not known yet is expected of each
// as it was of its like.
TEST(GuessPacing, AGuessIsExpectedWhereThereWasOne) {
  DraftRecord record;
  DraftRates all;
  const auto odds = [&] {
    std::vector<float> odds;
    record.append_odds(all, 0.25f, 3, {}, &odds);
    return odds;
  };
  std::vector<float> in_old;
  std::vector<float> in_new;
  for (int32_t token = 0; token < 400; ++token) {
    const bool is_old = token / 20 % 2 == 0;
    if (is_old) {
      record.new_guess().tokens = {token, token + 1, token + 2};
    } else {
      record.new_guess();
      record.note_none(&all);
    }
    (is_old ? in_old : in_new) = odds();
    record.compare(std::vector<int32_t>{token}, {}, &all);
  }
  EXPECT_GT(in_old[0], 0.85f);
  EXPECT_GT(in_old[2], 0.7f);
  EXPECT_LT(in_new[0], 0.15f);
}

TEST(GuessPacing, AGoodTreePays) {
  double drafts_a_token = 9;
  for (const auto& [n, least] : {std::pair{1, 1.4}, {8, 1.35}, {48, 1.05}}) {
    const double plain = guessed_us(0, n, false);
    int64_t num_drafts = 0;
    const double gain = plain / guessed_us(0.95, n, true, nullptr, small_tree(), &num_drafts);
    std::printf("%d sequences, tree: %.2f times as fast, %.2f drafts a token\n", n, gain,
                static_cast<double>(num_drafts) / (1200.0 * n));
    EXPECT_GT(gain, least) << n;
    EXPECT_LT(static_cast<double>(num_drafts) / (1200.0 * n), drafts_a_token);
    drafts_a_token = static_cast<double>(num_drafts) / (1200.0 * n);
  }
}

}  // namespace
}  // namespace rudder::sched
