// Trees of the host whose proposer states odds, as suffix trees make: what they cost and bring, by
// virtual clocks. Where what is stated is not so they cost next to nothing; where it is, they bring
// more than the chain of the likeliest tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "rudder/base/philox.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;

constexpr int32_t kTokens = 1000;
constexpr int32_t kBinaryTree = 14;  // drafts of it
constexpr int32_t kChainOfTokens = 8;

// Of a position, how often the token is the first guess, and how often the second.
struct Ranks {
  double first = 0;
  double second = 0;
};

class RankedProposer final : public DraftProposer {
 public:
  RankedProposer(const Ranks& right, const Ranks& stated) : right_(right), stated_(stated) {}

  void begin(const NewSequence& sequence) override {
    const auto run =
        testing::expected_run(sequence.prompt, sequence.sampling, sequence.max_len, kTokens);
    std::vector<int32_t>& whole = wholes_[sequence.id];
    whole = sequence.prompt;
    whole.insert(whole.end(), run.tokens.begin(), run.tokens.end());
  }
  void end(SequenceId id, std::span<const int32_t>) override { wholes_.erase(id); }
  bool waits(SequenceId) override { return true; }
  void propose(SequenceId id, std::span<const int32_t> tokens, const DraftAsk& ask,
               Draft* draft) override {
    const std::vector<int32_t>& whole = wholes_.at(id);
    std::vector<bool> is_right = {true};  // by row
    std::vector<size_t> at = {tokens.size()};
    const auto add = [&](int32_t parent, int32_t rank) {
      const auto behind = static_cast<size_t>(parent);
      const size_t position = at[behind];
      const int32_t right = position < whole.size() ? whole[position] : 0;
      const double draw = philox_uniform(id.value, position, 0);
      const int32_t rank_of_right = draw < right_.first                   ? 0
                                    : draw < right_.first + right_.second ? 1
                                                                          : 2;
      const bool hits = is_right[behind] && rank == rank_of_right && position < whole.size();
      draft->tokens.push_back(hits ? right : (right + 1 + rank) % kTokens);
      draft->odds.push_back(static_cast<float>(rank == 0 ? stated_.first : stated_.second));
      is_right.push_back(hits);
      at.push_back(position + 1);
    };
    if (!ask.takes_tree) {
      for (int32_t row = 0; row < std::min(ask.most, kChainOfTokens); ++row) add(row, 0);
      return;
    }
    for (int32_t row = 0; row < kBinaryTree / 2; ++row) {
      for (int32_t rank = 0; rank < 2 && draft->tree.size() < ask.most; ++rank) {
        add(row, rank);
        draft->tree.add(row);
      }
    }
  }

 private:
  const Ranks right_;
  const Ranks stated_;
  std::map<SequenceId, std::vector<int32_t>> wholes_;
};

// A step reads weights in 2.9 ms, as long as 260 tokens are multiplied; or each token counts.
int64_t reading_us(const step::StepPlan& plan) {
  const double noise = 0.03 * (static_cast<double>(plan.id * 2654435761u % 201) / 100 - 1);
  return static_cast<int64_t>(std::max(2900.0, 11.1 * plan.num_tokens()) * (1 + noise));
}
int64_t counting_us(const step::StepPlan& plan) {
  return 1000 + 900 * plan.num_tokens();
}

struct TreeLoad {
  int64_t (*law)(const step::StepPlan&) = reading_us;
  int32_t num_sequences = 1;
  int32_t num_output = 1000;
  bool takes_trees = true;
};
struct TreeRun {
  double us = 0;
  SchedStats stats;
  int64_t num_trees = 0;  // sequences of steps
};
TreeRun run_with(const TreeLoad& load, bool has_drafts, const Ranks& right, const Ranks& stated) {
  testing::VirtualClock clock;
  testing::FakeOptions fake;
  fake.capacity = {
      .num_slots = load.num_sequences,
      .num_blocks = 2 * load.num_sequences * (load.num_output / 16 + 4),
      .block_size = 16,
      .max_tokens_per_step = 4096 + load.num_sequences,
      .max_seq_len = 4096,
      .vocab_size = kTokens,
      .max_in_flight = 2,
      .drafts = {.max_draft = has_drafts ? kBinaryTree : 0, .takes_trees = load.takes_trees}};
  fake.clock = &clock;
  fake.duration_us = load.law;
  SchedSettings settings;
  settings.max_num_seqs = load.num_sequences;
  settings.max_num_batched_tokens = fake.capacity.max_tokens_per_step;
  settings.enable_prefix_caching = false;
  settings.model_identity = "model";
  settings.pace_drafts = true;
  RankedProposer proposer(right, stated);
  SchedLoop loop(fake, settings, &proposer);
  loop.set_host_us(100);
  loop.set_check_every(50);
  for (int32_t i = 0; i < load.num_sequences; ++i) {
    loop.add(testing::test_sequence(static_cast<uint64_t>(i + 1), testing::test_prompt(8, i),
                                    load.num_output));
  }
  EXPECT_EQ(loop.run(), "");
  TreeRun ran = {static_cast<double>(clock.now_us()), loop.scheduler().stats()};
  for (const auto& plan : loop.plans()) {
    ran.num_trees += std::ranges::count_if(
        plan->seqs, [](const step::SeqWork& work) { return !work.tree.empty(); });
  }
  return ran;
}

TEST(TreePacing, OddsThatAreNotSoCostNothing) {
  for (const auto law : {reading_us, counting_us}) {
    for (const int32_t n : {1, 8, 32, 256}) {
      const TreeLoad load = {.law = law, .num_sequences = n, .num_output = n > 100 ? 300 : 1200};
      const double plain = run_with(load, false, {}, {}).us;
      for (const double right : {0.0, 0.05, 0.2}) {
        const TreeRun ran = run_with(load, true, {right, right / 2}, {0.6, 0.35});
        std::printf("%s, %d sequences, %.2f right: %.3f of the time, %.3f drafts a token\n",
                    law == reading_us ? "flat" : "steep", n, right, ran.us / plain,
                    static_cast<double>(ran.stats.draft_tokens) /
                        static_cast<double>(ran.stats.generation_tokens));
        EXPECT_LT(ran.us / plain, 1.01) << n << " " << right;
      }
    }
  }
}

// Expected of a tree of 14 with 0.55 and 0.35: 0.9 + 0.81 + 0.73 tokens more a step, where a chain
// of 8 has 1.21.
TEST(TreePacing, ATreePaysMoreThanAChain) {
  for (const auto& [n, least] : {std::pair{1, 2.7}, {8, 2.4}, {32, 1.5}}) {
    const TreeLoad load = {.num_sequences = n, .num_output = 1200};
    const TreeLoad chains = {.num_sequences = n, .num_output = 1200, .takes_trees = false};
    const Ranks ranks = {0.55, 0.35};
    const double plain = run_with(load, false, {}, {}).us;
    const double chain = run_with(chains, true, ranks, ranks).us;
    const TreeRun tree = run_with(load, true, ranks, ranks);
    std::printf("%d sequences: %.2f times as fast with trees, %.2f with chains\n", n,
                plain / tree.us, plain / chain);
    EXPECT_GT(plain / tree.us, least) << n;
    EXPECT_LT(tree.us, chain) << n;
    EXPECT_GT(tree.num_trees, 50);
  }
}

// Drafts of which little is right are verified where it is worth it: with more sequences fewer.
TEST(TreePacing, OfATreeThatWhichPaysIsVerified) {
  double drafts_a_token = 99;
  for (const int32_t n : {1, 64, 256}) {
    const TreeLoad load = {.num_sequences = n, .num_output = n > 100 ? 400 : 1200};
    const TreeRun ran = run_with(load, true, {0.7, 0.1}, {0.7, 0.1});
    const double drafts = static_cast<double>(ran.stats.draft_tokens) /
                          static_cast<double>(ran.stats.generation_tokens);
    std::printf("%d sequences: %.2f drafts a token\n", n, drafts);
    EXPECT_LT(drafts, drafts_a_token) << n;
    drafts_a_token = drafts;
  }
}

}  // namespace
}  // namespace rudder::sched
