// Medusa heads against plain decoding: the same sequences get the same tokens, logprobs, scores and
// captured rows, bit for bit (step.I11), and what heads guess depends on the tokens alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "metamorphic/guess_checks.h"
#include "metamorphic/guess_notes.h"
#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"

namespace rudder::metamorphic {
namespace {

class MedusaDrafts : public ::testing::TestWithParam<Pair> {
 protected:
  static testing::TinyArch arch() { return std::get<1>(GetParam()); }
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }
};

TEST_P(MedusaDrafts, AsPlainDecoding) {
  if (backend().make()->draft_ops() == nullptr) GTEST_SKIP() << "it runs no draft heads";
  const auto make = [](const GuessWay& way, const step::Capacity& capacity) {
    return medusa_executor(way.device, arch(), way.in_flight == 1, capacity);
  };
  expect_text_of_plain_decoding(GetParam(), 80, make);
}

TEST_P(MedusaDrafts, GuessesDependOnTheTokensAlone) {
  if (backend().make()->draft_ops() == nullptr) GTEST_SKIP() << "it runs no draft heads";
  const auto make = [](const GuessWay& way, const step::Capacity& capacity) {
    return medusa_executor(way.device, arch(), false, capacity);
  };
  expect_guesses_of_tokens_alone(GetParam(), make);
}

// Of a tree each node is a head's token of its rank; along the likeliest ones it is the chain. A
// device that has graphs replays them.
TEST_P(MedusaDrafts, TreesAsPlainDecoding) {
  if (backend().make()->tree_ops() == nullptr) GTEST_SKIP() << "it takes no trees";
  if (!model::runs_trees(testing::tiny_spec(arch()))) GTEST_SKIP() << "it sees no whole paths";
  std::vector<Ask> asks = random_masked_asks(14, 82, 70);
  add_random_taps(asks, with_encodes(kRoomy, arch()), 4);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 8 * 10);
  const std::vector<Got> plain =
      run_alone(*tiny_executor(backend(), arch(), with_encodes(kRoomy, arch())), asks);
  GuessNotes::Notes notes[2];  // of chains, of trees
  for (const bool is_tree : {false, true}) {
    for (const GuessWay& way : guess_ways(backend())) {
      const auto executor =
          medusa_executor(way.device, arch(), way.in_flight == 1, with_encodes(kGuessTight, arch()),
                          is_tree ? bushy_tree() : step::RankedTree());
      GuessNotes noting(*executor);
      const Outcome outcome = run(noting, guess_settings(way), asks);
      expect_same(plain, outcome.got, way.device.name + " Medusa heads");
      EXPECT_GT(outcome.stats.draft_tokens, 500u);
      if (way.in_flight == 1) notes[is_tree ? 1 : 0] = noting.notes;
      if (!is_tree) continue;
      EXPECT_GT(noting.tree_steps, 20);
      const bool has_graphs = way.device.make()->graph_ops() != nullptr;
      EXPECT_GE(noting.tree_graph_steps, has_graphs ? noting.tree_steps * 2 / 5 : 0);
      EXPECT_LT(noting.tree_graph_steps, noting.tree_steps);  // not beside prompts
    }
  }
  size_t num_compared = 0;
  for (const auto& [behind, guess] : notes[1]) {
    const auto chain = notes[0].find(behind);
    if (chain == notes[0].end()) continue;
    constexpr std::array<size_t, 4> kLikeliest = {0, 3, 9, 11};  // of each depth, as drafts
    for (size_t depth = 0; depth < kLikeliest.size(); ++depth) {
      if (kLikeliest[depth] >= guess.size() || depth >= chain->second.size()) continue;
      EXPECT_EQ(guess[kLikeliest[depth]], chain->second[depth]);
      ++num_compared;
    }
    if (guess.size() < 6) continue;
    EXPECT_EQ(std::set<int32_t>(guess.begin(), guess.begin() + 3).size(), 3u);
    EXPECT_EQ(guess[3], guess[5]);  // the second head's likeliest, behind different ones
  }
  EXPECT_GT(num_compared, 100u);
}

TEST(MedusaHeads, WhatTheyWereNotMadeForIsRefused) {
  const model::ModelSpec target = testing::tiny_spec(testing::TinyArch::kPreNorm);
  const auto refusal = [&](auto change, int32_t max_draft = 5) {
    model::MedusaSpec heads = testing::tiny_medusa_spec(false);
    change(heads);
    const auto fits = model::fit_medusa(target, max_draft, heads);
    return fits ? std::string() : fits.error().to_string();
  };
  EXPECT_EQ(refusal([](model::MedusaSpec&) {}), "");
  const std::string width = refusal([](model::MedusaSpec& heads) { heads.hidden = 65; });
  EXPECT_NE(width.find("speculative-config.model"), std::string::npos);
  EXPECT_NE(width.find("the heads read rows of 65, the model's have 64"), std::string::npos);
  const std::string vocab = refusal([](model::MedusaSpec& heads) { heads.vocab = 161; });
  EXPECT_NE(vocab.find("speculative-config.model"), std::string::npos);
  EXPECT_NE(vocab.find("the heads are of 161 tokens, the model of 160"), std::string::npos);
  const std::string drafts = refusal([](model::MedusaSpec&) {}, 6);
  EXPECT_NE(drafts.find("speculative-config.num_speculative_tokens"), std::string::npos);
  EXPECT_NE(drafts.find("6 drafts are asked for, there are 5 heads"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Tiny, MedusaDrafts,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kFirst)), pair_name);
INSTANTIATE_TEST_SUITE_P(Full, MedusaDrafts,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kFirst)), pair_name);

}  // namespace
}  // namespace rudder::metamorphic
