// --batch-invariant on a GPU, through the real scheduler and executor: the same sequences alone,
// together, in chunks, preempted, ahead, repeated and with drafts, also in trees, get the same
// tokens and logprobs, bit for bit. In every mode, steps with drafts are the same from graphs and
// op by op. Tiny models of a head_dim that the tuned attention kernels take.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "metamorphic/guess_notes.h"
#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"
#include "metamorphic/served_parts.h"
#include "metamorphic/tap_asks.h"
#include "metamorphic/tree_guesser.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/cuda/cuda_ops.h"
#include "rudder/exec/head_proposer.h"
#include "rudder/exec/medusa_proposer.h"
#include "rudder/exec/model_proposer.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/testing/random_proposer.h"

namespace rudder::metamorphic {
namespace {

using Param = std::tuple<tensor::DType, testing::TinyArch>;

class BatchInvariant : public ::testing::TestWithParam<Param> {
 protected:
  static exec::DeviceExecutor::Model loaded_model(bool batch_invariant) {
    const auto& [dtype, arch] = GetParam();
    cuda::CudaOpsSettings settings;
    settings.linear_dtype = dtype;
    settings.kv = {dtype};
    settings.batch_invariant = batch_invariant;
    settings.tune = batch_invariant;  // measured anew, kernels might be others
    exec::DeviceExecutor::Model model;
    model.ops = value_of(cuda::make_cuda_ops(settings));
    model.spec = spec_with_kernels();
    model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
    return model;
  }

  static std::unique_ptr<step::Executor> executor(step::Capacity capacity,
                                                  bool batch_invariant = true,
                                                  bool enforce_eager = false) {
    exec::DeviceExecutor::Model model = loaded_model(batch_invariant);
    if (capacity.drafts.guesses && !capacity.drafts.looks_up()) {  // the model guesses for itself
      capacity.drafts.keeps_guesses = true;
      model.draft = std::make_unique<exec::ModelProposer>(
          model.spec, value_of(testing::random_weights(model.spec, *model.ops, kModelSeed)));
    }
    return value_of(start_executor(std::move(model), capacity, {.enforce_eager = enforce_eager}));
  }

  static std::unique_ptr<step::Executor> head_executor(step::Capacity capacity,
                                                       testing::TinyHead kind, bool enforce_eager,
                                                       const step::RankedTree& tree = {}) {
    capacity.drafts.keeps_guesses = true;
    add_tree(capacity, tree);
    exec::DeviceExecutor::Model model = loaded_model(true);
    model::DraftHeadSpec head = testing::tiny_head_spec(kind);
    use_served_parts(head.layer);
    // The kernels of products take rows of multiples of 16.
    if (!head.is_product()) head.draft_vocab = 48;
    EXPECT_TRUE(model::fit_draft_head(model.spec, head));
    model.draft = std::make_unique<exec::HeadProposer>(
        head, value_of(testing::random_head_weights(head, *model.ops, 11)), tree);
    return value_of(start_executor(std::move(model), capacity, {.enforce_eager = enforce_eager}));
  }

  static std::unique_ptr<step::Executor> medusa_executor(step::Capacity capacity,
                                                         bool shares_lm_head, bool enforce_eager,
                                                         const step::RankedTree& tree = {},
                                                         bool batch_invariant = true) {
    capacity.drafts.guesses = capacity.drafts.guesses_from_rows = true;
    capacity.drafts.keeps_guesses = true;
    add_tree(capacity, tree);
    exec::DeviceExecutor::Model model = loaded_model(batch_invariant);
    const model::MedusaSpec medusa = testing::tiny_medusa_spec(shares_lm_head);
    model.draft = std::make_unique<exec::MedusaProposer>(
        medusa, value_of(testing::random_medusa_weights(medusa, *model.ops, 12)), tree);
    return value_of(start_executor(std::move(model), capacity, {.enforce_eager = enforce_eager}));
  }

  static std::vector<testing::TinyHead> head_kinds() {
    using enum testing::TinyHead;
    std::vector<testing::TinyHead> kinds = {kOwnEmbedding, kSharedEmbedding, kProduct};
    std::erase_if(kinds, [](testing::TinyHead kind) {
      return !testing::takes_head(spec_with_kernels(), kind);
    });
    return kinds;
  }

  static model::ModelSpec spec_with_kernels() {
    model::ModelSpec spec = testing::tiny_spec(std::get<1>(GetParam()));
    use_served_parts(spec);
    return spec;
  }
  static bool keeps_every_token() {
    return std::ranges::any_of(spec_with_kernels().layers, [](const model::LayerSpec& layer) {
      return model::kv_geometry(layer).window == 0;
    });
  }

  // A draft model keeps KV in one shape.
  static bool may_guess_for_itself() {
    return keeps_every_token() &&
           exec::draft_kv_layout(spec_with_kernels(), {std::get<0>(GetParam())}, 16).has_value();
  }

  static step::Capacity with_taps(step::Capacity capacity) {
    capacity = with_encodes(capacity, std::get<1>(GetParam()));
    capacity.geometry = tapped_geometry(spec_with_kernels(), tensor::DType::kBF16);
    return capacity;
  }
  // Not every sequence fits at once.
  static step::Capacity tight() {
    step::Capacity capacity = kRoomy;
    capacity.num_blocks = 24;
    return capacity;
  }

  // Whatever is guessed for constrained, steered, captured and plain sequences, the text is that of
  // plain decoding; graphs guess as op by op (drafts kept in slots follow where prompts are cut).
  // `make(capacity, kind, enforce_eager)`: an executor with a proposer of that kind.
  template <typename Make, typename Kind>
  static void expect_guessed_as_plain(Make make, std::vector<Kind> kinds,
                                      uint64_t least_drafts = 300) {
    const step::Capacity roomy = with_taps(kRoomy);
    std::vector<Ask> asks = random_masked_asks(16, 43, 80);
    add_random_taps(asks, roomy, 4);
    for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 7 * 12);
    const std::vector<Got> plain = run_alone(*executor(roomy), asks);
    step::Capacity capacity = with_taps(tight());
    capacity.drafts.max_draft = 5;
    capacity.drafts.guesses = true;
    for (const Kind kind : kinds) {
      std::optional<uint64_t> right_eagerly;
      for (const auto& [budget, is_eager] : {std::pair{512, true}, {512, false}, {24, false}}) {
        sched::SchedSettings settings = plain_settings();
        settings.max_num_batched_tokens = budget;
        settings.enable_prefix_caching = budget < 512;
        const auto guesser = make(capacity, kind, is_eager);
        const Outcome outcome = run(*guesser, settings, asks);
        expect_same(plain, outcome.got, "guessed by the executor");
        EXPECT_GT(outcome.stats.draft_tokens, least_drafts);
        if (budget < 512 || guesser->capacity().drafts.looks_up()) continue;
        if (!right_eagerly) right_eagerly = outcome.stats.accepted_tokens;
        EXPECT_EQ(outcome.stats.accepted_tokens, *right_eagerly);
      }
    }
  }

  static void expect_as_alone(const std::vector<Ask>& asks, const Outcome& other) {
    expect_same(run_alone(*executor(kRoomy), asks), other.got, "as alone");
  }
};

TEST_P(BatchInvariant, TogetherAsAlone) {
  const std::vector<Ask> asks = random_asks(16, 1);
  expect_as_alone(asks, run(*executor(kRoomy), plain_settings(), asks));
}

TEST_P(BatchInvariant, ChunkedAsWhole) {
  const std::vector<Ask> asks = random_asks(8, 2);
  for (const int32_t budget : {9, 33}) {
    sched::SchedSettings chunked = plain_settings();
    chunked.max_num_batched_tokens = budget;
    expect_as_alone(asks, run(*executor(kRoomy), chunked, asks));
  }
}

TEST_P(BatchInvariant, PreemptedAheadAndRepeated) {
  const std::vector<Ask> asks = random_asks(24, 4, 100);
  step::Capacity tight = kRoomy;
  tight.num_blocks = 20;
  sched::SchedSettings all = plain_settings();
  all.max_in_flight = 3;
  all.multi_step = 8;
  all.enable_prefix_caching = true;
  const Outcome outcome = run(*executor(tight), all, asks);
  EXPECT_GT(outcome.stats.preemptions, 0u);
  EXPECT_GT(outcome.stats.iterations, outcome.stats.steps);
  expect_as_alone(asks, outcome);
}

// Steered, captured, constrained and plain ones, with drafts of which many are right. Those with
// taps, most of which are rare, end early: the graphs of steps without them, behind, are counted.
std::vector<Ask> drafted_asks(const step::Capacity& capacity) {
  std::vector<Ask> asks = random_masked_asks(16, 6, 80);
  add_random_taps(std::span(asks).first(8), capacity, 9);
  for (Ask& ask : asks) {
    const auto prompt_len = static_cast<int32_t>(ask.prompt.size());
    if (ask.taps != nullptr) ask.max_len = std::min(ask.max_len, prompt_len + 16);
  }
  return asks;
}

struct DraftedRun {
  int32_t max_draft = 0;
  int32_t in_flight = 1;
  uint64_t least_accepted = 20;
};
constexpr DraftedRun kDraftedRuns[] = {{3, 1}, {7, 3}, {20, 3}};

// Steps of several runs: with a few sequences, all steps of one run may have rare taps.
struct StepKinds {
  int64_t rare = 0;
  int64_t usual = 0;
  int64_t usual_graph = 0;

  void add(const Outcome& outcome) {
    rare += outcome.rare_steps;
    usual += outcome.steps - outcome.rare_steps;
    usual_graph += outcome.graph_steps - outcome.rare_graph_steps;
  }
};

void expect_graphs(const StepKinds& steps) {
  EXPECT_GT(steps.rare, 0);
  EXPECT_GT(steps.usual_graph, steps.usual / 2);
}

Outcome run_drafted(step::Executor& executor, const DraftedRun& how, const std::vector<Ask>& asks,
                    const std::vector<std::vector<int32_t>>& whole) {
  testing::RandomProposer proposer(
      11, 160, [&](sched::SequenceId id) { return std::span<const int32_t>(whole[id.value]); });
  sched::SchedSettings settings = plain_settings();
  settings.max_in_flight = how.in_flight;
  settings.enable_prefix_caching = true;
  const Outcome outcome = run(executor, settings, asks, &proposer);
  EXPECT_GT(outcome.stats.accepted_tokens, how.least_accepted);
  EXPECT_GT(outcome.stats.draft_tokens, outcome.stats.accepted_tokens + 50);
  return outcome;
}

TEST_P(BatchInvariant, DraftedAsAlone) {
  const step::Capacity roomy = with_taps(kRoomy);
  const std::vector<Ask> asks = drafted_asks(roomy);
  const std::vector<Got> plain = run_alone(*executor(roomy), asks);
  StepKinds steps;
  for (const DraftedRun& how : kDraftedRuns) {
    step::Capacity capacity = with_taps(tight());
    capacity.drafts.max_draft = how.max_draft;
    const Outcome outcome = run_drafted(*executor(capacity), how, asks, wholes(asks, plain));
    expect_same(plain, outcome.got, "drafts of " + std::to_string(how.max_draft));
    steps.add(outcome);
  }
  expect_graphs(steps);
}

// Of a model that guesses for itself every greedy guess is right, behind chunks, preemptions and
// cached prefixes: its KV is that of the sequence's tokens, its logits are those of the verify.
TEST_P(BatchInvariant, OwnGuessesAreAllRight) {
  if (!may_guess_for_itself()) GTEST_SKIP() << "a draft model has one group, without a window";
  std::vector<Ask> asks = random_asks(16, 41, 80);
  for (size_t i = 0; i < asks.size(); ++i) {
    step::SamplingParams plainly;
    plainly.temperature = i % 3 != 0 ? 0.0f : 0.9f;
    plainly.seed = asks[i].sampling.seed;
    asks[i].sampling = plainly;
    asks[i].arrival = static_cast<int32_t>(i / 7 * 12);
  }
  const std::vector<Got> plain = run_alone(*executor(kRoomy), asks);
  step::Capacity capacity = tight();
  capacity.drafts.max_draft = 5;
  capacity.drafts.guesses = true;
  for (const auto& [budget, enforce_eager] : {std::pair{512, false}, {24, false}, {512, true}}) {
    sched::SchedSettings settings = plain_settings();
    settings.max_num_batched_tokens = budget;
    settings.max_in_flight = 3;
    settings.enable_prefix_caching = true;
    const Outcome outcome = run(*executor(capacity, true, enforce_eager), settings, asks);
    expect_same(plain, outcome.got, "guessed by itself");
    for (size_t i = 0; i < asks.size(); ++i) {
      if (i % 3 == 0) continue;
      EXPECT_EQ(outcome.got[i].num_draft, outcome.got[i].num_accepted) << i;
    }
    EXPECT_GT(outcome.stats.accepted_tokens, 100u);
    EXPECT_GT(outcome.stats.draft_tokens, outcome.stats.accepted_tokens);  // of the sampled
  }
}

TEST_P(BatchInvariant, GuessesOfAModelAsPlainDecoding) {
  if (!may_guess_for_itself()) GTEST_SKIP() << "a draft model has one group, without a window";
  const auto make = [](const step::Capacity& capacity, bool, bool enforce_eager) {
    return executor(capacity, true, enforce_eager);
  };
  expect_guessed_as_plain(make, std::vector{false});
}

TEST_P(BatchInvariant, GuessesOfAHeadAsPlainDecoding) {
  if (!keeps_every_token()) GTEST_SKIP() << "a draft head needs a group without a window";
  const auto make = [](const step::Capacity& capacity, testing::TinyHead kind, bool enforce_eager) {
    return head_executor(capacity, kind, enforce_eager);
  };
  expect_guessed_as_plain(make, head_kinds());
}

TEST_P(BatchInvariant, TreesOfAHeadAsPlainDecoding) {
  if (!model::runs_trees(spec_with_kernels())) GTEST_SKIP() << "it sees no whole paths";
  const auto make = [](const step::Capacity& capacity, testing::TinyHead kind, bool enforce_eager) {
    return head_executor(capacity, kind, enforce_eager, bushy_tree());
  };
  expect_guessed_as_plain(make, head_kinds());
}

TEST_P(BatchInvariant, GuessesOfMedusaHeadsAsPlainDecoding) {
  const auto make = [](const step::Capacity& capacity, bool shares_lm_head, bool enforce_eager) {
    return medusa_executor(capacity, shares_lm_head, enforce_eager);
  };
  expect_guessed_as_plain(make, std::vector{false, true});
}

TEST_P(BatchInvariant, TreesOfMedusaHeadsAsPlainDecoding) {
  if (!model::runs_trees(spec_with_kernels())) GTEST_SKIP() << "it sees no whole paths";
  const auto make = [](const step::Capacity& capacity, bool, bool enforce_eager) {
    return medusa_executor(capacity, false, enforce_eager, bushy_tree());
  };
  expect_guessed_as_plain(make, std::vector{false});
}

// Prompt lookup, whose drafts stay on the device: one step at a time, and behind steps in flight.
TEST_P(BatchInvariant, WhatIsLookedUpAsPlainDecoding) {
  const auto make = [](step::Capacity capacity, int32_t max_n, bool enforce_eager) {
    capacity.drafts.guesses_from_rows = true;
    capacity.drafts.keeps_guesses = true;
    capacity.drafts.look_up = {.min_n = 1, .max_n = max_n};
    return executor(capacity, true, enforce_eager);
  };
  expect_guessed_as_plain(make, std::vector{1, 3}, 60);  // random texts repeat little

  const step::Capacity roomy = with_taps(kRoomy);
  const std::vector<Ask> asks = drafted_asks(roomy);
  const std::vector<Got> plain = run_alone(*executor(roomy), asks);
  StepKinds steps;
  for (const DraftedRun& how : kDraftedRuns) {
    step::Capacity capacity = with_taps(tight());
    capacity.drafts.max_draft = how.max_draft;
    capacity.drafts.guesses = true;
    sched::SchedSettings settings = plain_settings();
    settings.max_in_flight = how.in_flight;
    settings.enable_prefix_caching = true;
    const Outcome outcome = run(*make(capacity, 3, false), settings, asks);
    expect_same(plain, outcome.got, "guesses of " + std::to_string(how.max_draft));
    EXPECT_GT(outcome.stats.draft_tokens, 30u);
    steps.add(outcome);
  }
  expect_graphs(steps);
}

// Trees of any shape, with as many rows as a tree may have; many of their drafts are right. From
// graphs, and op by op.
TEST_P(BatchInvariant, TreesAsPlainDecoding) {
  if (!model::runs_trees(spec_with_kernels())) GTEST_SKIP() << "it sees no whole paths";
  const step::Capacity roomy = with_taps(kRoomy);
  std::vector<Ask> asks = random_masked_asks(16, 45, 80);
  for (size_t i = 0; i < asks.size(); ++i) {
    if (i % 3 == 1) asks[i].mask = nullptr;  // masks leave a chain of a tree
  }
  add_random_taps(std::span(asks).first(8), roomy, 9);
  const std::vector<Got> plain = run_alone(*executor(roomy), asks);
  for (const auto& [how, enforce_eager] : {std::pair{DraftedRun{63, 1}, true},
                                           {DraftedRun{63, 2}, false},
                                           {DraftedRun{9, 3}, false},
                                           {DraftedRun{20, 2}, true}}) {
    const auto seed = static_cast<uint64_t>(how.max_draft);
    const step::DraftTree tree = testing::random_tree(seed, how.max_draft);
    step::Capacity capacity = with_taps(tight());
    capacity.drafts.max_draft = tree.size();
    capacity.drafts.takes_trees = true;
    capacity.drafts.guess_tree = tree;
    const auto verifying = executor(capacity, true, enforce_eager);
    TreeGuesser guesser(*verifying, tree, wholes_by_seed(asks, plain), seed);
    sched::SchedSettings settings = plain_settings();
    settings.max_in_flight = how.in_flight;
    settings.enable_prefix_caching = true;
    const Outcome outcome = run(guesser, settings, asks);
    expect_same(plain, outcome.got, "trees of " + std::to_string(tree.size()));
    EXPECT_GT(guesser.num_trees, 50);
    EXPECT_GT(outcome.stats.accepted_tokens, 50u);
    EXPECT_EQ(guesser.num_replayed > 0, !enforce_eager);
  }
}

// As DraftedGraphsAsEager, in steps with trees.
TEST_P(BatchInvariant, GraphsOfTreesAsEager) {
  if (!model::runs_trees(spec_with_kernels())) GTEST_SKIP() << "it sees no whole paths";
  const step::Capacity capacity = with_taps(kRoomy);
  const std::vector<Ask> asks = drafted_asks(capacity);
  std::optional<Outcome> eager;
  for (const bool enforce_eager : {true, false}) {
    const auto executor = medusa_executor(capacity, false, enforce_eager, bushy_tree(), false);
    GuessNotes noting(*executor);
    const Outcome outcome = run(noting, plain_settings(), asks);
    EXPECT_GT(noting.tree_steps, 20);
    if (enforce_eager) {
      EXPECT_EQ(noting.tree_graph_steps, 0);
      eager = outcome;
      continue;
    }
    EXPECT_GT(noting.tree_graph_steps, noting.tree_steps / 2);
    expect_same(eager->got, outcome.got, "graphs of trees");
    EXPECT_EQ(eager->stats.accepted_tokens, outcome.stats.accepted_tokens);
  }
}

// In the mode that is not batch-invariant drafts may change bits, so that few of the later ones
// are right; graphs do not. One step at a time, and no prompt is cut for want of room for captures,
// so that the plans of both are the same: with graphs a cut is at a multiple of tokens.
TEST_P(BatchInvariant, DraftedGraphsAsEager) {
  const step::Capacity roomy = with_taps(kRoomy);
  const std::vector<Ask> asks = drafted_asks(roomy);
  const std::vector<Got> plain = run_alone(*executor(roomy, false), asks);
  const auto whole = wholes(asks, plain);
  StepKinds steps;
  for (const int32_t max_draft : {3, 20}) {
    step::Capacity capacity = with_taps(kRoomy);
    capacity.taps.capture_elements = 1 << 20;
    capacity.drafts.max_draft = max_draft;
    const DraftedRun how = {.max_draft = max_draft, .least_accepted = 5};
    const Outcome eager = run_drafted(*executor(capacity, false, true), how, asks, whole);
    const Outcome graphed = run_drafted(*executor(capacity, false, false), how, asks, whole);
    expect_same(eager.got, graphed.got, std::to_string(max_draft) + " drafts");
    EXPECT_EQ(eager.graph_steps, 0);
    steps.add(graphed);
  }
  expect_graphs(steps);
}

// Of prompts alone, so that both read the same tokens. A GPU's differ by the rounding of weights,
// activations and cache; one head, key or layer taken for another differs by whole weights.
TEST_P(BatchInvariant, PatternsAreThoseOfTheCpu) {
  const auto& [dtype, arch] = GetParam();
  if (dtype != tensor::DType::kBF16) GTEST_SKIP() << "an fp8 model is another one";
  const model::ModelSpec spec = spec_with_kernels();
  const step::Capacity capacity = with_taps(kRoomy);
  auto set = std::make_shared<tap::CaptureSet>();
  for (int32_t layer = 0; layer < capacity.geometry.num_layers; ++layer) {
    tap::CapturePattern pattern{.layer = layer, .keys = capacity.max_seq_len, .heads = {}};
    const int32_t count = capacity.geometry.heads[static_cast<size_t>(layer)].count;
    for (int32_t head = layer % 2; head < count; ++head) pattern.heads.push_back(head);
    set->patterns.push_back(std::move(pattern));
  }
  std::vector<Ask> asks = random_asks(6, 51, 2);
  for (Ask& ask : asks) {
    auto taps = std::make_shared<tap::SequenceTaps>();
    taps->capture = set;
    taps->captured = {{0, static_cast<int32_t>(ask.prompt.size())}};
    ask.taps = taps;
  }
  exec::DeviceExecutor::Model model;
  model.ops = cpu::make_reference_ops();
  model.spec = spec;
  model.weights = value_of(testing::random_weights(spec, *model.ops, kModelSeed));
  step::Capacity of_cpu = capacity;
  of_cpu.geometry.dtype = tensor::DType::kF32;
  const std::vector<Got> expected =
      run_alone(*value_of(start_executor(std::move(model), of_cpu)), asks);
  const std::vector<Got> got = run_alone(*executor(capacity), asks);
  double sum = 0;
  double largest = 0;
  int64_t count = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    ASSERT_EQ(got[i].captured.size(), asks[i].prompt.size());
    for (const auto& [position, wanted] : expected[i].captured) {
      const std::vector<float>& weights = got[i].captured.at(position);
      ASSERT_EQ(weights.size(), wanted.size());
      for (size_t k = 0; k < wanted.size(); ++k) {
        const double difference = std::abs(double{weights[k]} - double{wanted[k]});
        ASSERT_FALSE(std::isnan(difference)) << "position " << position;
        if (wanted[k] == 0) continue;
        largest = std::max(largest, difference);
        sum += difference;
        ++count;
      }
    }
  }
  ASSERT_GT(count, 0);
  EXPECT_LT(largest, 0.2);
  EXPECT_LT(sum / static_cast<double>(count), 0.01);
}

INSTANTIATE_TEST_SUITE_P(Tiny, BatchInvariant,
                         ::testing::Combine(::testing::Values(tensor::DType::kBF16,
                                                              tensor::DType::kF8E4M3),
                                            ::testing::ValuesIn(testing::kTinyArchs)),
                         [](const auto& test) {
                           return std::string(tensor::dtype_name(std::get<0>(test.param))) + "_" +
                                  std::string(testing::tiny_arch_name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace rudder::metamorphic
