// Trees that the host makes, and lookahead decoding, against plain decoding: the same sequences get
// the same tokens, logprobs, scores and captured rows, bit for bit (step.I11); with every sampling
// parameter, masks, stops, steering, chunks, cached prefixes, preemption, run-ahead, on a device
// that lags behind, from graphs and on ranks. And what is told of rows is what the model says.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "metamorphic/groups.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/draft/lookahead_proposer.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/random_proposer.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

using testing::RandomProposer;

constexpr draft::LookaheadSettings kSettings = {.window = 5, .ngram = 3, .candidates = 4};

// Not every sequence fits at once.
step::Capacity tight(int32_t max_draft, bool has_trees) {
  step::Capacity capacity = kRoomy;
  capacity.num_blocks = 18;
  capacity.max_tokens_per_step = 200;
  capacity.max_repeat = 4;
  capacity.drafts.max_draft = max_draft;
  capacity.drafts.takes_trees = capacity.drafts.tells_rows = has_trees;
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

// Few tokens to choose from: what was said comes again.
std::vector<Ask> repeating_asks(int count, uint32_t seed) {
  std::vector<Ask> asks = random_masked_asks(count, seed, 100);
  for (size_t i = 0; i < asks.size(); ++i) {
    if (i % 3 == 1) asks[i].mask = nullptr;
    if (asks[i].mask == nullptr) {
      asks[i].sampling.logit_bias = {{7, 40.0f}, {9, 40.5f}, {11, 39.5f}};
    }
    asks[i].arrival = static_cast<int32_t>(i / 8 * 10);
  }
  return asks;
}

class Lookahead : public ::testing::TestWithParam<Pair> {
 protected:
  static testing::TinyArch arch() { return std::get<1>(GetParam()); }
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }
  static bool has_trees() {
    return backend().make()->tree_ops() != nullptr && model::runs_trees(testing::tiny_spec(arch()));
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
    return {{backend(), 200, 1}, {backend(), 60, 3}, {async_taped, 90, 3}};
  }
};

TEST_P(Lookahead, TreesOfTheHostAsPlainDecoding) {
  if (!has_trees()) GTEST_SKIP() << "it takes no trees";
  const step::Capacity roomy = with_encodes(kRoomy, arch());
  std::vector<Ask> asks = repeating_asks(16, 91);
  add_random_taps(std::span(asks).first(8), roomy, 9);
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), roomy), asks);
  const auto whole = wholes(asks, plain);
  uint64_t num_preemptions = 0;
  for (const int32_t max_draft : {6, 24}) {
    for (const Way& way : ways()) {
      for (const bool is_paced : {false, true}) {
        RandomProposer proposer(
            5, 160, [&](sched::SequenceId id) { return std::span<const int32_t>(whole[id.value]); },
            testing::RandomDrafts::kTreesThatLearn);
        const auto executor =
            tiny_executor(way.device, arch(), with_encodes(tight(max_draft, true), arch()));
        const Outcome outcome =
            run(*executor, settings(way.budget, way.in_flight, is_paced), asks, &proposer);
        expect_same(plain, outcome.got, way.device.name);
        EXPECT_EQ(outcome.lost_tokens, 0);
        num_preemptions += outcome.stats.preemptions;
        if (is_paced) continue;
        EXPECT_GT(proposer.num_told(), 50);
        EXPECT_GT(outcome.masked_trees, 20);
        EXPECT_GT(outcome.stats.accepted_tokens, 50u);
      }
    }
  }
  EXPECT_GT(num_preemptions, 0u);
}

// Also where there are no trees: then it verifies n-grams of what was said, as chains.
TEST_P(Lookahead, AsPlainDecoding) {
  const step::Capacity roomy = with_taps(kRoomy, arch());
  std::vector<Ask> asks = repeating_asks(16, 92);
  add_random_taps(asks, roomy, 4);
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), roomy), asks);
  for (const Way& way : ways()) {
    for (const bool is_paced : {false, true}) {
      draft::LookaheadProposer proposer(kSettings, 1 << 20);
      const step::Capacity capacity = with_taps(tight(kSettings.num_drafts(), has_trees()), arch());
      const auto executor = tiny_executor(way.device, arch(), capacity);
      const Outcome outcome =
          run(*executor, settings(way.budget, way.in_flight, is_paced), asks, &proposer);
      expect_same(plain, outcome.got, way.device.name);
      EXPECT_EQ(outcome.lost_tokens, 0);
      EXPECT_EQ(proposer.bytes(), 0);
      if (is_paced) continue;
      EXPECT_GT(outcome.stats.accepted_tokens, 50u);
    }
  }
}

// Notes what it hands on, and what it is told.
class Noting final : public sched::DraftProposer {
 public:
  struct Note {
    std::vector<int32_t> text;
    sched::Draft draft;
    std::vector<int32_t> rows;
  };
  void begin(const sched::NewSequence& sequence) override { inner_.begin(sequence); }
  void end(sched::SequenceId id, std::span<const int32_t> tokens) override {
    inner_.end(id, tokens);
  }
  bool waits(sched::SequenceId) override { return true; }
  bool learns() const override { return true; }
  void propose(sched::SequenceId id, std::span<const int32_t> tokens, const sched::DraftAsk& ask,
               sched::Draft* draft) override {
    inner_.propose(id, tokens, ask, draft);
    last_[id] = {{tokens.begin(), tokens.end()}, *draft, {}};
  }
  void note_rows(sched::SequenceId id, std::span<const int32_t> rows) override {
    inner_.note_rows(id, rows);
    notes.push_back(last_.at(id));
    notes.back().rows.assign(rows.begin(), rows.end());
  }

  std::vector<Note> notes;

 private:
  draft::LookaheadProposer inner_{kSettings, 1 << 20};
  std::map<sched::SequenceId, Note> last_;
};

// Behind each row, also of a sequence that samples otherwise, stands the token that a greedy
// sequence of the row's path would have: of rejected rows all, of others where the sequence is
// greedy.
TEST_P(Lookahead, RowsTellWhatTheModelSays) {
  if (!has_trees()) GTEST_SKIP() << "it takes no trees";
  std::vector<Ask> asks = random_asks(4, 93, 24);
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i].sampling = {};
    asks[i].sampling.seed = i;
    asks[i].sampling.temperature = i % 2 == 0 ? 0.0f : 1.5f;
    if (i == 3) asks[i].sampling.repetition_penalty = 1.8f;
  }
  for (const Way& way : ways()) {
    Noting proposer;
    const auto executor = tiny_executor(way.device, arch(), tight(kSettings.num_drafts(), true));
    run(*executor, settings(way.budget, way.in_flight, false), asks, &proposer);
    ASSERT_GT(proposer.notes.size(), 20u);
    std::vector<Ask> alone;
    std::vector<int32_t> told;
    for (size_t n = 0; n < proposer.notes.size(); n += 5) {
      const auto& [text, draft, rows] = proposer.notes[n];
      ASSERT_EQ(std::ssize(rows), 1 + draft.tree.size());
      int32_t last = 0;  // of the rows that were sampled
      std::set<int32_t> sampled = {0};
      for (int32_t row = 1; row <= draft.tree.size(); ++row) {
        const bool is_sampled =
            draft.tree.parent(row) == last &&
            draft.tokens[static_cast<size_t>(row - 1)] == rows[static_cast<size_t>(last)];
        if (is_sampled) sampled.insert(last = row);
      }
      for (int32_t row = 0; row <= draft.tree.size(); ++row) {
        if (sampled.contains(row)) continue;
        std::vector<int32_t> path;
        for (int32_t on = row; on > 0; on = draft.tree.parent(on)) {
          path.insert(path.begin(), draft.tokens[static_cast<size_t>(on - 1)]);
        }
        Ask& ask = alone.emplace_back();
        ask.prompt = text;
        ask.prompt.insert(ask.prompt.end(), path.begin(), path.end());
        ask.max_len = static_cast<int32_t>(ask.prompt.size()) + 1;
        ask.sampling.temperature = 0;
        told.push_back(rows[static_cast<size_t>(row)]);
      }
    }
    const std::vector<Got> got = run_alone(*tiny_executor(backend(), arch(), kRoomy), alone);
    ASSERT_GT(got.size(), 30u);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].tokens.front(), told[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, Lookahead, ::testing::ValuesIn(daily_pairs(all_backends())),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Full, Lookahead, ::testing::ValuesIn(other_pairs(all_backends())),
                         pair_name);

// Steps of trees are replayed, those of constrained sequences too.
TEST(LookaheadGraphs, AreReplayed) {
  const auto arch = testing::TinyArch::kPreNorm;
  const std::vector<Ask> asks = repeating_asks(9, 94);
  const std::vector<Got> plain = run_alone(*tiny_executor(backends()[1], arch, kRoomy), asks);
  const Backend taped = {"tape", [] { return testing::make_tape_ops(backends()[1].make()); }};
  draft::LookaheadProposer proposer(kSettings, 1 << 20);
  const auto executor = tiny_executor(taped, arch, tight(kSettings.num_drafts(), true));
  const Outcome outcome = run(*executor, settings(200, 3, false), asks, &proposer);
  expect_same(plain, outcome.got, "graphs");
  EXPECT_GT(outcome.stats.drafts, 20u);
  EXPECT_GT(outcome.masked_trees, 20);
  EXPECT_GT(3 * outcome.graph_steps, 2 * outcome.steps);
}

TEST(LookaheadOnRanks, AsPlainDecoding) {
  const std::vector<Ask> asks = repeating_asks(10, 95);
  for (const int32_t num_ranks : {2, 4}) {
    const auto arch = testing::TinyArch::kPreNorm;
    const RankBackend& backend = rank_backends()[static_cast<size_t>(num_ranks / 2 % 2)];
    const std::vector<Got> plain =
        run_alone(*tiny_group(backend, arch, kRoomy, {.num_ranks = num_ranks}), asks);
    draft::LookaheadProposer proposer(kSettings, 1 << 20);
    const auto executor =
        tiny_group(backend, arch, tight(kSettings.num_drafts(), true), {.num_ranks = num_ranks});
    const Outcome outcome = run(*executor, settings(90, 2, false), spread_asks(asks), &proposer);
    expect_same(plain, outcome.got, "ranks");
    EXPECT_GT(outcome.stats.accepted_tokens, 20u);
  }
}

}  // namespace
}  // namespace rudder::metamorphic
