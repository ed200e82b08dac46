// Golden tests: each checkpoint of tests/golden against what Hugging Face transformers computed
// from it (tools/golden), on the CPU reference. One model, one loader, one forward pass: every
// mechanism of every architecture is compared with an implementation that is not ours. Then the
// same sequence cut into chunks, and among other sequences, must give the same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/model/decoder.h"
#include "rudder/model/loader.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"

namespace rudder {
namespace {

// What a backend promises: `tolerance` of a logit, where logits have a standard deviation of 2, and
// the same greedy tokens; or, where it rounds to bf16, `mean_kl` of the predicted distributions.
struct Backend {
  const char* name;
  std::optional<tensor::DType> dtype;  // of the fast backend; none: the reference
  float tolerance;
  double mean_kl;

  bool exact() const { return dtype != tensor::DType::kBF16; }

  std::unique_ptr<ops::Ops> make() const {
    if (!dtype) return cpu::make_reference_ops();
    auto ops = cpu::make_cpu_ops({.dtype = *dtype, .num_threads = 2, .isa = {}});
    if (!ops) throw std::runtime_error(ops.error().to_string());
    return std::move(*ops);
  }
};

constexpr Backend kBackends[] = {
    {"reference", std::nullopt, 1e-4f, 1e-9},
    {"fast_f32", tensor::DType::kF32, 1e-4f, 1e-9},
    {"fast_bf16", tensor::DType::kBF16, 0.6f, 4e-3},
};

// Sequence number `seq` gets `ids` at positions `begin` and on.
struct Piece {
  int32_t seq = 0;
  int32_t begin = 0;
  std::vector<int32_t> ids;
};

// A loaded model with room for a few sequences, whose blocks lie interleaved.
class Model {
 public:
  static constexpr int32_t kNumSeqs = 3;
  static constexpr int32_t kBlockSize = 16;

  Model(const std::string& folder, int32_t max_len, std::unique_ptr<ops::Ops> ops)
      : max_len_(max_len),
        max_blocks_((max_len + kBlockSize - 1) / kBlockSize),
        ops_(std::move(ops)) {
    auto checkpoint = weights::Checkpoint::open_folder(folder);
    check(checkpoint);
    auto spec = model::read_spec(**checkpoint);
    check(spec);
    spec_ = *spec;
    auto loaded = model::load_weights(**checkpoint, spec_, *ops_, {});
    check(loaded);
    weights_ = std::move(*loaded);
    for (const model::LayerSpec& layer : spec_.layers) {
      const model::AttentionSpec& a = layer.attention;
      auto storage = ops_->allocate(ops_->kv_dtype(), {kNumSeqs * max_blocks_, 2, a.num_kv_heads,
                                                       int64_t{kBlockSize} * a.head_dim});
      check(storage);
      kv_.push_back({*storage, kBlockSize, a.num_kv_heads, a.head_dim});
    }
    auto decoder =
        model::Decoder::make(spec_, weights_, kv_, *ops_,
                             {.max_tokens = 256, .max_logits_rows = 256, .max_seq_len = max_len});
    check(decoder);
    decoder_ = std::move(*decoder);
  }

  const model::ModelSpec& spec() const { return spec_; }
  const model::Weights& weights() const { return weights_; }
  tensor::DType linear_dtype() const { return ops_->linear_dtype(); }

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
      for (int32_t b = 0; b < max_blocks_; ++b) table.push_back(block(piece.seq, b));
    }
    using tensor::host_view;
    tensor::View block_table = host_view(table);
    block_table.shape = {static_cast<int64_t>(pieces.size()), max_blocks_};
    const ops::View logits = decoder_->forward({.ids = host_view(ids),
                                                .positions = host_view(positions),
                                                .kv_slot = host_view(slots),
                                                .attention = {.q_begin = host_view(q_begin),
                                                              .kv_len = host_view(kv_len),
                                                              .table_row = host_view(table_row),
                                                              .block_table = block_table,
                                                              .max_q_len = 256,
                                                              .max_kv_len = max_len_},
                                                .logits_rows = host_view(rows)});
    const float* data = logits.as<float>();
    return {data, data + logits.shape.numel()};
  }

 private:
  template <typename T>
  static void check(const Result<T>& result) {
    if (!result) throw std::runtime_error(result.error().to_string());
  }
  int32_t block(int32_t seq, int32_t index) const { return index * kNumSeqs + seq; }

  const int32_t max_len_;
  const int32_t max_blocks_;
  const std::unique_ptr<ops::Ops> ops_;
  model::ModelSpec spec_;
  model::Weights weights_;
  std::vector<ops::KvLayer> kv_;
  std::unique_ptr<model::Decoder> decoder_;
};

class Golden : public testing::TestWithParam<std::tuple<std::string, Backend>> {
 protected:
  void SetUp() override {
    folder_ = std::string(RUDDER_SOURCE_DIR) + "/tests/golden/" + name();
    auto file = weights::MappedFile::open(folder_ + "/golden.safetensors");
    ASSERT_TRUE(file) << file.error().to_string();
    auto parsed = weights::parse_safetensors((*file)->bytes(), "golden.safetensors");
    ASSERT_TRUE(parsed) << parsed.error().to_string();
    prompt_ = values<int32_t>(*parsed, "prompt_ids");
    logits_ = values<float>(*parsed, "logits");
    greedy_ids_ = values<int32_t>(*parsed, "greedy_ids");
    greedy_logits_ = values<float>(*parsed, "greedy_logits");
    auto text = weights::read_text_file(folder_ + "/meta.json", 1 << 20);
    ASSERT_TRUE(text);
    auto meta = parse_json(*text, "meta.json");
    ASSERT_TRUE(meta);
    model_ = std::make_unique<Model>(
        folder_, static_cast<int32_t>(meta->as_object().at("max_len").as_int64()),
        backend().make());
    vocab_ = static_cast<size_t>(model_->spec().vocab);
    ASSERT_EQ(logits_.size(), prompt_.size() * vocab_);
  }

  static const std::string& name() { return std::get<0>(GetParam()); }
  static const Backend& backend() { return std::get<1>(GetParam()); }

  template <typename T>
  static std::vector<T> values(const weights::Safetensors& file, std::string_view name) {
    const auto bytes = file.bytes_of(*file.find(name));
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  static float largest_difference(std::span<const float> a, std::span<const float> b) {
    EXPECT_EQ(a.size(), b.size());
    float largest = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const float difference = std::abs(a[i] - b[i]);
      largest = difference <= largest ? largest : difference;  // a NaN comes through
    }
    return largest;
  }

  // Mean over rows of KL(softmax(expected) || softmax(actual)).
  double mean_kl(std::span<const float> expected, std::span<const float> actual) const {
    double sum = 0;
    for (size_t row = 0; row < expected.size() / vocab_; ++row) {
      const auto e = expected.subspan(row * vocab_, vocab_);
      const auto a = actual.subspan(row * vocab_, vocab_);
      const auto log_sum = [](std::span<const float> x) {
        double total = 0;
        for (const float v : x) total += std::exp(static_cast<double>(v));
        return std::log(total);
      };
      const double e_sum = log_sum(e);
      const double a_sum = log_sum(a);
      for (size_t i = 0; i < vocab_; ++i) {
        const double p = std::exp(e[i] - e_sum);
        sum += p * ((e[i] - e_sum) - (a[i] - a_sum));
      }
    }
    return sum / (static_cast<double>(expected.size()) / static_cast<double>(vocab_));
  }

  void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                    const char* what) {
    const float difference = largest_difference(actual, expected);
    const double kl = mean_kl(expected, actual);
    fmt::print("  {} {} {}: largest difference {:.2e}, mean KL {:.2e}\n", name(), backend().name,
               what, difference, kl);
    EXPECT_LE(difference, backend().tolerance);
    EXPECT_LE(kl, backend().mean_kl);
  }

  // The prompt in chunks; logits of all its tokens.
  std::vector<float> run_prompt(size_t chunk, int32_t seq) {
    std::vector<float> out;
    for (size_t begin = 0; begin < prompt_.size(); begin += chunk) {
      const size_t end = std::min(begin + chunk, prompt_.size());
      const std::vector<float> part =
          model_->step({{seq,
                         static_cast<int32_t>(begin),
                         {prompt_.begin() + static_cast<std::ptrdiff_t>(begin),
                          prompt_.begin() + static_cast<std::ptrdiff_t>(end)}}});
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }

  std::string folder_;
  std::vector<int32_t> prompt_;
  std::vector<float> logits_;
  std::vector<int32_t> greedy_ids_;
  std::vector<float> greedy_logits_;
  std::unique_ptr<Model> model_;
  size_t vocab_ = 0;
};

TEST_P(Golden, LogitsOfThePrompt) {
  expect_close(run_prompt(prompt_.size(), 0), logits_, "prompt");
}

// The reference's tokens are fed, so that the last rows can be compared also where one differs.
TEST_P(Golden, GreedyTokens) {
  std::vector<float> row = run_prompt(prompt_.size(), 1);
  std::vector<float> last_rows;
  std::vector<int32_t> ids;
  const size_t num_rows = greedy_logits_.size() / vocab_;
  for (size_t i = 0; i < greedy_ids_.size(); ++i) {
    row.erase(row.begin(), row.end() - static_cast<std::ptrdiff_t>(vocab_));
    if (i + num_rows >= greedy_ids_.size()) {
      last_rows.insert(last_rows.end(), row.begin(), row.end());
    }
    ids.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    const auto position = static_cast<int32_t>(prompt_.size() + i);
    if (i + 1 < greedy_ids_.size()) row = model_->step({{1, position, {greedy_ids_[i]}}});
  }
  if (backend().exact()) {
    EXPECT_EQ(ids, greedy_ids_);
  }
  expect_close(last_rows, greedy_logits_, "last rows");
}

TEST_P(Golden, ChunksGiveTheSameBits) {
  const std::vector<float> whole = run_prompt(prompt_.size(), 0);
  for (const size_t chunk : {1, 5, 16, 37}) {
    EXPECT_EQ(run_prompt(chunk, 1), whole) << "chunks of " << chunk;
  }
}

TEST_P(Golden, AloneAndAmongOthersGiveTheSameBits) {
  const std::vector<float> alone = run_prompt(prompt_.size(), 0);
  std::mt19937 random(7);
  std::vector<int32_t> others(40);
  for (int32_t& id : others) id = static_cast<int32_t>(random() % vocab_);
  // One neighbour that decodes, one that prefills, and the prompt in two parts between them.
  model_->step({{2, 0, {others.begin(), others.begin() + 9}}});
  const size_t half = prompt_.size() / 2;
  const std::vector<float> first =
      model_->step({{2, 9, {others[9]}},
                    {1, 0, {prompt_.begin(), prompt_.begin() + static_cast<std::ptrdiff_t>(half)}},
                    {0, 0, others}});
  const std::vector<float> second =
      model_->step({{0, 40, {others[1], others[2]}},
                    {2, 10, {others[10]}},
                    {1,
                     static_cast<int32_t>(half),
                     {prompt_.begin() + static_cast<std::ptrdiff_t>(half), prompt_.end()}}});
  const auto same = [&](const std::vector<float>& step, size_t skip, size_t begin, size_t end) {
    return std::equal(alone.begin() + static_cast<std::ptrdiff_t>(begin * vocab_),
                      alone.begin() + static_cast<std::ptrdiff_t>(end * vocab_),
                      step.begin() + static_cast<std::ptrdiff_t>(skip * vocab_));
  };
  EXPECT_TRUE(same(first, 1, 0, half));
  EXPECT_TRUE(same(second, 3, half, prompt_.size()));
}

TEST_P(Golden, MemoryIsKnownBeforeLoading) {
  const int64_t planned = model::weight_bytes(model_->spec(), model_->linear_dtype());
  EXPECT_LE(model_->weights().bytes, planned + planned / 8);  // a backend may pad
  EXPECT_GE(model_->weights().bytes, planned - planned / 16);
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(RUDDER_SOURCE_DIR) + "/tests/golden")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Golden,
                         testing::Combine(testing::ValuesIn(golden_names()),
                                          testing::ValuesIn(kBackends)),
                         [](const auto& golden) {
                           std::string name =
                               std::get<0>(golden.param) + "_" + std::get<1>(golden.param).name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GoldenSet, IsThere) {
  EXPECT_GE(golden_names().size(), 20U);
}

}  // namespace
}  // namespace rudder
