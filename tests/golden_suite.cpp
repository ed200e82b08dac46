#include "golden_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/model/check_facets.h"
#include "rudder/model/decoder.h"
#include "rudder/model/loader.h"
#include "rudder/ops/make_kv_layer.h"
#include "rudder/testing/device_tensors.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"

namespace rudder::golden {
namespace {

std::string golden_folder() {
  return std::string(RUDDER_SOURCE_DIR) + "/tests/golden";
}

template <typename T>
std::vector<T> values(const weights::Safetensors& file, std::string_view name) {
  const auto bytes = file.bytes_of(*file.find(name));
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

float largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    largest = difference <= largest ? largest : difference;  // a NaN comes through
  }
  return largest;
}

// Sequence number `seq` gets `ids` at positions `begin` and on.
struct Piece {
  int32_t seq = 0;
  int32_t begin = 0;
  std::vector<int32_t> ids;
};

}  // namespace

// A loaded model with room for a few sequences, whose blocks lie interleaved.
class Model {
 public:
  static constexpr int32_t kNumSeqs = 3;
  static constexpr int32_t kBlockSize = 16;
  static constexpr int32_t kMaxTokens = 256;

  Model(const std::string& folder, int32_t max_len, std::unique_ptr<ops::Ops> ops,
        const KvScaleTable* scales = nullptr)
      : max_len_(max_len),
        max_blocks_((max_len + kBlockSize - 1) / kBlockSize),
        device_(std::move(ops)) {
    auto checkpoint = weights::Checkpoint::open_folder(folder);
    check(checkpoint);
    auto spec = model::read_spec(**checkpoint);
    check(spec);
    spec_ = *spec;
    const auto planned = model::budget_weights(**checkpoint, spec_, device_.ops());
    check(planned);
    planned_bytes_ = planned->bytes;
    auto loaded = model::load_weights(**checkpoint, spec_, device_.ops(), {});
    check(loaded);
    weights_ = std::move(*loaded);
    for (size_t i = 0; scales != nullptr && i < weights_.layers.size(); ++i) {
      auto& attention = std::get<model::Attention::Weights>(weights_.layers[i].mixer);
      attention.k_scale = upload(scales->k[i]);
      attention.v_scale = upload(scales->v[i]);
    }
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const auto [heads, dim, window, parts] = model::kv_geometry(spec_.layers[i]);
      auto kv = ops::make_kv_layer(
          device_.ops(), kNumSeqs * max_blocks_,
          {.block_size = kBlockSize, .num_kv_heads = heads, .head_dim = dim, .parts = parts});
      check(kv);
      kv_.push_back(*kv);
      kv_[i] = kv_[model::kv_layer_of(spec_, i)];
    }
    std::vector<model::LayerState> states;
    for (const model::LayerSpec& layer : spec_.layers) {
      if (!model::keeps_states(spec_)) break;
      const int64_t bytes = (model::state_bytes(layer).state + 63) / 64 * 64;
      auto pool = device_.ops().allocate(tensor::DType::kU8, {kNumSeqs, bytes});
      check(pool);
      states.push_back({.pool = *pool, .begin = 0, .kept = {}});
    }
    auto decoder = model::Decoder::make(
        spec_, weights_, kv_, device_.ops(),
        {.max_tokens = kMaxTokens, .max_logits_rows = kMaxTokens, .max_seq_len = max_len}, {}, {},
        states);
    check(decoder);
    decoder_ = std::move(*decoder);
  }

  const model::ModelSpec& spec() const { return spec_; }
  const model::Weights& weights() const { return weights_; }
  int64_t planned_bytes() const { return planned_bytes_; }
  bool multiplies_fp8() const {
    const auto& output =
        std::visit([](const auto& mixer) -> const ops::LinearWeight& { return mixer.output(); },
                   weights_.layers[0].mixer);
    return output.input == ops::InputForm::kF8Rows;
  }

  // The largest key (part 0) or value (part 1) of each head that a layer's cache of f32 holds.
  std::vector<float> largest_of_heads(size_t layer, int64_t part) {
    const ops::KvLayer& kv = kv_[layer];
    const std::vector<float> stored = device_.values<float>(kv.storage);
    const int64_t head_size = kv.storage.shape[3];
    std::vector<float> largest(static_cast<size_t>(kv.num_kv_heads));
    for (int64_t block = 0; block < kv.storage.shape[0]; ++block) {
      for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
        const int64_t begin = ((block * 2 + part) * kv.num_kv_heads + head) * head_size;
        float& most = largest[static_cast<size_t>(head)];
        for (int64_t i = begin; i < begin + head_size; ++i) {
          most = std::max(most, std::abs(stored[static_cast<size_t>(i)]));
        }
      }
    }
    return largest;
  }

  // Runs one step; logits of every token, [tokens, vocab].
  std::vector<float> step(const std::vector<Piece>& pieces) {
    std::vector<int32_t> ids;
    std::vector<int32_t> positions;
    std::vector<int32_t> slots;
    std::vector<int32_t> rows;
    std::vector<int32_t> q_begin = {0};
    std::vector<int32_t> kv_len;
    std::vector<int32_t> table;
    std::vector<int32_t> table_row;
    std::vector<int32_t> states;
    for (const Piece& piece : pieces) {
      for (size_t i = 0; i < piece.ids.size(); ++i) {
        const int32_t position = piece.begin + static_cast<int32_t>(i);
        rows.push_back(static_cast<int32_t>(ids.size()));
        ids.push_back(piece.ids[i]);
        positions.push_back(position);
        slots.push_back(block(piece.seq, position / kBlockSize) * kBlockSize +
                        position % kBlockSize);
      }
      q_begin.push_back(static_cast<int32_t>(ids.size()));
      kv_len.push_back(piece.begin + static_cast<int32_t>(piece.ids.size()));
      table_row.push_back(static_cast<int32_t>(table_row.size()));
      states.push_back(piece.seq);
      for (int32_t b = 0; b < max_blocks_; ++b) table.push_back(block(piece.seq, b));
    }
    tensor::View block_table = device_.put(table);
    block_table.shape = {static_cast<int64_t>(pieces.size()), max_blocks_};
    const ops::View logits = decoder_->forward(
        {.ids = device_.put(ids),
         .positions = device_.put(positions),
         .kv_slot = device_.put(slots),
         .attention = {.q_begin = device_.put(q_begin),
                       .kv_len = device_.put(kv_len),
                       .table_row = device_.put(table_row),
                       .block_table = block_table,
                       .max_q_len = kMaxTokens,
                       .max_kv_len = max_len_},
         .logits_rows = device_.put(rows),
         .states = {device_.put(states), device_.put(std::vector<int32_t>(states.size()))}});
    return device_.values<float>(logits);
  }

 private:
  template <typename T>
  static void check(const Result<T>& result) {
    if (!result) throw std::runtime_error(result.error().to_string());
  }
  ops::View upload(const std::vector<float>& numbers) {
    return device_.put_as(std::span(numbers), tensor::DType::kF32,
                          {static_cast<int64_t>(numbers.size())});
  }
  int32_t block(int32_t seq, int32_t index) const { return index * kNumSeqs + seq; }

  const int32_t max_len_;
  const int32_t max_blocks_;
  testing::Device device_;
  model::ModelSpec spec_;
  model::Weights weights_;
  int64_t planned_bytes_ = 0;
  std::vector<ops::KvLayer> kv_;
  std::unique_ptr<model::Decoder> decoder_;
};

Golden::Golden() = default;
Golden::~Golden() = default;

Answers read_answers(const std::string& name) {
  const std::string folder = golden_folder() + "/" + name;
  const auto file = weights::MappedFile::open(folder + "/golden.safetensors").value();
  const auto parsed = weights::parse_safetensors(file->bytes(), "golden.safetensors").value();
  const auto text = weights::read_text_file(folder + "/meta.json", 1 << 20).value();
  const auto meta = parse_json(text, "meta.json").value();
  return {.prompt = values<int32_t>(parsed, "prompt_ids"),
          .logits = values<float>(parsed, "logits"),
          .greedy_ids = values<int32_t>(parsed, "greedy_ids"),
          .greedy_logits = values<float>(parsed, "greedy_logits"),
          .max_len = static_cast<int32_t>(meta.as_object().at("max_len").as_int64())};
}

namespace {
bool has_experts(const model::ModelSpec& spec) {
  return std::ranges::any_of(spec.layers,
                             [](const auto& layer) { return model::experts_of(layer) != nullptr; });
}

// Layers that the backend has no kernels of; in fp8, gates of states and MLPs of odd widths.
bool is_out_of_reach(const std::string& name, ops::Ops& ops) {
  const auto checkpoint = weights::Checkpoint::open_folder(golden_folder() + "/" + name).value();
  const model::ModelSpec spec = model::read_spec(*checkpoint).value();
  const bool is_fp8 = ops.stored_format({}) == ops::kFp8Rows;
  if (!model::check_facets(spec, ops) || (is_fp8 && model::keeps_states(spec))) return true;
  return is_fp8 && std::ranges::any_of(spec.layers, [](const model::LayerSpec& layer) {
           const model::Experts* const experts = model::experts_of(layer);
           if (experts != nullptr) return (experts->width | experts->shared_width) % 16 != 0;
           const auto* const dense = std::get_if<model::GatedMlp>(&layer.mlp);
           return dense != nullptr && dense->width % 16 != 0;
         });
}

// Rounding may turn the choice of an expert: such models are held to what they predict.
Limits limits_of(const model::ModelSpec& spec, Limits limits) {
  if (limits.tolerance > kF32Limits.tolerance && has_experts(spec)) limits.tolerance = 4;
  return limits;
}

}  // namespace

void Golden::SetUp() {
  answers_ = read_answers(name());
  std::unique_ptr<ops::Ops> ops = backend().make();
  if (is_out_of_reach(name(), *ops)) GTEST_SKIP() << "it runs no such model";
  model_ =
      std::make_unique<Model>(golden_folder() + "/" + name(), answers_.max_len, std::move(ops));
  vocab_ = static_cast<size_t>(model_->spec().vocab);
  ASSERT_EQ(answers_.logits.size(), answers_.prompt.size() * vocab_);
}

Limits Golden::limits() const {
  return limits_of(model_->spec(), model_->multiplies_fp8() ? backend().fp8 : backend().wide);
}

namespace {

std::string in_repository(const std::string& folder) {
  return std::string(RUDDER_SOURCE_DIR) + "/" + folder;
}

}  // namespace

std::vector<float> prompt_logits(const std::string& folder, std::unique_ptr<ops::Ops> ops,
                                 const std::vector<int32_t>& ids, const KvScaleTable* scales) {
  Model model(in_repository(folder), static_cast<int32_t>(ids.size()), std::move(ops), scales);
  return model.step({{0, 0, ids}});
}

std::vector<float> logits_in_company(const std::string& folder, std::unique_ptr<ops::Ops> ops,
                                     const std::vector<int32_t>& ids,
                                     const std::vector<int32_t>& before,
                                     const std::vector<int32_t>& behind) {
  const size_t longest = std::max({ids.size(), before.size(), behind.size()});
  Model model(in_repository(folder), static_cast<int32_t>(longest), std::move(ops));
  const std::vector<float> all = model.step({{1, 0, before}, {0, 0, ids}, {2, 0, behind}});
  const auto vocab = static_cast<size_t>(model.spec().vocab);
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(before.size() * vocab);
  return {first, first + static_cast<std::ptrdiff_t>(ids.size() * vocab)};
}

KvScaleTable calibrated_kv_scales(const std::string& folder, const std::vector<int32_t>& ids) {
  Model model(in_repository(folder), static_cast<int32_t>(ids.size()), cpu::make_reference_ops());
  model.step({{0, 0, ids}});
  KvScaleTable table;
  for (size_t layer = 0; layer < model.spec().layers.size(); ++layer) {
    table.k.push_back(model.largest_of_heads(layer, 0));
    table.v.push_back(model.largest_of_heads(layer, 1));
    for (std::vector<float>* heads : {&table.k.back(), &table.v.back()}) {
      for (float& scale : *heads) scale /= tensor::kMaxF8E4M3;
    }
  }
  return table;
}

DemoText greedy_text(const std::string& folder) {
  constexpr size_t kTokens = 96;
  const auto logits_of = [&](const std::vector<int32_t>& ids) {
    auto ops = cpu::make_cpu_ops({.dtype = tensor::DType::kF32, .num_threads = 0, .isa = {}});
    return prompt_logits(folder, std::move(ops.value()), ids);
  };
  DemoText out;
  out.ids = {0};
  while (out.ids.size() < kTokens) {
    out.logits = logits_of(out.ids);
    const auto last = out.logits.end() - static_cast<std::ptrdiff_t>(DemoText::kVocab);
    out.ids.push_back(static_cast<int32_t>(std::max_element(last, out.logits.end()) - last));
  }
  out.logits = logits_of(out.ids);
  return out;
}

const DemoText& demo_text() {
  static const DemoText text = greedy_text(DemoText::kFolder);
  return text;
}

void Golden::expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                          const char* what) {
  const float difference = largest_difference(actual, expected);
  const auto [kl, same] = distance(expected, actual, vocab_, limits().uncounted);
  fmt::print("  {} {} {}: largest difference {:.2e}, mean KL {:.2e}, same token {:.1f} %\n", name(),
             backend().name, what, difference, kl, 100 * same);
  EXPECT_LE(difference, limits().tolerance);
  EXPECT_LE(kl, limits().mean_kl);
  EXPECT_GE(same, limits().agreement);
}

void Golden::expect_same(std::span<const float> actual, std::span<const float> expected,
                         const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  if (backend().exact_rows) {
    EXPECT_TRUE(std::equal(actual.begin(), actual.end(), expected.begin())) << what;
  } else {
    EXPECT_LE(distance(expected, actual, vocab_, limits().uncounted).mean_kl, limits().mean_kl)
        << what;
  }
}

std::vector<float> Golden::run_prompt(size_t chunk, int32_t seq) {
  std::vector<float> out;
  for (size_t begin = 0; begin < answers_.prompt.size(); begin += chunk) {
    const size_t end = std::min(begin + chunk, answers_.prompt.size());
    const std::vector<float> part =
        model_->step({{seq,
                       static_cast<int32_t>(begin),
                       {answers_.prompt.begin() + static_cast<std::ptrdiff_t>(begin),
                        answers_.prompt.begin() + static_cast<std::ptrdiff_t>(end)}}});
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

std::vector<std::string> checkpoint_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder())) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string test_name(const std::string& checkpoint, const std::string& backend) {
  std::string name = checkpoint.substr(checkpoint.rfind('/') + 1) + "_" + backend;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

namespace {

TEST_P(Golden, LogitsOfThePrompt) {
  expect_close(run_prompt(answers_.prompt.size(), 0), answers_.logits, "prompt");
}

// The reference's tokens are fed, so that the last rows can be compared also where one differs.
TEST_P(Golden, GreedyTokens) {
  std::vector<float> row = run_prompt(answers_.prompt.size(), 1);
  std::vector<float> last_rows;
  size_t same = 0;
  const size_t num_rows = answers_.greedy_logits.size() / vocab_;
  for (size_t i = 0; i < answers_.greedy_ids.size(); ++i) {
    row.erase(row.begin(), row.end() - static_cast<std::ptrdiff_t>(vocab_));
    if (i + num_rows >= answers_.greedy_ids.size()) {
      last_rows.insert(last_rows.end(), row.begin(), row.end());
    }
    same +=
        std::max_element(row.begin(), row.end()) - row.begin() == answers_.greedy_ids[i] ? 1 : 0;
    const auto position = static_cast<int32_t>(answers_.prompt.size() + i);
    if (i + 1 < answers_.greedy_ids.size())
      row = model_->step({{1, position, {answers_.greedy_ids[i]}}});
  }
  EXPECT_GE(static_cast<double>(same) / static_cast<double>(answers_.greedy_ids.size()),
            limits().agreement)
      << same << " of " << answers_.greedy_ids.size();
  expect_close(last_rows, answers_.greedy_logits, "last rows");
}

TEST_P(Golden, ChunksGiveTheSame) {
  const std::vector<float> whole = run_prompt(answers_.prompt.size(), 0);
  for (const size_t chunk : {1, 5, 16, 37}) {
    expect_same(run_prompt(chunk, 1), whole, fmt::format("chunks of {}", chunk));
  }
}

TEST_P(Golden, AloneAndAmongOthersGiveTheSame) {
  const std::vector<float> alone = run_prompt(answers_.prompt.size(), 0);
  std::mt19937 random(7);
  std::vector<int32_t> others(40);
  for (int32_t& id : others) id = static_cast<int32_t>(random() % vocab_);
  // One neighbour that decodes, one that prefills, and the prompt in two parts between them.
  model_->step({{2, 0, {others.begin(), others.begin() + 9}}});
  const size_t half = answers_.prompt.size() / 2;
  const std::vector<float> first = model_->step(
      {{2, 9, {others[9]}},
       {1,
        0,
        {answers_.prompt.begin(), answers_.prompt.begin() + static_cast<std::ptrdiff_t>(half)}},
       {0, 0, others}});
  const std::vector<float> second = model_->step(
      {{0, 40, {others[1], others[2]}},
       {2, 10, {others[10]}},
       {1,
        static_cast<int32_t>(half),
        {answers_.prompt.begin() + static_cast<std::ptrdiff_t>(half), answers_.prompt.end()}}});
  const auto rows = [&](const std::vector<float>& step, size_t begin, size_t count) {
    return std::span(step).subspan(begin * vocab_, count * vocab_);
  };
  expect_same(rows(first, 1, half), rows(alone, 0, half), "the first part");
  expect_same(rows(second, 3, answers_.prompt.size() - half),
              rows(alone, half, answers_.prompt.size() - half), "the second part");
}

TEST_P(Golden, MemoryIsKnownBeforeLoading) {
  const int64_t planned = model_->planned_bytes();
  // A backend may pad rows and inputs to whole tiles, which is much of what is as small as these.
  const int64_t padding = has_experts(model_->spec()) ? planned * 2 / 5 : planned / 5;
  EXPECT_LE(model_->weights().bytes, planned + padding);
  EXPECT_GE(model_->weights().bytes, planned - planned / 16);
}

// The stored tokens are fed to both, prompt and continuation as one sequence.
TEST_P(GoldenTwins, AgreeOnEveryToken) {
  const auto& [name, twins] = GetParam();
  if (is_out_of_reach(name, *twins.make())) GTEST_SKIP() << "it runs no such model";
  const Answers answers = read_answers(name);
  std::vector<int32_t> ids = answers.prompt;
  ids.insert(ids.end(), answers.greedy_ids.begin(), answers.greedy_ids.end());
  const std::string folder = golden_folder() + "/" + name;
  Model model(folder, answers.max_len, twins.make());
  const Limits limits = limits_of(model.spec(), model.multiplies_fp8() ? twins.fp8 : twins.wide);
  const std::vector<float> got = model.step({{0, 0, ids}});
  const std::vector<float> want = Model(folder, answers.max_len, twins.other()).step({{0, 0, ids}});
  const float difference = largest_difference(got, want);
  const auto [kl, same] = distance(want, got, want.size() / ids.size());
  fmt::print("  {} {}: largest difference {:.2e}, mean KL {:.2e}, same token {:.1f} %\n", name,
             twins.name, difference, kl, 100 * same);
  EXPECT_LE(difference, limits.tolerance);
  EXPECT_LE(kl, limits.mean_kl);
  EXPECT_GE(same, limits.agreement);
}

TEST(GoldenSet, IsThere) {
  EXPECT_GE(checkpoint_names().size(), 25U);
}

}  // namespace
}  // namespace rudder::golden
