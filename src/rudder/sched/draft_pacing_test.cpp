// Drafts that pay: what guesses of a known quality do to the time of a load, on a clock that moves
// by a law of what steps take. No load may become slower; where guesses are good, the gain is near
// to what they could bring.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

#include "rudder/base/philox.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;
using testing::test_prompt;
using testing::test_sequence;

constexpr int32_t kDrafts = 8;
constexpr int32_t kVocab = 1000;
constexpr int64_t kHostUs = 250;  // to plan and launch a step

// As PacingTest's: weights are read in 2.9 ms, as long as 260 tokens are multiplied.
int64_t h100_us(const step::StepPlan& plan) {
  StepShape shape;
  for (const step::SeqWork& work : plan.seqs) shape.add(work);
  const auto tokens = static_cast<double>(plan.num_tokens());
  const double us = std::max(2900.0, 11.1 * tokens) + (shape.prompt_tokens > 0 ? 1500 : 0) +
                    0.019 * static_cast<double>(shape.decode_keys) +
                    0.0008 * static_cast<double>(shape.prompt_pairs);
  const double noise = 0.03 * (static_cast<double>(plan.id * 2654435761u % 201) / 100 - 1);
  return static_cast<int64_t>(us * (1 + noise));
}

// A machine on which every token costs nearly as much as a step.
int64_t slow_us(const step::StepPlan& plan) {
  return 1000 + 900 * plan.num_tokens();
}

// Guesses `count` tokens, each right with odds(position, sequence), whatever the tail that it is
// asked for behind.
using Odds = std::function<double(size_t position, uint64_t sequence)>;
class OddsProposer final : public DraftProposer {
 public:
  OddsProposer(Odds odds, int32_t count) : odds_(std::move(odds)), count_(count) {}

  void begin(const NewSequence& sequence) override {
    const auto run =
        testing::expected_run(sequence.prompt, sequence.sampling, sequence.max_len, kVocab);
    std::vector<int32_t>& whole = wholes_[sequence.id];
    whole = sequence.prompt;
    whole.insert(whole.end(), run.tokens.begin(), run.tokens.end());
  }
  void end(SequenceId id, std::span<const int32_t>) override { wholes_.erase(id); }
  bool waits(SequenceId) override { return true; }
  void propose(SequenceId id, std::span<const int32_t> tokens, const DraftAsk& ask,
               Draft* draft) override {
    ++num_asked_;
    asked_.insert(id);
    const std::vector<int32_t>& whole = wholes_.at(id);
    const size_t end = std::min({whole.size(), tokens.size() + static_cast<size_t>(ask.most),
                                 tokens.size() + static_cast<size_t>(count_)});
    for (size_t i = tokens.size(); i < end; ++i) {
      const bool is_right =
          philox_u64(id.value * 7919 + 1, i) % 10'000 < odds_(i, id.value) * 10'000;
      draft->tokens.push_back(is_right ? whole[i] : (whole[i] + 1) % kVocab);
    }
  }

  int64_t num_asked() const { return num_asked_; }
  size_t num_sequences_asked() const { return asked_.size(); }

 private:
  const Odds odds_;
  const int32_t count_;
  int64_t num_asked_ = 0;
  std::set<SequenceId> asked_;
  std::map<SequenceId, std::vector<int32_t>> wholes_;
};

using StepTime = int64_t (*)(const step::StepPlan&);

// Microseconds from the first token of the last sequence to the end; with no drafts, 0 are taken.
struct Load {
  StepTime law = h100_us;
  int32_t num_sequences = 1;
  int32_t num_output = 1000;
};
struct LoadStats {
  double tokens_a_step = 0;
  double guesses_a_token = 0;
  double share_asked = 0;  // of the sequences
  double num_accepted = 0;
};
double run_us(const Load& load, int32_t max_draft, const Odds& odds, LoadStats* out = nullptr) {
  testing::VirtualClock clock;
  testing::FakeOptions fake;
  fake.capacity = {.num_slots = load.num_sequences,
                   .num_blocks = 2 * load.num_sequences * (load.num_output / 16 + 3),
                   .block_size = 16,
                   .max_tokens_per_step = 4096 + load.num_sequences,
                   .max_seq_len = 4096,
                   .vocab_size = kVocab,
                   .max_in_flight = 2,
                   .drafts = {.max_draft = max_draft}};
  fake.clock = &clock;
  fake.duration_us = load.law;
  SchedSettings settings;
  settings.max_num_seqs = load.num_sequences;
  settings.max_num_batched_tokens = fake.capacity.max_tokens_per_step;
  settings.enable_prefix_caching = false;
  settings.model_identity = "model";
  settings.pace_drafts = true;
  OddsProposer proposer(odds, kDrafts + 1);
  SchedLoop loop(fake, settings, &proposer);
  loop.set_host_us(kHostUs);
  loop.set_check_every(50);
  for (int32_t i = 0; i < load.num_sequences; ++i) {
    loop.add(test_sequence(static_cast<uint64_t>(i + 1), test_prompt(8, i), load.num_output));
  }
  EXPECT_EQ(loop.run(), "");
  const SchedStats stats = loop.scheduler().stats();
  if (out != nullptr) {
    const auto tokens = static_cast<double>(stats.generation_tokens);
    *out = {.tokens_a_step = tokens / static_cast<double>(stats.steps),
            .guesses_a_token = static_cast<double>(proposer.num_asked()) / tokens,
            .share_asked = static_cast<double>(proposer.num_sequences_asked()) / load.num_sequences,
            .num_accepted = static_cast<double>(stats.accepted_tokens)};
  }
  return static_cast<double>(clock.now_us());
}

double never(size_t, uint64_t) {
  return 0;
}

TEST(DraftPacing, GuessesThatAreWrongCostNothing) {
  const std::pair<StepTime, const char*> laws[] = {{h100_us, "flat"}, {slow_us, "steep"}};
  for (const auto& [law, name] : laws) {
    for (const int32_t n : {1, 32, 512}) {
      const Load load = {.law = law, .num_sequences = n, .num_output = n > 100 ? 200 : 600};
      const double plain = run_us(load, 0, never);
      for (const double odds : {0.02, 0.1, 0.3}) {
        const double ratio = run_us(load, kDrafts, [=](size_t, uint64_t) { return odds; }) / plain;
        std::printf("%s, %d sequences, %.2f right: %.3f of the time\n", name, n, odds, ratio);
        EXPECT_LT(ratio, 1.01) << name << " " << n << " " << odds;
      }
    }
  }
}

// A guess that is right with p brings (1 - p^(d+1)) / (1 - p) tokens a step; the best d at what the
// step then takes, the host's time included, is the bound.
double bound(const Load& load, double p) {
  step::StepPlan plan;
  const auto us = [&](int32_t d) {
    step::SeqWork work;
    work.kv_len = load.num_output / 2;
    work.q_len = 1 + d;
    work.num_draft = d;
    work.logits = d > 0 ? step::LogitsWanted::kAll : step::LogitsWanted::kLast;
    plan.seqs.assign(static_cast<size_t>(load.num_sequences), work);
    plan.id = 0;
    return static_cast<double>(load.law(plan)) + (d > 0 ? kHostUs : 0);
  };
  double best = 1;
  for (int32_t d = 1; d <= kDrafts; ++d) {
    const double tokens = p == 1 ? d + 1 : (1 - std::pow(p, d + 1)) / (1 - p);
    best = std::max(best, tokens * us(0) / us(d));
  }
  return best;
}

TEST(DraftPacing, GoodGuessesBringNearlyWhatTheyCan) {
  for (const int32_t n : {1, 8, 32, 128}) {
    const Load load = {.num_sequences = n, .num_output = n > 100 ? 600 : 1600};
    const double plain = run_us(load, 0, never);
    for (const double odds : {0.6, 0.8, 0.95, 1.0}) {
      LoadStats stats;
      const double gain =
          plain / run_us(
                      load, kDrafts, [=](size_t, uint64_t) { return odds; }, &stats);
      const double most = bound(load, odds);
      std::printf("%d sequences, %.2f right: %.2f times as fast, bound %.2f, %.2f tokens a step\n",
                  n, odds, gain, most, stats.tokens_a_step);
      EXPECT_GT(gain, 0.85 * most) << n << " " << odds;
    }
  }
}

// A guess takes time of the host, whatever becomes of it: where drafts do not pay, few are made.
TEST(DraftPacing, WhereDraftsDoNotPayFewAreGuessed) {
  for (const auto& [n, most] :
       std::array<std::pair<int32_t, double>, 3>{{{32, 0.6}, {128, 0.2}, {512, 0.1}}}) {
    LoadStats stats;
    run_us({.num_sequences = n, .num_output = 300}, kDrafts, never, &stats);
    std::printf("%d sequences: %.3f guesses a token\n", n, stats.guesses_a_token);
    EXPECT_LT(stats.guesses_a_token, most) << n;
    EXPECT_GT(stats.guesses_a_token, 0.5 / n) << "what they are worth stays known";
  }
}

// Who guesses reads the whole text of a sequence that it is asked for: of short ones that is most
// of the work, so the few that stand for all stay the same for a while.
TEST(DraftPacing, WhereDraftsDoNotPayMostShortSequencesAreNeverGuessed) {
  for (const int32_t n : {256, 512}) {
    LoadStats stats;
    run_us({.num_sequences = n, .num_output = 96}, kDrafts, never, &stats);
    std::printf("%d sequences: %.2f of them asked for\n", n, stats.share_asked);
    EXPECT_LT(stats.share_asked, 0.4) << n;
    EXPECT_GT(stats.share_asked, 1.0 / 16) << n;
  }
}

// A few sequences whose guesses are always right, among many whose never are.
TEST(DraftPacing, TheFewWhoseGuessesAreGoodAreFound) {
  constexpr uint64_t kGood = 4;
  const Load load = {.num_sequences = 64, .num_output = 600};
  LoadStats stats;
  run_us(
      load, kDrafts, [](size_t, uint64_t sequence) { return sequence % 16 == 5 ? 1.0 : 0.0; },
      &stats);
  std::printf("%d of %d tokens were right drafts\n", static_cast<int>(stats.num_accepted),
              static_cast<int>(kGood) * load.num_output);
  EXPECT_GT(stats.num_accepted, 0.6 * kGood * load.num_output);
}

// Where every draft is verified, sequences that began at different times are in the same steps.
TEST(DraftPacing, UnpacedSequencesWaitTogether) {
  testing::FakeOptions fake;
  fake.capacity = {.num_slots = 4,
                   .num_blocks = 200,
                   .block_size = 16,
                   .max_tokens_per_step = 64,
                   .max_seq_len = 512,
                   .vocab_size = kVocab,
                   .max_in_flight = 2,
                   .drafts = {.max_draft = kDrafts}};
  SchedSettings settings;
  settings.max_num_seqs = 4;
  settings.max_num_batched_tokens = 64;
  settings.model_identity = "model";
  OddsProposer proposer([](size_t, uint64_t) { return 0.5; }, 3);
  SchedLoop loop(fake, settings, &proposer);
  for (uint64_t i = 1; i <= 4; ++i) {
    loop.add(test_sequence(i, test_prompt(8, static_cast<int32_t>(i)), 300));
    for (int turns = 0; turns < 3; ++turns) EXPECT_TRUE(loop.turn());
  }
  const size_t num_before = loop.plans().size();
  for (int turns = 0; turns < 20; ++turns) EXPECT_TRUE(loop.turn());
  for (size_t i = num_before; i < loop.plans().size(); ++i) {
    EXPECT_EQ(loop.plans()[i]->seqs.size(), 4u) << "step " << i;
  }
}

// One client that thinks between its requests: its pauses are no time that the device waits for
// drafts. At another time the machine does stand still behind such a step, once.
TEST(DraftPacing, PausesDoNotKeepDraftsAway) {
  for (const bool has_hiccup : {false, true}) {
    testing::VirtualClock clock;
    testing::FakeOptions fake;
    fake.capacity = {.num_slots = 1,
                     .num_blocks = 200,
                     .block_size = 16,
                     .max_tokens_per_step = 64,
                     .max_seq_len = 512,
                     .vocab_size = kVocab,
                     .max_in_flight = 2,
                     .drafts = {.max_draft = kDrafts}};
    fake.clock = &clock;
    fake.duration_us = h100_us;
    SchedSettings settings;
    settings.max_num_seqs = 1;
    settings.max_num_batched_tokens = 64;
    settings.model_identity = "model";
    settings.pace_drafts = true;
    OddsProposer proposer([](size_t, uint64_t) { return 1.0; }, kDrafts + 1);
    SchedLoop loop(fake, settings, &proposer);
    loop.set_host_us(kHostUs);
    uint64_t halfway = 0;
    for (uint64_t request = 1; request <= 40; ++request) {
      loop.add(test_sequence(request, test_prompt(8, static_cast<int32_t>(request)), 60));
      EXPECT_EQ(loop.run(), "");
      clock.advance_to(clock.now_us() + 1'000'000);
      if (request != 20) continue;
      halfway = loop.scheduler().stats().accepted_tokens;
      if (has_hiccup) loop.scheduler().note_idle(5'000'000);
    }
    // Of 60 tokens that a request gives, 53 may be drafts.
    const uint64_t accepted = loop.scheduler().stats().accepted_tokens;
    EXPECT_GT(halfway, 20u * 40);
    EXPECT_GT(accepted - halfway, has_hiccup ? 20u * 25 : 20u * 40);
  }
}

// What is said begins to repeat half way, and again when most of it is said: what was learnt of it
// before is forgotten soon.
TEST(DraftPacing, GuessesThatBecomeGoodAreTaken) {
  const Load load = {.num_sequences = 8, .num_output = 1200};
  const double plain = run_us(load, 0, never);
  const double half =
      run_us(load, kDrafts, [](size_t at, uint64_t) { return at < 600 ? 0.02 : 0.95; });
  const double waves =
      run_us(load, kDrafts, [](size_t at, uint64_t) { return at % 200 < 100 ? 0.02 : 0.95; });
  const double most = bound(load, 0.95);
  std::printf("half: %.2f of the time, waves: %.2f, bound %.2f\n", half / plain, waves / plain,
              0.5 + 0.5 / most);
  EXPECT_LT(half / plain, 0.5 + 0.5 / (0.8 * most));
  EXPECT_LT(waves / plain, 0.75);  // each time a dozen tokens come before it is noticed
}

}  // namespace
}  // namespace rudder::sched
