// MTP heads of random weights against PyTorch (tools/golden/mtp.py): their logits behind texts,
// guess by guess, and what an executor guesses with them. Dense, mixture beside a state, and as a
// layer behind the last one.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/model/loader.h"
#include "rudder/model/mtp.h"
#include "rudder/ops/make_kv_layer.h"
#include "rudder/testing/device_tensors.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/weights/mapped_file.h"

namespace rudder {
namespace {

namespace json = boost::json;
using weights::Checkpoint;

constexpr int32_t kGuesses = 4;
constexpr int32_t kTold[] = {50, 100, 200};
constexpr int32_t kBlockSize = 16;
constexpr int32_t kBlocks = 8;
constexpr int32_t kMaxLen = kBlockSize * kBlocks;

struct Case {
  std::vector<int32_t> ids;
  int32_t next = 0;
  std::vector<int32_t> guess;
  std::vector<std::vector<double>> logits;  // of each guess its own and those of kTold
};

std::string head_of(const std::string& name) {
  return std::string(RUDDER_SOURCE_DIR) + "/tests/draft_heads/" + name + "-mtp";
}
std::string model_of(const std::string& name) {
  return std::string(RUDDER_SOURCE_DIR) + "/tests/golden/" + name;
}

std::vector<Case> read_cases(const std::string& name) {
  const std::string text = weights::read_text_file(head_of(name) + "/cases.json", 1 << 20).value();
  const json::value cases = parse_json(text, "cases.json").value();
  std::vector<Case> out;
  for (const json::value& one : cases.as_array()) {
    out.push_back({json::value_to<std::vector<int32_t>>(one.at("ids")),
                   json::value_to<int32_t>(one.at("next")),
                   json::value_to<std::vector<int32_t>>(one.at("guess")),
                   json::value_to<std::vector<std::vector<double>>>(one.at("logits"))});
  }
  return out;
}

std::unique_ptr<ops::Ops> exact_ops() {
  return cpu::make_cpu_ops({.dtype = tensor::DType::kF32, .num_threads = 1, .isa = {}}).value();
}

// One sequence at a time, without an executor.
class HeadedModel {
 public:
  explicit HeadedModel(const std::string& name) : device_(exact_ops()) {
    const auto checkpoint = Checkpoint::open_folder(model_of(name)).value();
    spec_ = model::read_spec(*checkpoint).value();
    weights_ = model::load_weights(*checkpoint, spec_, device_.ops(), {}).value();
    std::vector<ops::KvLayer> kv;
    std::vector<model::LayerState> states;
    for (const model::LayerSpec& layer : spec_.layers) {
      kv.push_back(make_kv(layer));
      if (!model::keeps_states(spec_)) continue;
      const int64_t bytes = (model::state_bytes(layer).state + 63) / 64 * 64;
      state_bytes_.push_back(device_.ops().allocate(tensor::DType::kU8, {1, bytes}).value());
      states.push_back({.pool = state_bytes_.back(), .begin = 0, .kept = {}});
    }
    const model::DecoderLimits limits{
        .max_tokens = kMaxLen, .max_logits_rows = 1, .max_seq_len = kMaxLen};
    const model::HiddenPool kept{
        .rows = device_.ops().allocate(tensor::DType::kF32, {kMaxLen, spec_.hidden}).value(),
        .layers = {},
        .final_norm = true,
        .block_size = kBlockSize};
    decoder_ =
        model::Decoder::make(spec_, weights_, kv, device_.ops(), limits, kept, {}, states).value();
    const auto folder = Checkpoint::open_folder(head_of(name)).value();
    head_spec_ = model::read_mtp(*folder, spec_).value();
    head_weights_ = model::load_mtp(*folder, head_spec_, device_.ops()).value();
    head_ = model::MtpHead::make(
                head_spec_, head_weights_,
                {.embedding = weights_.embedding, .head = &weights_.head, .rows = kept.rows},
                make_kv(head_spec_.layers.layers[0]), device_.ops(), limits, 1)
                .value();
  }

  // Runs the tokens, in pieces; afterwards the head has what it reads of them.
  void run(const std::vector<int32_t>& ids, int32_t piece) {
    for (const ops::View& state : state_bytes_) {
      device_.write(state, std::vector<std::byte>(state.bytes()));
    }
    const auto length = static_cast<int32_t>(ids.size());
    for (int32_t begin = 0; begin < length; begin += piece) {
      const int32_t end = std::min(length, begin + piece);
      decoder_->forward(batch({ids.begin() + begin, ids.begin() + end}, begin));
    }
  }
  // Of the guess behind tokens that are run one position before their own, from `begin` on;
  // `goes_on`: the token was guessed itself.
  std::vector<float> logits(const std::vector<int32_t>& ids, int32_t begin, bool goes_on) {
    model::ForwardBatch step = batch(ids, begin);
    step.feedback_rows = device_.put(std::vector<int32_t>{0});
    if (goes_on) step.goes_on_rows = device_.put(std::vector<int32_t>{0});
    return device_.values<float>(head_->forward(step));
  }

 private:
  ops::KvLayer make_kv(const model::LayerSpec& layer) {
    const auto [heads, dim, window, parts] = model::kv_geometry(layer);
    return ops::make_kv_layer(
               device_.ops(), kBlocks,
               {.block_size = kBlockSize, .num_kv_heads = heads, .head_dim = dim, .parts = parts})
        .value();
  }
  model::ForwardBatch batch(const std::vector<int32_t>& ids, int32_t begin) {
    const auto count = static_cast<int32_t>(ids.size());
    std::vector<int32_t> positions;
    std::vector<int32_t> table;
    for (int32_t i = 0; i < count; ++i) positions.push_back(begin + i);
    for (int32_t b = 0; b < kBlocks; ++b) table.push_back(b);
    ops::View block_table = device_.put(table);
    block_table.shape = {1, kBlocks};
    const auto one = [&](int32_t value) { return device_.put(std::vector<int32_t>{value}); };
    return {.ids = device_.put(ids),
            .positions = device_.put(positions),
            .kv_slot = device_.put(positions),
            .attention = {.q_begin = device_.put(std::vector<int32_t>{0, count}),
                          .kv_len = one(begin + count),
                          .table_row = one(0),
                          .block_table = block_table,
                          .max_q_len = count,
                          .max_kv_len = kMaxLen},
            .logits_rows = one(count - 1),
            .states = {one(0), one(0)}};
  }

  testing::Device device_;
  model::ModelSpec spec_;
  model::Weights weights_;
  std::vector<ops::View> state_bytes_;
  std::unique_ptr<model::Decoder> decoder_;
  model::MtpSpec head_spec_;
  model::MtpWeights head_weights_;
  std::unique_ptr<model::Decoder> head_;
};

class MtpGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(MtpGolden, LogitsAreThoseOfPyTorch) {
  HeadedModel model(GetParam());
  const std::vector<Case> cases = read_cases(GetParam());
  EXPECT_GE(cases.size(), 40u);
  double largest = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    const auto length = static_cast<int32_t>(one.ids.size());
    model.run(one.ids, i % 3 == 0 ? 7 : kMaxLen);
    std::vector<int32_t> tokens(one.ids.begin() + 1, one.ids.end());
    tokens.push_back(one.next);
    for (int32_t guess = 0; guess < kGuesses; ++guess) {
      const std::vector<float> got =
          guess == 0
              ? model.logits(tokens, 0, false)
              : model.logits({one.guess[static_cast<size_t>(guess) - 1]}, length + guess - 1, true);
      const std::vector<double>& want = one.logits[static_cast<size_t>(guess)];
      const auto best = std::ranges::max_element(got) - got.begin();
      EXPECT_EQ(best, one.guess[static_cast<size_t>(guess)]) << i << ", guess " << guess;
      std::vector<int32_t> told = {one.guess[static_cast<size_t>(guess)]};
      told.insert(told.end(), std::begin(kTold), std::end(kTold));
      for (size_t t = 0; t < told.size(); ++t) {
        largest = std::max(largest, std::abs(got[static_cast<size_t>(told[t])] - want[t]));
      }
    }
  }
  EXPECT_LE(largest, 1e-4);
}

// Through the loader, its memory budget and the executor's passes.
TEST_P(MtpGolden, AnExecutorGuessesThem) {
  const auto checkpoint = Checkpoint::open_folder(model_of(GetParam())).value();
  const auto head = Checkpoint::open_folder(head_of(GetParam())).value();
  exec::ExecSettings settings;
  settings.max_model_len = 160;
  settings.kv_cache_memory_bytes = 4 << 20;
  const exec::StepLimits limits = {.max_num_seqs = 1,
                                   .max_num_batched_tokens = 128,
                                   .max_draft = kGuesses,
                                   .draft_model = head.get(),
                                   .draft_method = step::DraftMethod::kMtp};
  auto loaded = exec::load_model(*checkpoint, exact_ops(), settings, limits, {});
  ASSERT_TRUE(loaded) << loaded.error().to_string();
  step::Executor& executor = *loaded->executor;
  const step::Capacity& capacity = executor.capacity();
  EXPECT_TRUE(capacity.drafts.keeps_guesses);
  uint32_t generation = 0;
  for (const Case& one : read_cases(GetParam())) {
    const auto length = static_cast<int32_t>(one.ids.size());
    step::StepPlan plan;
    plan.id = ++generation;
    plan.tokens = one.ids;
    step::SlotEdit& edit = plan.slots.emplace_back();
    edit.generation = generation;
    edit.sampling.temperature = 0;
    edit.prompt_len = edit.history_prompt_len = length;
    edit.history = one.ids;
    edit.max_len = length + 2 * kGuesses;
    if (!capacity.states.empty()) edit.state = static_cast<step::StateId>(0);
    edit.blocks.resize(static_cast<size_t>(capacity.kv_groups.size()));
    for (auto& blocks : edit.blocks) {
      for (int32_t b = 0; b <= kBlocks; ++b) blocks.push_back(kBlocks - b);
    }
    step::SeqWork& work = plan.seqs.emplace_back();
    work.generation = generation;
    work.q_len = length;
    work.logits = step::LogitsWanted::kLast;
    work.guess.num_guess = kGuesses;
    work.guess.tokens = one.ids;
    const auto ticket =
        executor.launch(std::make_shared<const step::StepPlan>(std::move(plan))).value();
    const step::SeqResult got = executor.collect(ticket).value().seqs.at(0);
    EXPECT_EQ(got.tokens, std::vector<int32_t>{one.next});
    EXPECT_EQ(got.guess, one.guess) << "behind " << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, MtpGolden, ::testing::Values("qwen3-5", "qwen3-next", "glm4-moe"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// The CPU but for what the name says.
class HeadlessOps final : public testing::PassingOps {
 public:
  HeadlessOps() : PassingOps(exact_ops()) {}
  ops::DraftOps* draft_ops() override { return nullptr; }
};

Error refusal(const std::string& model, const std::string& head, std::unique_ptr<ops::Ops> ops) {
  const auto checkpoint = Checkpoint::open_folder(model).value();
  const auto draft = Checkpoint::open_folder(head).value();
  const auto refused = exec::load_model(*checkpoint, std::move(ops), {},
                                        {.max_num_seqs = 1,
                                         .max_num_batched_tokens = 64,
                                         .max_draft = 1,
                                         .draft_model = draft.get(),
                                         .draft_method = step::DraftMethod::kMtp},
                                        {});
  return refused ? Error{} : refused.error();
}

TEST(Mtp, WhatHasNoHeadIsRefused) {
  const Error none = refusal(model_of("qwen3-5"), model_of("qwen3-5"), exact_ops());
  EXPECT_EQ(none.where, "speculative-config.method");
  EXPECT_NE(none.message.find("no MTP head"), std::string::npos) << none.message;
  const Error of_another = refusal(model_of("qwen3-5"), head_of("glm4-moe"), exact_ops());
  EXPECT_NE(of_another.message, "");
  const Error headless =
      refusal(model_of("qwen3-5"), head_of("qwen3-5"), std::make_unique<HeadlessOps>());
  EXPECT_EQ(headless.code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace rudder
