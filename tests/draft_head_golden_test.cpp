// What the demo's draft head and its Medusa heads guess against PyTorch
// (tools/golden/draft_head.py, medusa_heads.py), an EAGLE head of made weights against numpy
// (eagle_head.py), and an assistant of the golden Gemma 4 against transformers (assistant.py): what
// they read of the model, their layers, the map of tokens and the chains, through the executor.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/model/assistant.h"
#include "rudder/model/loader.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder {
namespace {

namespace json = boost::json;
using weights::Checkpoint;

constexpr int32_t kGuesses = 4;
constexpr int32_t kBlocks = 8;  // of the longest case

struct Case {
  std::vector<int32_t> ids;
  int32_t next = 0;
  std::vector<int32_t> guess;
  std::vector<std::vector<double>> logits = {};  // of an assistant: of each guess and of kTold
};
constexpr int32_t kTold[] = {50, 100, 200};

std::string path_of(const char* name) {
  return std::string(RUDDER_SOURCE_DIR) + "/" + name;
}

std::vector<Case> read_cases(const char* file = "tests/draft_heads/demo.json") {
  const std::string text = weights::read_text_file(path_of(file), 1 << 20).value();
  const json::value cases = parse_json(text, file).value();
  std::vector<Case> out;
  for (const json::value& one : cases.as_array()) {
    out.push_back({json::value_to<std::vector<int32_t>>(one.at("ids")),
                   json::value_to<int32_t>(one.at("next")),
                   json::value_to<std::vector<int32_t>>(one.at("guess"))});
    if (const json::value* logits = one.as_object().if_contains("logits")) {
      out.back().logits = json::value_to<std::vector<std::vector<double>>>(*logits);
    }
  }
  return out;
}

class Guesser {
 public:
  explicit Guesser(const Checkpoint& head, step::DraftMethod kind = step::DraftMethod::kEagle3,
                   const step::RankedTree& tree = {}, const char* folder = "models/demo")
      : num_guesses_(tree.tree.empty() ? kGuesses : tree.tree.size()) {
    const auto model = Checkpoint::open_folder(path_of(folder)).value();
    exec::ExecSettings settings;
    settings.max_model_len = 160;
    settings.kv_cache_memory_bytes = 4 << 20;
    const exec::StepLimits limits = {.max_num_seqs = 1,
                                     .max_num_batched_tokens = 64,
                                     .max_draft = num_guesses_,
                                     .draft_model = &head,
                                     .draft_method = kind,
                                     .draft_tree = tree};
    auto ops =
        cpu::make_cpu_ops({.dtype = tensor::DType::kF32, .num_threads = 1, .isa = {}}).value();
    auto loaded = exec::load_model(*model, std::move(ops), settings, limits, {});
    EXPECT_TRUE(loaded) << loaded.error().to_string();
    executor_ = std::move(loaded->executor);
  }

  // Its tokens in chunks of at most `chunk`.
  step::SeqResult behind(const std::vector<int32_t>& ids, int32_t chunk) {
    const auto length = static_cast<int32_t>(ids.size());
    ++generation_;
    step::SeqResult last;
    for (int32_t begin = 0; begin < length; begin += chunk) {
      const int32_t count = std::min(chunk, length - begin);
      const bool is_last = begin + count == length;
      step::StepPlan plan;
      plan.id = ++steps_;
      if (begin == 0) {
        step::SlotEdit& edit = plan.slots.emplace_back();
        edit.generation = generation_;
        edit.sampling.temperature = 0;
        edit.prompt_len = length;
        if (executor_->capacity().drafts.keeps_guesses) {
          edit.history = ids;
          edit.history_prompt_len = length;
        }
        edit.max_len = length + 2 * num_guesses_;
        int32_t next = 0;
        edit.blocks.resize(static_cast<size_t>(executor_->capacity().kv_groups.size()));
        for (auto& blocks : edit.blocks) {
          for (int32_t b = 0; b <= kBlocks; ++b) blocks.push_back(next + kBlocks - b);
          next += kBlocks + 1;
        }
      }
      plan.tokens.assign(ids.begin() + begin, ids.begin() + begin + count);
      step::SeqWork& work = plan.seqs.emplace_back();
      work.generation = generation_;
      work.kv_len = begin;
      work.q_len = count;
      work.logits = is_last ? step::LogitsWanted::kLast : step::LogitsWanted::kNone;
      work.guess.num_guess = is_last ? num_guesses_ : 0;
      work.guess.begin = begin + count;
      if (!executor_->capacity().drafts.guesses_from_rows) {
        work.guess.begin = begin;
        work.guess.tokens = plan.tokens;
      }
      const auto ticket =
          executor_->launch(std::make_shared<const step::StepPlan>(std::move(plan))).value();
      last = executor_->collect(ticket).value().seqs.at(0);
    }
    return last;
  }

 private:
  const int32_t num_guesses_;
  std::unique_ptr<step::Executor> executor_;
  uint32_t generation_ = 0;
  step::StepId steps_ = 0;
};

TEST(DraftHeadGolden, GuessesAreThoseOfPyTorch) {
  Guesser guesser(*Checkpoint::open_folder(path_of("models/demo-eagle")).value());
  const std::vector<Case> cases = read_cases();
  EXPECT_GT(cases.size(), 60u);
  for (size_t i = 0; i < cases.size(); ++i) {
    const step::SeqResult got = guesser.behind(cases[i].ids, i % 3 == 0 ? 7 : 64);
    EXPECT_EQ(got.tokens, std::vector<int32_t>{cases[i].next}) << i;
    EXPECT_EQ(got.guess, cases[i].guess) << i;
  }
}

// Along the likeliest tokens a tree has the chain.
TEST(DraftHeadGolden, ATreeHasTheChainOfPyTorch) {
  step::RankedTree tree;
  std::vector<size_t> likeliest;  // drafts
  int32_t last = 0;
  for (int32_t depth = 0; depth < kGuesses; ++depth) {
    for (const int32_t rank : {1, 0, 3}) {
      tree.tree.add(last);
      tree.ranks.push_back(rank);
    }
    last = tree.tree.size() - 1;
    likeliest.push_back(static_cast<size_t>(last) - 1);
  }
  Guesser guesser(*Checkpoint::open_folder(path_of("models/demo-eagle")).value(),
                  step::DraftMethod::kEagle3, tree);
  const std::vector<Case> cases = read_cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const step::SeqResult got = guesser.behind(cases[i].ids, i % 3 == 0 ? 7 : 64);
    ASSERT_EQ(std::ssize(got.guess), tree.tree.size()) << i;
    for (size_t depth = 0; depth < likeliest.size(); ++depth) {
      const auto draft = static_cast<std::ptrdiff_t>(likeliest[depth]);
      EXPECT_EQ(got.guess[likeliest[depth]], cases[i].guess[depth]) << i;
      EXPECT_EQ(
          std::set<int32_t>(got.guess.begin() + draft - 1, got.guess.begin() + draft + 2).size(),
          3u);
    }
  }
}

// The CPU but for what the name says.
class TreelessOps final : public testing::PassingOps {
 public:
  TreelessOps()
      : PassingOps(cpu::make_cpu_ops({.dtype = tensor::DType::kF32, .num_threads = 1, .isa = {}})
                       .value()) {}
  ops::TreeOps* tree_ops() override { return nullptr; }
};

TEST(DraftHeadGolden, ATreeIsRefusedWhereNothingVerifiesIt) {
  const auto model = Checkpoint::open_folder(path_of("models/demo")).value();
  const auto head = Checkpoint::open_folder(path_of("models/demo-eagle")).value();
  step::RankedTree tree;
  tree.tree.add(0);
  tree.ranks.push_back(0);
  const auto refused = exec::load_model(*model, std::make_unique<TreelessOps>(), {},
                                        {.max_num_seqs = 1,
                                         .max_num_batched_tokens = 64,
                                         .max_draft = 1,
                                         .draft_model = head.get(),
                                         .draft_method = step::DraftMethod::kEagle3,
                                         .draft_tree = tree},
                                        {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().where, "speculative-config.speculative_token_tree");
}

// The head of eagle_head.py, whose weights are a formula; laid out as published ones are.
class MadeHead {
 public:
  MadeHead() {
    constexpr uint64_t kHidden = 256, kQ = 128, kKv = 64, kMlp = 96;
    add("fc.weight", {kHidden, 2 * kHidden}, 0.25f);
    add("fc.bias", {kHidden}, 0.5f);
    add("layers.0.self_attn.q_proj.weight", {kQ, kHidden}, 0.25f);
    add("layers.0.self_attn.k_proj.weight", {kKv, kHidden}, 0.25f);
    add("layers.0.self_attn.v_proj.weight", {kKv, kHidden}, 0.25f);
    add("layers.0.self_attn.o_proj.weight", {kHidden, kQ}, 0.25f);
    add("layers.0.post_attention_layernorm.weight", {kHidden}, 0.5f, 1);
    add("layers.0.mlp.gate_proj.weight", {kMlp, kHidden}, 0.25f);
    add("layers.0.mlp.up_proj.weight", {kMlp, kHidden}, 0.25f);
    add("layers.0.mlp.down_proj.weight", {kHidden, kMlp}, 0.25f);
    file_ = weights::make_safetensors_header(decls_, {}).value();
    const auto data = std::as_bytes(std::span(values_));
    file_.insert(file_.end(), data.begin(), data.end());
  }

  std::shared_ptr<const Checkpoint> open() const {
    return Checkpoint::open_memory(
               {{"config.json", std::as_bytes(std::span(kConfig))}, {"model.safetensors", file_}})
        .value();
  }

 private:
  static constexpr std::string_view kConfig =
      R"({"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
          "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2560,
          "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "hidden_act": "silu"})";

  // Tensor number n is made from seed n, counted from 1.
  void add(const char* name, std::initializer_list<uint64_t> shape, float scale, float centre = 0) {
    decls_.push_back({name, tensor::DType::kF32, weights::TensorShape::of(shape)});
    const auto seed = static_cast<uint32_t>(decls_.size());
    uint64_t count = 0;
    weights::checked_tensor_bytes(decls_.back().shape, 1, count);
    for (uint32_t i = 0; i < count; ++i) {
      uint32_t x = i + (seed << 20);
      for (int round = 0; round < 2; ++round) x = (x ^ x >> 16) * 0x45d9f3bu;
      x ^= x >> 16;
      values_.push_back((static_cast<float>(x >> 8) / (1 << 24) - 0.5f) * scale + centre);
    }
  }

  std::vector<weights::TensorDecl> decls_;
  std::vector<float> values_;
  std::vector<std::byte> file_;
};

TEST(EagleGolden, GuessesAreThoseOfNumpy) {
  const MadeHead head;
  Guesser guesser(*head.open(), step::DraftMethod::kEagle);
  const std::vector<Case> cases = read_cases("tests/draft_heads/eagle.json");
  EXPECT_GT(cases.size(), 60u);
  for (size_t i = 0; i < cases.size(); ++i) {
    const step::SeqResult got = guesser.behind(cases[i].ids, i % 3 == 0 ? 7 : 64);
    EXPECT_EQ(got.tokens, std::vector<int32_t>{cases[i].next}) << i;
    EXPECT_EQ(got.guess, cases[i].guess) << i;
  }
}

TEST(MedusaGolden, GuessesAreThoseOfPyTorch) {
  Guesser guesser(*Checkpoint::open_folder(path_of("models/demo-medusa")).value(),
                  step::DraftMethod::kMedusa);
  const std::vector<Case> cases = read_cases("tests/draft_heads/medusa.json");
  EXPECT_GT(cases.size(), 60u);
  for (size_t i = 0; i < cases.size(); ++i) {
    const step::SeqResult got = guesser.behind(cases[i].ids, i % 3 == 0 ? 7 : 64);
    EXPECT_EQ(got.tokens, std::vector<int32_t>{cases[i].next}) << i;
    EXPECT_EQ(got.guess, cases[i].guess) << i;
  }
}

// Its layers read keys of a group with a window and of one without. HF's own generator of
// candidates, behind a token that ran alone.
TEST(AssistantGolden, GuessesAreThoseOfTransformers) {
  Guesser guesser(*Checkpoint::open_folder(path_of("tests/draft_heads/gemma4-assistant")).value(),
                  step::DraftMethod::kAssistant, {}, "tests/golden/gemma4");
  const std::vector<Case> cases = read_cases("tests/draft_heads/assistant.json");
  EXPECT_GT(cases.size(), 50u);
  for (size_t i = 0; i < cases.size(); ++i) {
    const step::SeqResult got = guesser.behind(cases[i].ids, i % 3 == 0 ? 7 : 64);
    EXPECT_EQ(got.tokens, std::vector<int32_t>{cases[i].next}) << i;
    EXPECT_EQ(got.guess, cases[i].guess) << i << ", behind " << cases[i].ids.size();
  }
}

// One sequence at a time on one thread of the CPU, without an executor.
class AssistedModel {
 public:
  AssistedModel() {
    const auto model = Checkpoint::open_folder(path_of("tests/golden/gemma4")).value();
    const auto assistant =
        Checkpoint::open_folder(path_of("tests/draft_heads/gemma4-assistant")).value();
    ops_ = cpu::make_cpu_ops({.dtype = tensor::DType::kF32, .num_threads = 1, .isa = {}}).value();
    spec_ = model::read_spec(*model).value();
    weights_ = model::load_weights(*model, spec_, *ops_, {}).value();
    for (const model::LayerSpec& layer : spec_.layers) {
      const model::KvGeometry kept = model::kv_geometry(layer);
      kv_.push_back({.storage = allocate({kBlocks, 2, kept.num_kv_heads, 16 * kept.head_dim}),
                     .num_kv_heads = kept.num_kv_heads,
                     .head_dim = kept.head_dim});
    }
    final_rows_ = allocate({1, spec_.hidden});
    const model::DecoderLimits limits{
        .max_tokens = kMaxLen, .max_logits_rows = 1, .max_seq_len = kMaxLen};
    decoder_ = model::Decoder::make(spec_, weights_, kv_, *ops_, limits, {}, final_rows_).value();
    guesser_spec_ = model::read_assistant(*assistant).value();
    EXPECT_TRUE(model::fit_assistant(spec_, guesser_spec_));
    guesser_weights_ = model::load_assistant(*assistant, guesser_spec_, *ops_).value();
    guesser_ = model::Assistant::make(guesser_spec_, guesser_weights_,
                                      model::assistant_source(guesser_spec_, spec_, weights_, kv_),
                                      *ops_, 1, kMaxLen)
                   .value();
    for (int32_t b = 0; b < kBlocks; ++b) table_.push_back(b);
  }

  // Runs the tokens and picks the row of the last one.
  void run(const std::vector<int32_t>& ids) {
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < std::ssize(ids); ++i) positions.push_back(i);
    decoder_->forward(batch(ids, positions, positions, static_cast<int32_t>(ids.size())));
    rows_ = {0};
    guesser_->pick(final_rows_, view(rows_));
  }
  // Of what follows `token`, a guess behind so many tokens.
  std::span<const float> logits(int32_t token, int32_t num_tokens) {
    const ops::View made = guesser_->forward(batch({token}, {num_tokens}, {-1}, num_tokens));
    return {made.as<float>(), static_cast<size_t>(spec_.vocab)};
  }

 private:
  static constexpr int32_t kMaxLen = 16 * kBlocks;

  static ops::View view(std::vector<int32_t>& values) {
    return {values.data(), tensor::DType::kI32, {std::ssize(values)}};
  }
  ops::View allocate(tensor::Shape shape) {
    return ops_->allocate(tensor::DType::kF32, shape).value();
  }
  model::ForwardBatch batch(std::vector<int32_t> ids, std::vector<int32_t> positions,
                            std::vector<int32_t> slots, int32_t kv_len) {
    const auto count = static_cast<int32_t>(ids.size());
    ids_ = std::move(ids);
    positions_ = std::move(positions);
    slots_ = std::move(slots);
    begin_ = {0, count};
    kv_len_ = {kv_len};
    row_ = {0};
    last_ = {count - 1};
    ops::View table = view(table_);
    table.shape = {1, kBlocks};
    return {.ids = view(ids_),
            .positions = view(positions_),
            .kv_slot = view(slots_),
            .attention = {.q_begin = view(begin_),
                          .kv_len = view(kv_len_),
                          .table_row = view(row_),
                          .block_table = table,
                          .max_q_len = count,
                          .max_kv_len = kv_len,
                          .group_rows = 1},
            .logits_rows = view(last_)};
  }

  std::unique_ptr<ops::Ops> ops_;
  model::ModelSpec spec_;
  model::Weights weights_;
  std::vector<ops::KvLayer> kv_;
  ops::View final_rows_;
  std::unique_ptr<model::Decoder> decoder_;
  model::AssistantSpec guesser_spec_;
  model::AssistantWeights guesser_weights_;
  std::unique_ptr<model::Assistant> guesser_;
  std::vector<int32_t> ids_, positions_, slots_, begin_, kv_len_, row_, last_, rows_, table_;
};

TEST(AssistantGolden, LogitsAreThoseOfTransformers) {
  AssistedModel model;
  const std::vector<Case> cases = read_cases("tests/draft_heads/assistant.json");
  for (size_t i = 0; i < cases.size(); ++i) {
    model.run(cases[i].ids);
    int32_t token = cases[i].next;
    for (size_t g = 0; g < cases[i].guess.size(); ++g) {
      const auto logits = model.logits(token, static_cast<int32_t>(cases[i].ids.size()));
      token = cases[i].guess[g];
      const std::vector<double>& wanted = cases[i].logits.at(g);
      EXPECT_NEAR(logits[static_cast<size_t>(token)], wanted[0], 2e-3) << i << ", " << g;
      for (size_t t = 0; t < std::size(kTold); ++t) {
        EXPECT_NEAR(logits[static_cast<size_t>(kTold[t])], wanted[t + 1], 2e-3) << i << ", " << g;
      }
    }
  }
}

// That the comparison tells layers apart: rows of the layers behind those that the head reads give
// guesses too, but others.
TEST(DraftHeadGolden, RowsOfOtherLayersGiveOtherGuesses) {
  const std::string folder = path_of("models/demo-eagle");
  std::string config = weights::read_text_file(folder + "/config.json", 1 << 16).value();
  for (const auto& [from, to] : {std::pair("5", "6"), std::pair("4", "5"), std::pair("2", "3")}) {
    const size_t list = config.find("eagle_aux_hidden_state_layer_ids");
    const size_t at = config.find(from, list);
    ASSERT_LT(at, config.find(']', list));
    config.replace(at, 1, to);
  }
  const std::string file = weights::read_text_file(folder + "/model.safetensors", 1 << 22).value();
  const auto head = Checkpoint::open_memory({{"config.json", std::as_bytes(std::span(config))},
                                             {"model.safetensors", std::as_bytes(std::span(file))}})
                        .value();
  Guesser guesser(*head);
  size_t num_equal = 0;
  size_t num_cases = 0;
  const std::vector<Case> cases = read_cases();
  for (size_t i = 0; i < cases.size(); i += 3) {
    const step::SeqResult got = guesser.behind(cases[i].ids, 64);
    EXPECT_EQ(got.tokens, std::vector<int32_t>{cases[i].next});
    ++num_cases;
    if (got.guess == cases[i].guess) ++num_equal;
  }
  EXPECT_LT(2 * num_equal, num_cases);
}

}  // namespace
}  // namespace rudder
