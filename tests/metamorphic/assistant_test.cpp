// An assistant against plain decoding: the same sequences get the same tokens, logprobs, scores and
// captured rows, bit for bit (step.I11), and what it guesses from the model's own KV depends on the
// tokens alone.
#include <gtest/gtest.h>

#include <limits>

#include "metamorphic/guess_checks.h"
#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"
#include "rudder/exec/assistant_proposer.h"

namespace rudder::metamorphic {
namespace {

std::unique_ptr<exec::DeviceExecutor> assistant_executor(const Backend& backend,
                                                         testing::TinyArch arch,
                                                         step::Capacity capacity) {
  exec::DeviceExecutor::Model model;
  model.ops = backend.make();
  model.spec = testing::tiny_spec(arch);
  model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
  add_guesser(model, model.spec, Guesser::kAssistant);
  add_guesser(capacity, Guesser::kAssistant);
  return value_of(start_executor(std::move(model), capacity));
}

class AssistantDrafts : public ::testing::TestWithParam<Pair> {
 protected:
  static testing::TinyArch arch() { return std::get<1>(GetParam()); }
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }
  void SetUp() override {
    if (!takes_guesser(arch(), Guesser::kAssistant)) GTEST_SKIP() << "no layer has a softmax";
    if (backend().make()->draft_ops() == nullptr) GTEST_SKIP() << "it runs no draft heads";
  }
  static std::unique_ptr<exec::DeviceExecutor> make(const GuessWay& way,
                                                    const step::Capacity& capacity) {
    return assistant_executor(way.device, arch(), capacity);
  }
};

TEST_P(AssistantDrafts, AsPlainDecoding) {
  expect_text_of_plain_decoding(GetParam(), 80, make);
}
TEST_P(AssistantDrafts, GuessesDependOnTheTokensAlone) {
  expect_guesses_of_tokens_alone(GetParam(), make);
}

// Where its numbers are none it guesses nothing, and nothing else changes.
TEST(Assistants, OneWithoutNumbersGuessesNothing) {
  const std::vector<Ask> asks = random_asks(6, 44, 40);
  for (const Backend& backend : backends()) {
    if (backend.make()->draft_ops() == nullptr) continue;
    exec::DeviceExecutor::Model model;
    model.ops = backend.make();
    model.spec = testing::tiny_spec(testing::TinyArch::kTwoWidths);
    model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
    const model::AssistantSpec spec = testing::tiny_assistant_spec(model.spec);
    auto weights = value_of(testing::random_assistant_weights(spec, *model.ops, 13));
    weights.layers.layers[0].scale = std::numeric_limits<float>::quiet_NaN();
    model.draft = std::make_unique<exec::AssistantProposer>(spec, std::move(weights));
    step::Capacity capacity = kRoomy;
    capacity.drafts.max_draft = 4;
    add_guesser(capacity, Guesser::kAssistant);
    const auto executor = value_of(start_executor(std::move(model), capacity));
    const Outcome outcome = run(*executor, plain_settings(), asks);
    EXPECT_EQ(outcome.stats.draft_tokens, 0u) << backend.name;
    expect_same(run_alone(*tiny_executor(backend, testing::TinyArch::kTwoWidths, kRoomy), asks),
                outcome.got, backend.name);
  }
}

TEST(Assistants, WhatTheyWereNotMadeForIsRefused) {
  const model::ModelSpec target = testing::tiny_spec(testing::TinyArch::kTwoWidths);
  const auto expect_refusal = [&](std::string_view part, auto change) {
    model::AssistantSpec assistant = testing::tiny_assistant_spec(target);
    model::ModelSpec model = target;
    change(assistant, model);
    const auto fits = model::fit_assistant(model, assistant);
    ASSERT_FALSE(fits) << part;
    EXPECT_EQ(fits.error().where, "speculative-config.model");
    EXPECT_NE(fits.error().message.find(part), std::string::npos) << fits.error().message;
  };
  using Assistant = model::AssistantSpec;
  using Model = model::ModelSpec;
  expect_refusal("reads rows of 65, the model's have 64",
                 [](Assistant& a, Model&) { a.target_hidden = 65; });
  expect_refusal("of 161 tokens, the model of 160",
                 [](Assistant& a, Model&) { a.layers.vocab = 161; });
  expect_refusal("layer 1 reads a layer with a window, the model has none",
                 [](Assistant&, Model& m) { attention_of(m.layers[0])->window = 0; });
  expect_refusal("layer 0 reads 1 KV heads of 16, layer 2 of the model keeps 1 of 32",
                 [](Assistant& a, Model&) { attention_of(a.layers.layers[0])->head_dim = 16; });
  expect_refusal("layer 1 reads 4 KV heads of 16, layer 0 of the model keeps 2 of 16",
                 [](Assistant& a, Model&) { attention_of(a.layers.layers[1])->num_kv_heads = 4; });
  expect_refusal("has a window of 25 tokens, layer 0 of the model keeps the last 24",
                 [](Assistant& a, Model&) { attention_of(a.layers.layers[1])->window = 25; });
  // Layers on another stage cannot be read.
  std::vector<model::Stage> stages = {{.index = 0, .count = 2, .first_layer = 0, .num_layers = 1},
                                      {.index = 1, .count = 2, .first_layer = 1, .num_layers = 2}};
  const auto joined = model::join_assistant(testing::tiny_assistant_spec(target), stages);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().where, "pipeline-parallel-size");
}

INSTANTIATE_TEST_SUITE_P(Tiny, AssistantDrafts,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kSecond)),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Full, AssistantDrafts,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kSecond)),
                         pair_name);

}  // namespace
}  // namespace rudder::metamorphic
