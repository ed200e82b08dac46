// Trees that the host makes as they come, beside chains, prompts and sequences that take none, and
// those of suffix trees, against plain decoding: the same sequences get the same tokens, logprobs,
// scores and captured rows, bit for bit (step.I11); with every sampling parameter, masks, stops,
// steering, chunks, cached prefixes, preemption, run-ahead, on a device that lags behind, from
// graphs and on ranks.
#include <gtest/gtest.h>

#include "metamorphic/groups.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/draft/suffix_proposer.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/random_proposer.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

using testing::RandomProposer;

constexpr draft::SuffixSettings kBranching = {
    .max_cached_requests = 8, .max_spec_factor = 4, .min_token_prob = 0.02};

// Not every sequence fits at once.
step::Capacity crowded(int32_t max_draft) {
  step::Capacity capacity = kRoomy;
  capacity.num_blocks = 18;
  capacity.max_tokens_per_step = 200;
  capacity.max_repeat = 4;
  capacity.drafts.max_draft = max_draft;
  capacity.drafts.takes_trees = true;
  return capacity;
}

sched::SchedSettings drafting(int32_t budget, int32_t in_flight, bool is_paced) {
  sched::SchedSettings settings;
  settings.max_num_seqs = 16;
  settings.max_num_batched_tokens = budget;
  settings.max_in_flight = in_flight;
  settings.multi_step = 4;
  settings.pace_drafts = is_paced;
  return settings;
}

// Few tokens to choose from: what was said comes again, with this behind it or that.
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

class HostTrees : public ::testing::TestWithParam<Pair> {
 protected:
  static testing::TinyArch arch() { return std::get<1>(GetParam()); }
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }
  void SetUp() override {
    if (backend().make()->tree_ops() == nullptr) GTEST_SKIP() << "it takes no trees";
    if (!model::runs_trees(testing::tiny_spec(arch()))) GTEST_SKIP() << "it sees no whole paths";
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

TEST_P(HostTrees, AsPlainDecoding) {
  const step::Capacity roomy = with_encodes(kRoomy, arch());
  std::vector<Ask> asks = repeating_asks(16, 191);
  add_random_taps(std::span(asks).first(8), roomy, 9);
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), roomy), asks);
  const auto whole = wholes(asks, plain);
  uint64_t num_preemptions = 0;
  for (const int32_t max_draft : {6, 24}) {
    for (const Way& way : ways()) {
      for (const bool is_paced : {false, true}) {
        RandomProposer proposer(
            5, 160, [&](sched::SequenceId id) { return std::span<const int32_t>(whole[id.value]); },
            testing::RandomDrafts::kTreesOfOdds);
        const auto executor =
            tiny_executor(way.device, arch(), with_encodes(crowded(max_draft), arch()));
        const Outcome outcome =
            run(*executor, drafting(way.budget, way.in_flight, is_paced), asks, &proposer);
        expect_same(plain, outcome.got, way.device.name);
        EXPECT_EQ(outcome.lost_tokens, 0);
        num_preemptions += outcome.stats.preemptions;
        if (is_paced) continue;
        EXPECT_GE(outcome.tree_steps, 20);
        EXPECT_GE(outcome.masked_trees, 20);
        EXPECT_GT(outcome.stats.accepted_tokens, 50u);
      }
    }
  }
  EXPECT_GT(num_preemptions, 0u);
}

TEST_P(HostTrees, OfSuffixesAsPlainDecoding) {
  const step::Capacity roomy = with_taps(kRoomy, arch());
  std::vector<Ask> asks = repeating_asks(16, 192);
  add_random_taps(std::span(asks).first(6), roomy, 4);
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), roomy), asks);
  for (const Way& way : ways()) {
    for (const bool is_paced : {false, true}) {
      draft::SuffixProposer proposer(kBranching, 1 << 24);
      const auto executor = tiny_executor(way.device, arch(), with_taps(crowded(20), arch()));
      const Outcome outcome =
          run(*executor, drafting(way.budget, way.in_flight, is_paced), asks, &proposer);
      expect_same(plain, outcome.got, way.device.name);
      EXPECT_EQ(outcome.lost_tokens, 0);
      if (is_paced) continue;
      EXPECT_GT(outcome.tree_steps, 20);
      EXPECT_GT(outcome.stats.accepted_tokens, 50u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, HostTrees,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kThird)), pair_name);
INSTANTIATE_TEST_SUITE_P(Full, HostTrees,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kThird)), pair_name);

// Of suffixes: trees, and chains of every length beside them, which are then trees of one path
// where they are long. Sequences come while others run, so some trees are beside prompts.
TEST(HostTreeGraphs, AreReplayed) {
  const auto arch = testing::TinyArch::kPreNorm;
  for (const bool has_taps : {false, true}) {
    const step::Capacity roomy = has_taps ? with_encodes(kRoomy, arch) : kRoomy;
    std::vector<Ask> asks = repeating_asks(9, 194);
    if (has_taps) add_random_taps(std::span(asks).first(4), roomy, 6);
    const std::vector<Got> plain = run_alone(*tiny_executor(backends()[1], arch, roomy), asks);
    const Backend taped = {"tape", [] { return testing::make_tape_ops(backends()[1].make()); }};
    draft::SuffixProposer proposer(kBranching, 1 << 24);
    step::Capacity capacity = has_taps ? with_encodes(crowded(24), arch) : crowded(24);
    capacity.num_blocks = 100;
    const auto executor = tiny_executor(taped, arch, capacity);
    const Outcome outcome = run(*executor, drafting(200, 3, false), asks, &proposer);
    expect_same(plain, outcome.got, has_taps ? "graphs with taps" : "graphs");
    EXPECT_GT(outcome.tree_steps, 20);
    if (has_taps) {  // the first step with some rare taps runs op by op
      EXPECT_GT(3 * outcome.tree_graph_steps, outcome.tree_steps);
    } else {
      EXPECT_GT(4 * outcome.tree_graph_steps, 3 * outcome.tree_steps);
    }
  }
}

// Prompts that are cut while others verify trees: steps of the same numbers of tokens, with other
// trees in each, or none.
TEST(HostTreeGraphs, PromptsBesideTreesAsPlain) {
  const auto arch = testing::TinyArch::kPreNorm;
  const Backend& plain_backend = backends()[1];
  for (const bool has_taps : {false, true}) {
    const step::Capacity roomy = has_taps ? with_encodes(kRoomy, arch) : kRoomy;
    std::vector<Ask> asks = random_asks(48, 195, 60);
    for (size_t i = 0; i < asks.size(); ++i) {
      Ask& ask = asks[i];
      ask.sampling.num_prompt_logprobs = -1;
      ask.sampling.logit_bias = {{7, 40.0f}, {9, 40.5f}, {11, 39.5f}};
      for (int32_t t = 0; t < 90; ++t) ask.prompt.push_back(static_cast<int32_t>(i + t) % 160);
      ask.max_len += 90;
      ask.arrival = static_cast<int32_t>(i / 4 * 9);
    }
    if (has_taps) add_random_taps(std::span(asks).first(4), roomy, 6);
    const std::vector<Got> plain = run_alone(*tiny_executor(plain_backend, arch, roomy), asks);
    const Backend taped = {"tape", [&] { return testing::make_tape_ops(plain_backend.make()); }};
    step::Capacity capacity = has_taps ? with_encodes(crowded(12), arch) : crowded(12);
    capacity.num_blocks = 200;
    capacity.max_repeat = 1;
    draft::SuffixProposer proposer(kBranching, 1 << 24);
    sched::SchedSettings settings = drafting(140, 2, false);
    settings.multi_step = 1;
    settings.max_num_seqs = 8;
    const Outcome outcome = run(*tiny_executor(taped, arch, capacity), settings, asks, &proposer);
    expect_same(plain, outcome.got, has_taps ? "taps" : "no taps");
    EXPECT_GT(outcome.trees_beside_prompts, 10);
    EXPECT_GT(outcome.trees_beside_prompts_graphs, has_taps ? 0 : 2);
  }
}

TEST(HostTreesOnRanks, AsPlainDecoding) {
  const std::vector<Ask> asks = repeating_asks(10, 196);
  for (const int32_t num_ranks : {2, 4}) {
    const auto arch = testing::TinyArch::kPreNorm;
    const RankBackend& backend = rank_backends()[static_cast<size_t>(num_ranks / 2 % 2)];
    const std::vector<Got> plain =
        run_alone(*tiny_group(backend, arch, kRoomy, {.num_ranks = num_ranks}), asks);
    draft::SuffixProposer proposer(kBranching, 1 << 24);
    const auto executor = tiny_group(backend, arch, crowded(20), {.num_ranks = num_ranks});
    const Outcome outcome = run(*executor, drafting(90, 2, false), spread_asks(asks), &proposer);
    expect_same(plain, outcome.got, "ranks");
    EXPECT_GT(outcome.tree_steps, 10);
    EXPECT_GT(outcome.stats.accepted_tokens, 20u);
  }
}

}  // namespace
}  // namespace rudder::metamorphic
