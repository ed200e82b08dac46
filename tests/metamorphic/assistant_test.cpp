// An assistant against plain decoding: the same sequences get the same tokens, logprobs, scores and
// captured rows, bit for bit (step.I11), and what it guesses from the model's own KV depends on the
// tokens alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "metamorphic/guess_notes.h"
#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
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

struct Way {
  Backend device;
  int32_t budget;
  int32_t in_flight;
};

sched::SchedSettings settings(const Way& way) {
  sched::SchedSettings settings;
  settings.max_num_seqs = 16;
  settings.max_num_batched_tokens = way.budget;
  settings.max_in_flight = way.in_flight;
  settings.multi_step = 4;
  return settings;
}

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
    if (!backend().make()->runs_draft_heads()) GTEST_SKIP() << "it runs no draft heads";
  }
  static std::vector<Way> ways() {
    const Backend async_taped = {
        "async_tape",
        [] { return testing::make_async_ops(testing::make_tape_ops(backend().make())); }};
    return {{backend(), 96, 1}, {backend(), 40, 3}, {async_taped, 64, 3}};
  }
};

TEST_P(AssistantDrafts, AsPlainDecoding) {
  std::vector<Ask> asks = random_masked_asks(14, 80, 70);
  add_random_taps(asks, with_encodes(kRoomy, arch()), 4);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 8 * 10);
  const std::vector<Got> plain =
      run_alone(*tiny_executor(backend(), arch(), with_encodes(kRoomy, arch())), asks);
  uint64_t num_preemptions = 0;
  for (const bool is_paced : {false, true}) {
    for (const Way& way : ways()) {
      const auto executor = assistant_executor(way.device, arch(), with_encodes(kTight, arch()));
      sched::SchedSettings drafting = settings(way);
      drafting.pace_drafts = is_paced;
      const Outcome outcome = run(*executor, drafting, asks);
      expect_same(plain, outcome.got, way.device.name + " assistant");
      num_preemptions += outcome.stats.preemptions;
      if (!is_paced) {
        EXPECT_GT(outcome.stats.draft_tokens, 500u);
      }
    }
  }
  if (!testing::has_windows(arch())) {  // which give blocks back, so that all sequences fit
    EXPECT_GT(num_preemptions, 0u);
  }
}

// Not on the steps that ran them, on what else was in them, on drafts that were rejected, on
// preemption, on which blocks they lie in or on who computed these.
TEST_P(AssistantDrafts, GuessesDependOnTheTokensAlone) {
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
    const auto executor = assistant_executor(way.device, arch(), capacity);
    GuessNotes noting(*executor);
    const Outcome outcome = run(noting, settings(way), of);
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
  if (!testing::has_windows(arch())) {
    EXPECT_GT(preemptions, 0u);
  }
  expect_same_guesses({backend(), 64, 3}, roomy);
  EXPECT_GT(cached, 0);
}

// Where its numbers are none it guesses nothing, and nothing else changes.
TEST(Assistants, OneWithoutNumbersGuessesNothing) {
  const std::vector<Ask> asks = random_asks(6, 44, 40);
  for (const Backend& backend : backends()) {
    if (!backend.make()->runs_draft_heads()) continue;
    exec::DeviceExecutor::Model model;
    model.ops = backend.make();
    model.spec = testing::tiny_spec(testing::TinyArch::kTwoWidths);
    model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
    add_guesser(model, model.spec, Guesser::kAssistant);
    model.draft->assistant->weights.layers.layers[0].scale =
        std::numeric_limits<float>::quiet_NaN();
    step::Capacity capacity = kRoomy;
    capacity.max_draft = 4;
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

INSTANTIATE_TEST_SUITE_P(Tiny, AssistantDrafts, ::testing::ValuesIn(daily_pairs(all_backends())),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Full, AssistantDrafts, ::testing::ValuesIn(other_pairs(all_backends())),
                         pair_name);

}  // namespace
}  // namespace rudder::metamorphic
