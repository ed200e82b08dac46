// Medusa heads against plain decoding: the same sequences get the same tokens, logprobs, scores and
// captured rows, bit for bit (step.I11), and what heads guess depends on the tokens alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "metamorphic/guess_notes.h"
#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

// Not every sequence fits at once.
constexpr step::Capacity kTight = {.num_slots = 16,
                                   .num_blocks = 12,
                                   .block_size = 16,
                                   .max_tokens_per_step = 96,
                                   .max_seq_len = 256,
                                   .vocab_size = 160,
                                   .max_in_flight = 3,
                                   .max_repeat = 4,
                                   .max_draft = 5};

sched::SchedSettings settings(int32_t budget, int32_t in_flight) {
  sched::SchedSettings settings;
  settings.max_num_seqs = 16;
  settings.max_num_batched_tokens = budget;
  settings.max_in_flight = in_flight;
  settings.multi_step = 4;
  return settings;
}

class MedusaDrafts : public ::testing::TestWithParam<Pair> {
 protected:
  static testing::TinyArch arch() { return std::get<1>(GetParam()); }
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }
  // Windows give blocks back, so that all sequences fit.
  static bool may_preempt() { return !testing::has_windows(arch()); }

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
};

TEST_P(MedusaDrafts, AsPlainDecoding) {
  if (!backend().make()->runs_draft_heads()) GTEST_SKIP() << "it runs no draft heads";
  std::vector<Ask> asks = random_masked_asks(14, 80, 70);
  add_random_taps(asks, with_encodes(kRoomy, arch()), 4);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 8 * 10);
  const std::vector<Got> plain =
      run_alone(*tiny_executor(backend(), arch(), with_encodes(kRoomy, arch())), asks);
  uint64_t num_preemptions = 0;
  for (const bool is_paced : {false, true}) {
    for (const Way& way : ways()) {
      const auto executor =
          medusa_executor(way.device, arch(), way.in_flight == 1, with_encodes(kTight, arch()));
      sched::SchedSettings drafting = settings(way.budget, way.in_flight);
      drafting.pace_drafts = is_paced;
      const Outcome outcome = run(*executor, drafting, asks);
      expect_same(plain, outcome.got, way.device.name + " Medusa heads");
      num_preemptions += outcome.stats.preemptions;
      if (!is_paced) {
        EXPECT_GT(outcome.stats.draft_tokens, 500u);
      }
    }
  }
  if (may_preempt()) {
    EXPECT_GT(num_preemptions, 0u);
  }
}

// Not on the steps that ran them, on what else was in them, on preemption, on which blocks they lie
// in or on who computed these.
TEST_P(MedusaDrafts, GuessesDependOnTheTokensAlone) {
  if (!backend().make()->runs_draft_heads()) GTEST_SKIP() << "it runs no draft heads";
  std::vector<Ask> asks = random_asks(12, 44, 80);
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i].arrival = static_cast<int32_t>(i / 6 * 12);
    asks[i].prompt[0] = static_cast<int32_t>(i);
  }
  for (size_t i = 0; i < 6; ++i) {  // the same again, from what the first ones left
    asks.push_back(asks[i]);
    asks.back().arrival = 60;
  }
  uint64_t preemptions = 0;
  int64_t cached = 0;
  const auto guesses_of = [&](const Way& way, const step::Capacity& capacity,
                              const std::vector<Ask>& of) {
    const auto executor = medusa_executor(way.device, arch(), false, capacity);
    GuessNotes noting(*executor);
    const Outcome outcome = run(noting, settings(way.budget, way.in_flight), of);
    preemptions += outcome.stats.preemptions;
    for (const Got& got : outcome.got) cached += got.cached_tokens;
    return noting.notes;
  };
  step::Capacity roomy = kRoomy;
  roomy.max_draft = kTight.max_draft;
  GuessNotes::Notes alone;
  for (size_t i = 0; i < 12; ++i) {
    Ask first = asks[i];
    first.arrival = 0;
    alone.merge(guesses_of({backend(), 96, 1}, roomy, {first}));
  }
  EXPECT_EQ(preemptions, 0u);
  EXPECT_EQ(cached, 0);
  const auto expect_same_guesses = [&](const Way& way, const step::Capacity& capacity) {
    size_t num_compared = 0;
    for (const auto& [behind, guess] : guesses_of(way, capacity, asks)) {
      const auto found = alone.find(behind);
      if (found == alone.end()) continue;  // another draft was right by chance
      const size_t count = std::min(guess.size(), found->second.size());
      EXPECT_TRUE(std::equal(guess.begin(), guess.begin() + static_cast<std::ptrdiff_t>(count),
                             found->second.begin()))
          << way.device.name << ", sequence " << behind.first << " behind " << behind.second;
      num_compared += count;
    }
    EXPECT_GT(num_compared, 300u);
  };
  for (const Way& way : ways()) expect_same_guesses(way, kTight);
  if (may_preempt()) {
    EXPECT_GT(preemptions, 0u);
  }
  expect_same_guesses({backend(), 64, 3}, roomy);
  EXPECT_GT(cached, 0);
}

// Of a tree each node is a head's token of its rank; along the likeliest ones it is the chain. A
// device that has graphs replays them.
TEST_P(MedusaDrafts, TreesAsPlainDecoding) {
  if (!backend().make()->takes_trees()) GTEST_SKIP() << "it takes no trees";
  if (!model::runs_trees(testing::tiny_spec(arch()))) GTEST_SKIP() << "it sees no whole paths";
  std::vector<Ask> asks = random_masked_asks(14, 82, 70);
  add_random_taps(asks, with_encodes(kRoomy, arch()), 4);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 8 * 10);
  const std::vector<Got> plain =
      run_alone(*tiny_executor(backend(), arch(), with_encodes(kRoomy, arch())), asks);
  GuessNotes::Notes notes[2];  // of chains, of trees
  for (const bool is_tree : {false, true}) {
    for (const Way& way : ways()) {
      const auto executor =
          medusa_executor(way.device, arch(), way.in_flight == 1, with_encodes(kTight, arch()),
                          is_tree ? bushy_tree() : step::RankedTree());
      GuessNotes noting(*executor);
      const Outcome outcome = run(noting, settings(way.budget, way.in_flight), asks);
      expect_same(plain, outcome.got, way.device.name + " Medusa heads");
      EXPECT_GT(outcome.stats.draft_tokens, 500u);
      if (way.in_flight == 1) notes[is_tree ? 1 : 0] = noting.notes;
      if (!is_tree) continue;
      EXPECT_GT(noting.tree_steps, 20);
      const bool has_graphs = way.device.make()->has_graphs();
      EXPECT_GE(noting.tree_graph_steps, has_graphs ? noting.tree_steps / 2 : 0);
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

INSTANTIATE_TEST_SUITE_P(Tiny, MedusaDrafts, ::testing::ValuesIn(daily_pairs(all_backends())),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Full, MedusaDrafts, ::testing::ValuesIn(other_pairs(all_backends())),
                         pair_name);

}  // namespace
}  // namespace rudder::metamorphic
