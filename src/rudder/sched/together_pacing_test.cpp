// Drafts that are verified together, as a window of lookahead decoding is: what they cost and
// bring, by virtual clocks. Where they are no use they cost next to nothing; where they are, they
// pay.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <map>

#include "rudder/base/philox.h"
#include "rudder/sched/draft_pacer.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;

constexpr int32_t kSize = 40;       // drafts of a tree
constexpr int32_t kDepth = 4;       // of its first path, the only one that may be right
constexpr int32_t kFirstTrees = 4;  // trees of a sequence before the first that is any good
constexpr int32_t kVocabulary = 1000;

// How often each draft of the first path is right where those before it are, by position.
using Right = std::function<double(size_t position)>;

class PathProposer final : public DraftProposer {
 public:
  explicit PathProposer(Right right) : right_(std::move(right)) {}

  void begin(const NewSequence& sequence) override {
    const auto run =
        testing::expected_run(sequence.prompt, sequence.sampling, sequence.max_len, kVocabulary);
    Text& text = texts_[sequence.id];
    text.whole = sequence.prompt;
    text.whole.insert(text.whole.end(), run.tokens.begin(), run.tokens.end());
  }
  void end(SequenceId id, std::span<const int32_t>) override { texts_.erase(id); }
  bool waits(SequenceId) override { return true; }
  bool learns() const override { return true; }
  void note_rows(SequenceId id, std::span<const int32_t> rows) override {
    if (std::ssize(rows) > kDepth) ++texts_.at(id).num_told;
  }
  void propose(SequenceId id, std::span<const int32_t> tokens, const DraftAsk& ask,
               Draft* draft) override {
    const Text& text = texts_.at(id);
    for (int32_t i = 0; i < std::min(ask.most, kSize); ++i) {
      const size_t at = tokens.size() + static_cast<size_t>(i < kDepth ? i : 0);
      const bool is_right =
          i < kDepth && at < text.whole.size() && text.num_told >= kFirstTrees &&
          philox_uniform(id.value, at, static_cast<uint64_t>(tokens.size())) < right_(at);
      const int32_t right = at < text.whole.size() ? text.whole[at] : 0;
      draft->tree.add(i < kDepth ? i : 0);
      draft->tokens.push_back(is_right ? right : (right + 1 + i) % kVocabulary);
    }
    ++num_asked;
  }

  int64_t num_asked = 0;

 private:
  struct Text {
    std::vector<int32_t> whole;
    int32_t num_told = 0;
  };
  const Right right_;
  std::map<SequenceId, Text> texts_;
};

// A step reads weights in 2.9 ms, as long as 260 tokens are multiplied; or each token counts.
int64_t flat_us(const step::StepPlan& plan) {
  const double noise = 0.03 * (static_cast<double>(plan.id * 2654435761u % 201) / 100 - 1);
  return static_cast<int64_t>(std::max(2900.0, 11.1 * plan.num_tokens()) * (1 + noise));
}
int64_t steep_us(const step::StepPlan& plan) {
  return 1000 + 900 * plan.num_tokens();
}

struct Machine {
  int64_t (*law)(const step::StepPlan&) = flat_us;
  int32_t num_sequences = 1;
  int32_t num_output = 1000;
};
struct Ran {
  double us = 0;
  int64_t num_asked = 0;
  SchedStats stats;
};
Ran run(const Machine& machine, bool has_drafts, Right right) {
  testing::VirtualClock clock;
  testing::FakeOptions fake;
  fake.capacity = {
      .num_slots = machine.num_sequences,
      .num_blocks = 2 * machine.num_sequences * (machine.num_output / 16 + 6),
      .block_size = 16,
      .max_tokens_per_step = 4096 + machine.num_sequences,
      .max_seq_len = 4096,
      .vocab_size = kVocabulary,
      .max_in_flight = 2,
      .drafts = {.max_draft = has_drafts ? kSize : 0, .takes_trees = true, .tells_rows = true}};
  fake.clock = &clock;
  fake.duration_us = machine.law;
  SchedSettings settings;
  settings.max_num_seqs = machine.num_sequences;
  settings.max_num_batched_tokens = fake.capacity.max_tokens_per_step;
  settings.enable_prefix_caching = false;
  settings.model_identity = "model";
  settings.pace_drafts = true;
  PathProposer proposer(std::move(right));
  SchedLoop loop(fake, settings, &proposer);
  loop.set_host_us(100);
  loop.set_check_every(50);
  for (int32_t i = 0; i < machine.num_sequences; ++i) {
    loop.add(testing::test_sequence(static_cast<uint64_t>(i + 1), testing::test_prompt(8, i),
                                    machine.num_output));
  }
  EXPECT_EQ(loop.run(), "");
  return {static_cast<double>(clock.now_us()), proposer.num_asked, loop.scheduler().stats()};
}

TEST(TogetherPacing, WhatIsNoUseCostsNothing) {
  for (const auto law : {flat_us, steep_us}) {
    for (const int32_t n : {1, 8, 32, 256}) {
      const Machine machine = {.law = law, .num_sequences = n, .num_output = n > 100 ? 300 : 1500};
      const double plain = run(machine, false, {}).us;
      for (const double right : {0.0, 0.05}) {
        const Ran ran = run(machine, true, [=](size_t) { return right; });
        std::printf(
            "%s, %d sequences, %.2f right: %.3f of the time, %.3f asked a token\n",
            law == flat_us ? "flat" : "steep", n, right, ran.us / plain,
            static_cast<double>(ran.num_asked) / static_cast<double>(ran.stats.generation_tokens));
        EXPECT_LT(ran.us / plain, 1.01) << n << " " << right;
        EXPECT_GT(ran.stats.drafts, 0u) << "it is tried";
      }
    }
  }
}

// Sequences, and the least gain: 0.6 + 0.36 + 0.2 + 0.1 tokens more a step. Beyond the sequences
// whose trees fit into what a step does anyway, some go without.
TEST(TogetherPacing, WhatIsGoodPays) {
  for (const auto& [n, least] : {std::pair{1, 1.9}, {4, 1.9}, {16, 1.1}}) {
    const Machine machine = {.num_sequences = n, .num_output = 1500};
    const double plain = run(machine, false, {}).us;
    const double gain = plain / run(machine, true, [](size_t) { return 0.6; }).us;
    std::printf("%d sequences: %.2f times as fast\n", n, gain);
    EXPECT_GT(gain, least) << n;
  }
}

// What was no use for long is tried again.
TEST(TogetherPacing, WhatBecomesGoodIsTaken) {
  const Machine machine = {.num_sequences = 2, .num_output = 4000};
  const auto late = [](size_t at) { return at < 1000 ? 0.0 : 0.7; };
  const double plain = run(machine, false, {}).us;
  const Ran ran = run(machine, true, late);
  std::printf("good from a quarter on: %.2f of the time\n", ran.us / plain);
  EXPECT_LT(ran.us / plain, 0.75);
}

// Near the end of an answer fewer tokens may come than trees were found to have.
TEST(TogetherPacing, NoMoreAreAskedForThanMayCome) {
  StepCost cost;
  for (int64_t tokens = 1; tokens <= 20; ++tokens) cost.observe({.decode_tokens = tokens}, 3000);
  DraftPacer pacer;
  DraftRecord record;
  for (int i = 0; i < 20; ++i) record.note_together(kSize, 3, &pacer.yield());
  for (size_t most = 1; most <= 2 * kSize; ++most) {
    DraftPacer::Offer offer = {.record = &record, .most = most};
    EXPECT_TRUE(pacer.choose_together(std::span(&offer, 1), cost, {.decode_tokens = 1}));
    EXPECT_GT(offer.count, 0u);
    EXPECT_LE(offer.count, most);
  }
}

// A tree has more drafts than a step has ever had, so the first steps verify the beginnings of
// trees.
TEST(TogetherPacing, StepsGrowByAndBy) {
  const Ran ran = run({.num_sequences = 1, .num_output = 300}, true, [](size_t) { return 0.6; });
  EXPECT_GT(ran.stats.draft_tokens, 60u * kSize);
  EXPECT_GT(ran.stats.accepted_tokens, 100u);
}

}  // namespace
}  // namespace rudder::sched
