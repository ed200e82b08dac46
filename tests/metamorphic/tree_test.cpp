// Trees of drafts against plain decoding: the same sequences get the same tokens, logprobs, scores
// and captured rows, bit for bit, whatever the tree (step.I11); with every sampling parameter,
// masks, stops, steering, chunks, cached prefixes, preemption, run-ahead, on a device that lags
// behind and on ranks.
#include <gtest/gtest.h>

#include "metamorphic/groups.h"
#include "metamorphic/guess_notes.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "metamorphic/tree_guesser.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

// Not every sequence fits at once.
step::Capacity tight(const step::DraftTree& tree) {
  step::Capacity capacity = kRoomy;
  capacity.num_blocks = 18;
  capacity.max_tokens_per_step = 200;
  capacity.max_repeat = 4;
  capacity.drafts.max_draft = tree.size();
  capacity.drafts.takes_trees = true;
  capacity.drafts.guess_tree = tree;
  return capacity;
}

class Trees : public ::testing::TestWithParam<Pair> {
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
    int32_t num_drafts;
  };
  static std::vector<Way> ways() {
    const Backend async_taped = {
        "async_tape",
        [] { return testing::make_async_ops(testing::make_tape_ops(backend().make())); }};
    return {{backend(), 200, 1, 63},
            {backend(), 60, 3, 9},
            {async_taped, 90, 3, 20},
            {backend(), 120, 2, 4}};
  }

  static bool has_masks(const std::vector<Ask>& asks) {
    return std::ranges::any_of(asks, [](const Ask& ask) { return ask.mask != nullptr; });
  }

  void expect_as_plain(const std::vector<Ask>& asks, const std::vector<Got>& plain, bool has_taps) {
    uint64_t num_preemptions = 0;
    uint64_t seed = 1;
    for (const Way& way : ways()) {
      for (const bool is_paced : {false, true}) {
        const step::DraftTree tree = testing::random_tree(++seed, way.num_drafts);
        const step::Capacity capacity = has_taps ? with_encodes(tight(tree), arch()) : tight(tree);
        const auto executor = tiny_executor(way.device, arch(), capacity);
        TreeGuesser guesser(*executor, tree, wholes_by_seed(asks, plain), seed);
        const Outcome outcome =
            run(guesser, tree_settings(way.budget, way.in_flight, is_paced), asks);
        expect_same(plain, outcome.got, way.device.name);
        num_preemptions += outcome.stats.preemptions;
        EXPECT_EQ(outcome.lost_tokens, 0);
        if (is_paced) continue;
        EXPECT_GT(outcome.stats.accepted_tokens, 50u);
        EXPECT_GT(guesser.num_trees, 50);
        EXPECT_EQ(outcome.masked_trees > 0, has_masks(asks));
        EXPECT_EQ(guesser.num_replayed > 0, way.device.make()->graph_ops() != nullptr);
      }
    }
    EXPECT_GT(num_preemptions, 0u);
  }
};

TEST_P(Trees, AsPlainDecoding) {
  std::vector<Ask> asks = random_masked_asks(20, 61, 110);
  for (size_t i = 0; i < asks.size(); ++i) {
    if (i % 6 == 1) asks[i].mask = nullptr;
  }
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), kRoomy), asks);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 10 * 10);
  expect_as_plain(asks, plain, false);
}

TEST_P(Trees, SteeredAndCapturedAsPlainDecoding) {
  const step::Capacity roomy = with_encodes(kRoomy, arch());
  std::vector<Ask> asks = random_asks(15, 62, 100);
  add_random_taps(asks, roomy, 9);
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), roomy), asks);
  expect_as_plain(asks, plain, true);
}

// With a right draft in every layer of the tree, a lone sequence takes as few steps as it can.
TEST_P(Trees, RightOnesSaveSteps) {
  std::vector<Ask> asks = random_asks(4, 17, 80);
  asks.resize(1);
  asks[0].sampling.stop_ids.clear();
  asks[0].max_len = static_cast<int32_t>(asks[0].prompt.size()) + 61;
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), kRoomy), asks);
  // Each second child goes on: 2, 4, 6, 8, 10.
  step::DraftTree tree;
  for (int32_t row = 0; row < 10; row += 2) {
    tree.add(row);
    tree.add(row);
  }
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = tree.size();
  capacity.drafts.takes_trees = true;
  const auto executor = tiny_executor(backend(), arch(), capacity);
  TreeGuesser guesser(*executor, tree, wholes_by_seed(asks, plain), 5);
  guesser.is_right = [](int32_t row) { return row % 2 == 0; };
  const Outcome outcome = run(guesser, tree_settings(96, 3), asks);
  expect_same(plain, outcome.got, "right drafts");
  // The prompt and its first token, then six a step. The last eleven tokens take more steps: a tree
  // has the places of a chain of as many drafts, and the answer has no more.
  EXPECT_EQ(outcome.stats.steps, 1u + 48 / 6 + 4);
  EXPECT_EQ(outcome.stats.accepted_tokens, 60u - 48 / 6 - 4);
}

INSTANTIATE_TEST_SUITE_P(Tiny, Trees,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kSecond)),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Full, Trees,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kSecond)),
                         pair_name);

// Each rank moves the KV of its own heads.
TEST(TreesOnRanks, AsPlainDecoding) {
  std::vector<Ask> asks = random_masked_asks(10, 63, 40);
  for (const int32_t num_ranks : {2, 4}) {
    const auto arch = testing::TinyArch::kPreNorm;
    const RankBackend& backend = rank_backends()[static_cast<size_t>(num_ranks / 2 % 2)];
    const std::vector<Got> plain =
        run_alone(*tiny_group(backend, arch, kRoomy, {.num_ranks = num_ranks}), asks);
    const step::DraftTree tree = testing::random_tree(3, 12);
    const auto executor = tiny_group(backend, arch, tight(tree), {.num_ranks = num_ranks});
    TreeGuesser guesser(*executor, tree, wholes_by_seed(asks, plain), 7);
    const Outcome outcome = run(guesser, tree_settings(90, 2), spread_asks(asks));
    expect_same(plain, outcome.got, "ranks");
    EXPECT_GT(guesser.num_trees, 20);
    EXPECT_GT(outcome.stats.accepted_tokens, 20u);
  }
}

}  // namespace
}  // namespace rudder::metamorphic
