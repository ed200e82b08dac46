// Rows with drafts against plain decoding: the same sequences get the same tokens, logprobs, scores
// and captured rows, bit for bit, whatever is drafted (step.I11); with every sampling parameter,
// masks, stops, chunks, cached prefixes, preemption, run-ahead, and on a device that lags behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "metamorphic/guess_checks.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/draft/ngram_proposer.h"
#include "rudder/draft/suffix_proposer.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/pass_proposer.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/random_proposer.h"

namespace rudder::metamorphic {
namespace {

using testing::RandomProposer;

// Not every sequence fits at once.
constexpr step::Capacity kTight = [] {
  step::Capacity capacity = kGuessTight;
  capacity.num_blocks = 18;
  return capacity;
}();

// Every draft is right, and as long as it may be.
class RightProposer final : public sched::DraftProposer {
 public:
  explicit RightProposer(std::vector<std::vector<int32_t>> wholes) : wholes_(std::move(wholes)) {}

  void begin(const sched::NewSequence&) override {}
  void end(sched::SequenceId, std::span<const int32_t>) override {}
  bool waits(sched::SequenceId) override { return true; }
  void propose(sched::SequenceId id, std::span<const int32_t> tokens, const sched::DraftAsk& ask,
               sched::Draft* draft) override {
    const auto rest = std::span(wholes_[id.value]).subspan(tokens.size());
    const auto right = rest.first(std::min(rest.size(), static_cast<size_t>(ask.most)));
    draft->tokens.assign(right.begin(), right.end());
  }

 private:
  const std::vector<std::vector<int32_t>> wholes_;
};

class Drafts : public ::testing::TestWithParam<Pair> {
 protected:
  static testing::TinyArch arch() { return std::get<1>(GetParam()); }
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }

  static std::vector<GuessWay> ways() { return guess_ways(backend()); }

  void expect_as_plain(const std::vector<Ask>& asks, const std::vector<Got>& plain,
                       const step::Capacity& capacity, const GuessWay& way) {
    const auto whole = wholes(asks, plain);
    RandomProposer proposer(
        3, 160, [&](sched::SequenceId id) { return std::span<const int32_t>(whole[id.value]); });
    const auto executor = tiny_executor(way.device, arch(), capacity);
    const Outcome outcome = run(*executor, guess_settings(way), asks, &proposer);
    expect_same(plain, outcome.got, way.device.name);
    num_preemptions_ += outcome.stats.preemptions;
    EXPECT_GT(outcome.stats.accepted_tokens, 50u);
    EXPECT_GT(outcome.stats.draft_tokens, outcome.stats.accepted_tokens + 50);
    EXPECT_EQ(outcome.lost_tokens, 0);
  }

  uint64_t num_preemptions_ = 0;  // of all ways
};

// Who guesses: each has a third of the models in the daily run.
class Proposers : public Drafts {};
class DraftModels : public Drafts {};
class DraftHeads : public Drafts {};

TEST_P(Drafts, AsPlainDecoding) {
  std::vector<Ask> asks = random_masked_asks(20, 31, 110);
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), kRoomy), asks);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 10 * 10);
  for (const GuessWay& way : ways()) expect_as_plain(asks, plain, kTight, way);
  // Windows give blocks back, so that these sequences fit; the steered ones below do not.
  if (!testing::has_windows(arch())) {
    EXPECT_GT(num_preemptions_, 0u);
  }
}

TEST_P(Drafts, SteeredAndCapturedAsPlainDecoding) {
  const step::Capacity roomy = with_encodes(kRoomy, arch());
  std::vector<Ask> asks = random_asks(15, 5, 100);
  add_random_taps(asks, roomy, 9);
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), roomy), asks);
  EXPECT_TRUE(std::ranges::any_of(plain, [](const Got& got) { return got.captured.size() > 20; }));
  for (const GuessWay& way : ways())
    expect_as_plain(asks, plain, with_encodes(kTight, arch()), way);
  EXPECT_GT(num_preemptions_, 0u);
}

// The proposers that are served, over texts in which much repeats; each with every draft verified,
// and with those that pay.
TEST_P(Proposers, EveryOneAsPlainDecoding) {
  const step::Capacity roomy = with_taps(kRoomy, arch());
  std::vector<Ask> asks = random_masked_asks(16, 77, 100);
  add_random_taps(asks, roomy, 4);
  for (size_t i = 0; i < asks.size(); ++i) {
    // Few tokens to choose from: what was said comes again.
    if (asks[i].mask == nullptr)
      asks[i].sampling.logit_bias = {{7, 40.0f}, {9, 40.5f}, {11, 39.5f}};
    asks[i].arrival = static_cast<int32_t>(i / 8 * 10);
  }
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), roomy), asks);
  const std::pair<const char*, std::function<std::unique_ptr<sched::DraftProposer>()>> kinds[] = {
      {"ngram", [] { return std::make_unique<draft::NgramProposer>(1, 3, 1 << 24); }},
      {"suffix",
       [] {
         return std::make_unique<draft::SuffixProposer>(
             draft::SuffixSettings{.max_cached_requests = 8, .max_spec_factor = 2}, 1 << 24);
       }},
  };
  for (const auto& [name, make] : kinds) {
    for (const GuessWay& way : ways()) {
      for (const bool is_paced : {false, true}) {
        if (is_paced && way.in_flight == 1) continue;  // nothing would run ahead
        const auto proposer = make();
        const auto executor = tiny_executor(way.device, arch(), with_taps(kTight, arch()));
        sched::SchedSettings drafting = guess_settings(way);
        drafting.pace_drafts = is_paced;
        const Outcome outcome = run(*executor, drafting, asks, proposer.get());
        expect_same(plain, outcome.got, way.device.name + " " + name);
        EXPECT_EQ(outcome.lost_tokens, 0);
        if (!is_paced) {
          EXPECT_GT(outcome.stats.accepted_tokens, 50u) << name;
          EXPECT_GT(outcome.stats.draft_tokens, outcome.stats.accepted_tokens) << name;
        }
      }
    }
  }
}

bool keeps_every_token(testing::TinyArch arch) {
  return std::ranges::any_of(testing::tiny_spec(arch).layers, [](const model::LayerSpec& layer) {
    return model::kv_geometry(layer).window == 0;
  });
}

// The executor's own proposer, with a model of another kind.
TEST_P(DraftModels, AsPlainDecoding) {
  if (!keeps_every_token(arch())) GTEST_SKIP() << "a draft model needs a group without a window";
  const auto make = [](const GuessWay& way, const step::Capacity& capacity) {
    return guessing_executor(way.device, arch(), testing::TinyArch::kPreNorm, 8, capacity);
  };
  expect_text_of_plain_decoding(GetParam(), 78, make);
}

// A draft head, of rows that steered tokens changed too.
TEST_P(DraftHeads, AsPlainDecoding) {
  if (!keeps_every_token(arch())) GTEST_SKIP() << "a draft head needs a group without a window";
  if (backend().make()->draft_ops() == nullptr) GTEST_SKIP() << "it runs no draft heads";
  using enum testing::TinyHead;
  size_t num_runs = 0;
  const auto make = [&](const GuessWay& way, const step::Capacity& capacity) {
    // Each kind with and without run-ahead, and drafting all that it may.
    constexpr std::array kKinds = {kSharedEmbedding, kOwnEmbedding, kProduct,
                                   kProduct,         kOwnEmbedding, kSharedEmbedding};
    testing::TinyHead kind = kKinds.at(num_runs++);
    if (!testing::takes_head(testing::tiny_spec(arch()), kind)) kind = kOwnEmbedding;
    return head_executor(way.device, arch(), kind, capacity);
  };
  expect_text_of_plain_decoding(GetParam(), 79, make);
}

TEST_P(DraftHeads, GuessesDependOnTheTokensAlone) {
  if (!keeps_every_token(arch())) GTEST_SKIP() << "a draft head needs a group without a window";
  if (backend().make()->draft_ops() == nullptr) GTEST_SKIP() << "it runs no draft heads";
  for (const auto kind : {testing::TinyHead::kOwnEmbedding, testing::TinyHead::kProduct}) {
    if (!testing::takes_head(testing::tiny_spec(arch()), kind)) continue;
    // Which rows lie where is the same on every backend, and the reference is slow.
    if (kind == testing::TinyHead::kProduct && backend().name == "reference") continue;
    const auto make = [&](const GuessWay& way, const step::Capacity& capacity) {
      return head_executor(way.device, arch(), kind, capacity);
    };
    expect_guesses_of_tokens_alone(GetParam(), make);
  }
}

// A model that guesses for itself is right about every greedy token: so its KV is that of the
// sequence's tokens, behind chunks, rejections (of the sampled sequences beside), preemptions,
// cached prefixes and repeated use of blocks.
TEST_P(DraftModels, OwnGuessesAreAllRight) {
  if (!keeps_every_token(arch())) GTEST_SKIP() << "a draft model needs a group without a window";
  if (!exec::draft_kv_layout(testing::tiny_spec(arch()), {}, 16)) {
    GTEST_SKIP() << "a draft model keeps KV in one shape";
  }
  if (model::keeps_states(testing::tiny_spec(arch()))) GTEST_SKIP() << "it keeps no states";
  std::vector<Ask> asks = random_asks(16, 41, 80);
  for (size_t i = 0; i < asks.size(); ++i) {
    const bool is_greedy = i % 3 != 0;
    step::SamplingParams plainly;
    plainly.temperature = is_greedy ? 0.0f : 0.9f;
    plainly.seed = asks[i].sampling.seed;
    asks[i].sampling = plainly;
    asks[i].arrival = static_cast<int32_t>(i / 7 * 12);
  }
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), kRoomy), asks);
  step::Capacity tight = kGuessTight;
  std::vector<GuessWay> all = ways();
  all.push_back({backend(), 24, 3});
  for (const GuessWay& way : all) {
    const auto executor = guessing_executor(way.device, arch(), arch(), kModelSeed, tight);
    const Outcome outcome = run(*executor, guess_settings(way), asks);
    expect_same(plain, outcome.got, way.device.name + " guesses for itself");
    if (!testing::has_windows(arch())) {  // which give blocks back, so that all sequences fit
      EXPECT_GT(outcome.stats.preemptions, 0u);
    }
    for (size_t i = 0; i < asks.size(); ++i) {
      if (i % 3 == 0) continue;
      EXPECT_EQ(outcome.got[i].num_draft, outcome.got[i].num_accepted) << i;
    }
    EXPECT_GT(outcome.stats.accepted_tokens, 100u);
    EXPECT_GT(outcome.stats.draft_tokens, outcome.stats.accepted_tokens);  // of the sampled
  }
}

// With drafts that are all right, a lone sequence takes as few steps as it can.
TEST_P(Drafts, RightOnesSaveSteps) {
  std::vector<Ask> asks = random_asks(4, 17, 80);
  asks.resize(1);
  asks[0].sampling.stop_ids.clear();
  asks[0].max_len = static_cast<int32_t>(asks[0].prompt.size()) + 61;
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), kRoomy), asks);
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = 5;
  RightProposer proposer(wholes(asks, plain));
  const auto executor = tiny_executor(backend(), arch(), capacity);
  const Outcome outcome = run(*executor, guess_settings({backend(), 96, 3}), asks, &proposer);
  expect_same(plain, outcome.got, "right drafts");
  // The prompt and its first token, in one step unless each block ends with a checkpoint; then six
  // tokens a step.
  const bool has_states = model::keeps_states(testing::tiny_spec(arch()));
  const size_t prompt_steps = has_states ? (asks[0].prompt.size() + 15) / 16 : 1;
  EXPECT_EQ(outcome.stats.steps, prompt_steps + 60 / 6);
  EXPECT_EQ(outcome.stats.accepted_tokens, 50u);
}

// By name, before anything is loaded.
TEST(DraftModel, WhatItCannotGuessForIsRefused) {
  const model::ModelSpec spec = testing::tiny_spec(testing::TinyArch::kPreNorm);
  const step::KvGroups whole;
  const auto where = [&](const model::ModelSpec& draft, const step::KvGroups& groups,
                         int32_t max_seq_len) {
    const auto checked = exec::check_draft_model(draft, spec, groups, max_seq_len);
    return checked ? std::string() : checked.error().where;
  };
  EXPECT_EQ(where(spec, whole, 512), "");
  model::ModelSpec other = spec;
  other.vocab += 1;
  EXPECT_EQ(where(other, whole, 512), "speculative-config.model");
  EXPECT_EQ(where(spec, whole, 513), "speculative-config.model");
  EXPECT_EQ(where(testing::tiny_spec(testing::TinyArch::kRecurrent), whole, 512),
            "speculative-config.model");
  const step::KvGroup window = {.window = 8};
  EXPECT_EQ(where(spec, step::KvGroups({&window, 1}), 512), "speculative-config.model");
}

class HeadlessOps final : public testing::PassingOps {
 public:
  HeadlessOps() : PassingOps(cpu::make_reference_ops()) {}
  ops::DraftOps* draft_ops() override { return nullptr; }
};

TEST(DraftHead, ABackendWithoutItsOpsIsRefused) {
  EXPECT_TRUE(exec::check_runs_heads(*cpu::make_reference_ops()));
  HeadlessOps headless;
  const auto refused = exec::check_runs_heads(headless);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().where, "speculative-config.method");
}

TEST(DraftHead, WhatItWasNotMadeForIsRefused) {
  const model::ModelSpec target = testing::tiny_spec(testing::TinyArch::kPreNorm);
  using enum testing::TinyHead;
  const auto message = [&](auto change, testing::TinyHead kind = kSharedEmbedding) {
    model::DraftHeadSpec head = testing::tiny_head_spec(kind);
    model::ModelSpec model = target;
    change(head, model);
    const auto fits = model::fit_draft_head(model, head);
    if (fits) return std::string();
    EXPECT_EQ(fits.error().where, "speculative-config.model");
    return fits.error().message;
  };
  using Head = model::DraftHeadSpec;
  using Model = model::ModelSpec;
  EXPECT_EQ(message([](Head&, Model&) {}), "");
  EXPECT_EQ(message([](Head&, Model&) {}, kOwnEmbedding), "");
  EXPECT_EQ(message([](Head&, Model&) {}, kProduct), "");
  EXPECT_EQ(message([](Head& head, Model&) { head.target_hidden = 65; }, kProduct),
            "the head reads rows of 65, the model's have 64");
  EXPECT_EQ(message([](Head& head, Model&) { head.layer.vocab = 161; }, kProduct),
            "the head is of 161 tokens, the model of 160");
  EXPECT_EQ(message([](Head&, Model& model) { model.embed_scale = 8; }, kProduct),
            "the head has no embedding of its own, and the model scales what it has");
  EXPECT_EQ(message([](Head& head, Model&) { head.target_hidden = 65; }),
            "the head reads rows of 65, the model's have 64");
  EXPECT_EQ(message([](Head& head, Model&) { head.layer.vocab = 161; }),
            "the head is of 161 tokens, the model of 160");
  EXPECT_EQ(message([](Head& head, Model&) { head.layer.hidden = 48; }),
            "the head has rows of 48 and no embedding of its own, the model's has 64");
  EXPECT_EQ(message([](Head&, Model& model) { model.embed_scale = 8; }),
            "the head has no embedding of its own, and the model scales what it has");
  EXPECT_EQ(message([](Head&, Model& model) { model.embed_scale = 8; }, kOwnEmbedding), "");
  EXPECT_EQ(message([](Head& head, Model&) { head.aux_layers[1] = 3; }),
            "the head reads what enters layer 3, the model has 3 layers");
  EXPECT_EQ(message([](Head& head, Model&) { head.aux_layers[1] = -1; }),
            "the head reads what enters layer -1, the model has 3 layers");
  EXPECT_EQ(message([](Head& head, Model&) { head.num_aux = 2; }),
            "the head reads 2 layers, its config does not say which");
}

INSTANTIATE_TEST_SUITE_P(Tiny, Drafts, ::testing::ValuesIn(daily_pairs(all_backends())), pair_name);
INSTANTIATE_TEST_SUITE_P(Full, Drafts, ::testing::ValuesIn(other_pairs(all_backends())), pair_name);
INSTANTIATE_TEST_SUITE_P(Tiny, DraftModels,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kFirst)), pair_name);
INSTANTIATE_TEST_SUITE_P(Full, DraftModels,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kFirst)), pair_name);
INSTANTIATE_TEST_SUITE_P(Tiny, DraftHeads,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kSecond)),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Full, DraftHeads,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kSecond)),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Tiny, Proposers,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kThird)), pair_name);
INSTANTIATE_TEST_SUITE_P(Full, Proposers,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kThird)), pair_name);

}  // namespace
}  // namespace rudder::metamorphic
