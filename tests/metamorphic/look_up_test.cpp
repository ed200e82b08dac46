// Prompt lookup on the device against plain decoding: the same sequences get the same tokens,
// logprobs, scores and captured rows, bit for bit (step.I11), though drafts stay in their slots and
// steps are planned behind them; and what is guessed is what the host's own lookup guesses.
#include <gtest/gtest.h>

#include <algorithm>

#include "metamorphic/guess_notes.h"
#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/base/token_mask.h"
#include "rudder/draft/ngram_index.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

constexpr step::LookUp kLookUp = {.min_n = 1, .max_n = 3};

// Not every sequence fits at once.
step::Capacity tight() {
  step::Capacity capacity = kRoomy;
  capacity.num_blocks = 14;
  capacity.max_tokens_per_step = 96;
  capacity.max_repeat = 4;
  capacity.drafts.max_draft = 5;
  return capacity;
}

sched::SchedSettings settings(int32_t budget, int32_t in_flight, bool is_paced) {
  sched::SchedSettings settings;
  settings.max_num_seqs = 16;
  settings.max_num_batched_tokens = budget;
  settings.max_in_flight = in_flight;
  settings.multi_step = 4;
  settings.pace_drafts = is_paced;
  return settings;
}

// Notes which steps had drafts of slots behind steps that were not collected.
class Ahead final : public step::Executor {
 public:
  explicit Ahead(step::Executor& inner) : inner_(inner) {}

  step::Capacity capacity() const override { return inner_.capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    for (const step::SeqWork& work : plan->seqs) {
      num_taken += work.takes_guess ? 1 : 0;
      num_ahead += work.takes_guess && in_flight_ > 0 ? 1 : 0;
      num_host += work.num_draft > 0 && !work.takes_guess ? 1 : 0;
    }
    in_flight_ += plan->repeat;
    return inner_.launch(std::move(plan));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    return inner_.supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    --in_flight_;
    Result<step::StepResult> result = inner_.collect(ticket);
    if (result && result->from_graph) ++num_replayed;
    return result;
  }
  bool ready(step::Ticket ticket) override { return inner_.ready(ticket); }

  int64_t num_taken = 0;  // sequences of steps whose drafts are their slots' guesses
  int64_t num_ahead = 0;  // of them, behind steps in flight
  int64_t num_host = 0;   // with drafts of the host
  int64_t num_replayed = 0;

 private:
  step::Executor& inner_;
  int64_t in_flight_ = 0;  // iterations
};

// Under it a text says the same again and again, but where its seed has it otherwise.
MaskFn turning_mask(uint64_t seed) {
  return [seed](const std::vector<int32_t>& output) {
    std::vector<uint32_t> mask(mask_words(160));
    const uint64_t at = output.size();
    set_in_mask(mask, static_cast<int32_t>((at + seed) % 7));
    if ((at * at + seed) % 11 == 0) set_in_mask(mask, static_cast<int32_t>(at % 160));
    return mask;
  };
}

class LookUps : public ::testing::TestWithParam<Pair> {
 protected:
  static testing::TinyArch arch() { return std::get<1>(GetParam()); }
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }
  // Windows give blocks back, so that all sequences fit.
  static bool may_preempt() { return !testing::has_windows(arch()); }
  void SetUp() override {
    if (backend().make()->draft_ops() == nullptr) GTEST_SKIP() << "it looks nothing up";
  }

  struct Way {
    Backend device;
    int32_t budget;
    int32_t in_flight;
  };
  static std::vector<Way> ways() {
    const Backend async_taped = {
        "async_tape",
        [] { return testing::make_async_ops(testing::make_tape_ops(backend().make())); }};
    return {{backend(), 96, 1}, {backend(), 40, 3}, {async_taped, 64, 3}};
  }

  // Most prompts say things twice, and so do some answers.
  static std::vector<Ask> repetitive_asks(uint32_t seed) {
    std::vector<Ask> asks = random_masked_asks(14, seed, 80);
    for (size_t i = 0; i < asks.size(); ++i) {
      if (i % 2 == 1) asks[i].mask = turning_mask(i);
      std::vector<int32_t>& prompt = asks[i].prompt;
      if (i % 4 != 0) {
        const std::vector<int32_t> once = prompt;
        prompt.insert(prompt.end(), once.begin(), once.end());
        asks[i].max_len += static_cast<int32_t>(once.size());
      }
      asks[i].arrival = static_cast<int32_t>(i / 8 * 10);
    }
    return asks;
  }
};

TEST_P(LookUps, AsPlainDecoding) {
  std::vector<Ask> asks = repetitive_asks(90);
  add_random_taps(asks, with_encodes(kRoomy, arch()), 4);
  const std::vector<Got> plain =
      run_alone(*tiny_executor(backend(), arch(), with_encodes(kRoomy, arch())), asks);
  uint64_t num_preemptions = 0;
  for (const bool is_paced : {false, true}) {
    for (const Way& way : ways()) {
      step::Capacity capacity = with_encodes(tight(), arch());
      add_guesser(capacity, Guesser::kLookUp);
      const auto executor = tiny_executor(way.device, arch(), capacity);
      Ahead noting(*executor);
      const Outcome outcome = run(noting, settings(way.budget, way.in_flight, is_paced), asks);
      expect_same(plain, outcome.got, way.device.name);
      num_preemptions += outcome.stats.preemptions;
      EXPECT_EQ(noting.num_host, 0);
      EXPECT_GT(outcome.constrained_steps, 0);
      if (is_paced) continue;
      EXPECT_GT(outcome.stats.accepted_tokens, 50u);
      EXPECT_GT(outcome.stats.draft_tokens, outcome.stats.accepted_tokens + 50);
      EXPECT_GT(noting.num_taken, 60);
      if (way.in_flight == 1) {
        EXPECT_EQ(noting.num_ahead, 0);
      } else {
        EXPECT_GT(noting.num_ahead, noting.num_taken / 2);
      }
      if (way.device.make()->graph_ops() != nullptr) {
        EXPECT_GT(noting.num_replayed, 0);
      }
    }
  }
  if (may_preempt()) {
    EXPECT_GT(num_preemptions, 0u);
  }
}

// Behind chunks, preemptions, cached prefixes, whatever else is in the step.
TEST_P(LookUps, GuessesAreThoseOfTheHost) {
  std::vector<Ask> asks = repetitive_asks(91);
  for (size_t i = 0; i < 4; ++i) {
    asks.push_back(asks[i]);
    asks.back().arrival = 60;
  }
  for (size_t i = 0; i < asks.size(); ++i) asks[i].sampling.seed = i;
  step::Capacity capacity = tight();
  add_guesser(capacity, Guesser::kLookUp);
  capacity.drafts.look_up = kLookUp;
  const auto executor = tiny_executor(backend(), arch(), capacity);
  GuessNotes noting(*executor);
  const Outcome outcome = run(noting, settings(40, 1, false), asks);
  const std::vector<std::vector<int32_t>> whole = wholes(asks, outcome.got);
  size_t num_compared = 0;
  for (const auto& [behind, guess] : noting.notes) {
    const auto& [sequence, len] = behind;
    const std::span<const int32_t> tokens = std::span(whole[sequence]).first(len);
    draft::NgramIndex index(kLookUp.min_n, kLookUp.max_n);
    ASSERT_TRUE(index.extend(tokens, std::ssize(tokens)));
    std::vector<int32_t> expected;
    const int32_t room = asks[sequence].max_len - static_cast<int32_t>(len) - 1;
    index.append_guess(tokens, std::min(capacity.drafts.max_draft, room), &expected);
    EXPECT_EQ(guess, expected) << "sequence " << sequence << " behind " << len;
    num_compared += guess.size();
  }
  EXPECT_GT(num_compared, 400u);
}

// A lone sequence whose text repeats takes about as few steps as the drafts allow, and no step
// waits for the one in front.
TEST_P(LookUps, RightOnesSaveSteps) {
  Ask ask;
  for (int32_t i = 0; i < 60; ++i) ask.prompt.push_back(i % 6);
  ask.max_len = 160;
  ask.mask = [](const std::vector<int32_t>& output) {
    std::vector<uint32_t> mask(mask_words(160));
    set_in_mask(mask, static_cast<int32_t>(output.size()) % 6);
    return mask;
  };
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = 5;
  add_guesser(capacity, Guesser::kLookUp);
  const auto executor = tiny_executor(backend(), arch(), capacity);
  Ahead noting(*executor);
  const Outcome outcome = run(noting, settings(96, 2, false), {ask});
  ASSERT_EQ(outcome.got[0].tokens.size(), 100u);
  for (int32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(outcome.got[0].tokens[static_cast<size_t>(i)], i % 6);
  }
  EXPECT_LT(outcome.stats.steps, 40u);
  EXPECT_GT(outcome.stats.accepted_tokens, 70u);
  EXPECT_GT(noting.num_ahead, 10);
}

INSTANTIATE_TEST_SUITE_P(Tiny, LookUps,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kFirst)), pair_name);
INSTANTIATE_TEST_SUITE_P(Full, LookUps,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kFirst)), pair_name);

}  // namespace
}  // namespace rudder::metamorphic
