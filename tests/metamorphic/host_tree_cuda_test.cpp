// Trees that the host makes as they come, and those of suffix trees, on a GPU whose bits do not
// depend on the batch, against plain decoding, token for token and bit for bit: from graphs, beside
// prompts and chains, and op by op. And passes of a draft head over a tree, from graphs.
#include <gtest/gtest.h>

#include "metamorphic/guess_notes.h"
#include "metamorphic/guessers.h"
#include "metamorphic/small_gpu_model.h"
#include "metamorphic/tree_guesser.h"
#include "rudder/draft/suffix_proposer.h"
#include "rudder/testing/random_proposer.h"

namespace rudder::metamorphic {
namespace {

constexpr draft::SuffixSettings kBranching = {
    .max_cached_requests = 8, .max_spec_factor = 4, .min_token_prob = 0.02};
constexpr auto kArch = testing::TinyArch::kPreNorm;

class HostTreesOnAGpu : public ::testing::TestWithParam<tensor::DType> {
 protected:
  static std::unique_ptr<step::Executor> executor(const step::Capacity& capacity,
                                                  bool enforce_eager) {
    return value_of(start_executor(small_gpu_model(GetParam(), kArch), capacity,
                                   {.enforce_eager = enforce_eager}));
  }
  static step::Capacity with_trees(int32_t max_draft, int32_t num_blocks) {
    step::Capacity capacity = kRoomy;
    capacity.num_blocks = num_blocks;
    capacity.drafts.max_draft = max_draft;
    capacity.drafts.takes_trees = true;
    return capacity;
  }
};

TEST_P(HostTreesOnAGpu, AsPlainDecoding) {
  std::vector<Ask> asks = random_masked_asks(16, 45, 80);
  for (size_t i = 0; i < asks.size(); ++i) {
    if (i % 3 == 1) asks[i].mask = nullptr;
    // Few tokens to choose from: what was said comes again, with this behind it or that.
    if (asks[i].mask == nullptr) {
      asks[i].sampling.logit_bias = {{7, 40.0f}, {9, 40.5f}, {11, 39.5f}};
    }
  }
  const std::vector<Got> plain = run_alone(*executor(kRoomy, true), asks);
  const auto all = wholes(asks, plain);
  for (const bool enforce_eager : {true, false}) {
    const auto whole = [&](sched::SequenceId id) {
      return std::span<const int32_t>(all[id.value]);
    };
    testing::RandomProposer random(11, 160, whole, testing::RandomDrafts::kTreesOfOdds);
    draft::SuffixProposer suffix(kBranching, 1 << 24);
    for (sched::DraftProposer* const proposer :
         std::initializer_list<sched::DraftProposer*>{&random, &suffix}) {
      const std::string what = proposer == &random ? "random trees" : "suffix trees";
      sched::SchedSettings settings = plain_settings();
      settings.max_in_flight = 2;
      settings.enable_prefix_caching = true;
      const Outcome outcome =
          run(*executor(with_trees(24, 40), enforce_eager), settings, asks, proposer);
      expect_same(plain, outcome.got, what);
      EXPECT_GT(outcome.stats.accepted_tokens, 50u);
      EXPECT_GT(outcome.tree_steps, 10) << what;
      EXPECT_TRUE(outcome.masked_trees > 10 || proposer == &suffix) << what;
      if (enforce_eager) {
        EXPECT_EQ(outcome.tree_graph_steps, 0);
      } else {
        EXPECT_GT(4 * outcome.tree_graph_steps, 3 * outcome.tree_steps) << what;
      }
    }
  }
}

TEST_P(HostTreesOnAGpu, PromptsBesideTreesAsPlain) {
  std::vector<Ask> asks = random_asks(48, 195, 60);
  for (size_t i = 0; i < asks.size(); ++i) {
    Ask& ask = asks[i];
    ask.sampling.num_prompt_logprobs = -1;
    ask.sampling.logit_bias = {{7, 40.0f}, {9, 40.5f}, {11, 39.5f}};
    for (size_t t = 0; t < 90; ++t) ask.prompt.push_back(static_cast<int32_t>((i + t) % 160));
    ask.max_len += 90;
    ask.arrival = static_cast<int32_t>(i / 4 * 9);
  }
  const std::vector<Got> plain = run_alone(*executor(kRoomy, true), asks);
  for (const bool enforce_eager : {true, false}) {
    draft::SuffixProposer suffix(kBranching, 1 << 24);
    sched::SchedSettings settings = plain_settings();
    settings.max_num_seqs = 8;
    settings.max_num_batched_tokens = 200;
    settings.max_in_flight = 2;
    const Outcome outcome =
        run(*executor(with_trees(12, 200), enforce_eager), settings, asks, &suffix);
    expect_same(plain, outcome.got, enforce_eager ? "op by op" : "graphs");
    EXPECT_GT(outcome.trees_beside_prompts, 10);
    EXPECT_EQ(outcome.trees_beside_prompts_graphs > 0, !enforce_eager);
  }
}

// What a draft model and heads guess, chains and trees, from the graphs of their passes and op by
// op; padded where there are other numbers of sequences and tokens.
TEST_P(HostTreesOnAGpu, PassesGuessAsOpByOp) {
  std::vector<Ask> asks = random_masked_asks(11, 86, 60);
  // No block is shared by different sequences: its last pair is of the one that wrote it last.
  for (size_t i = 0; i < asks.size(); ++i) asks[i].prompt[0] = static_cast<int32_t>(i);
  for (const Guesser guesser : {Guesser::kOwnEmbedding, Guesser::kProduct, Guesser::kItself}) {
    for (const bool has_tree : {true, false}) {
      const std::string what = guesser_name(guesser) + (has_tree ? ", trees" : ", chains");
      const auto run_with = [&](bool enforce_eager, GuessNotes::Notes* notes) {
        exec::DeviceExecutor::Model model = small_gpu_model(GetParam(), kArch);
        const step::RankedTree tree = has_tree ? bushy_tree() : step::RankedTree();
        const auto change = [](model::DraftHeadSpec& head) {
          use_served_parts(head.layer);
          // The kernels of products take rows of multiples of 16.
          if (!head.is_product()) head.draft_vocab = 48;
        };
        add_guesser(model, model.spec, guesser, change, tree);
        step::Capacity capacity = kRoomy;
        capacity.drafts.max_draft = 5;
        add_guesser(capacity, guesser);
        add_tree(capacity, tree);
        const auto guessing =
            value_of(start_executor(std::move(model), capacity, {.enforce_eager = enforce_eager}));
        GuessNotes noting(*guessing);
        const Outcome outcome = run(noting, tree_settings(96, 2), asks);
        *notes = noting.notes;
        return outcome;
      };
      GuessNotes::Notes of_eager;
      GuessNotes::Notes of_graphs;
      const Outcome eager = run_with(true, &of_eager);
      const Outcome graphs = run_with(false, &of_graphs);
      expect_same(eager.got, graphs.got, what);
      EXPECT_EQ(num_different(of_eager, of_graphs), 0u) << what;
      EXPECT_GT(of_graphs.size(), 40u) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, HostTreesOnAGpu,
                         ::testing::Values(tensor::DType::kBF16, tensor::DType::kF8E4M3),
                         [](const auto& test) {
                           return std::string(tensor::dtype_name(test.param));
                         });

}  // namespace
}  // namespace rudder::metamorphic
