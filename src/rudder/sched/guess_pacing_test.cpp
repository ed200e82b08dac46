// What the guesses of an executor cost and bring, by virtual clocks: a model that is no use costs
// next to nothing, a good one pays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;

constexpr int32_t kGuesses = 4;

// Microseconds of 1,200 tokens a sequence where a step takes 3 ms and 20 us a token, and 300 us for
// each token of its guesses; and how many steps guess.
double guessed_us(double odds, int32_t num_sequences, bool guesses,
                  int64_t* num_guessing = nullptr) {
  testing::VirtualClock clock;
  testing::FakeOptions fake;
  fake.capacity = {.num_slots = num_sequences,
                   .num_blocks = num_sequences * 80,
                   .block_size = 16,
                   .max_tokens_per_step = 1024,
                   .max_seq_len = 4096,
                   .vocab_size = 1000,
                   .max_in_flight = 2,
                   .max_draft = guesses ? kGuesses : 0,
                   .guesses = guesses};
  fake.clock = &clock;
  fake.step_us = 3000;
  fake.token_us = 20;
  fake.guess_us = 300;
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

}  // namespace
}  // namespace rudder::sched
