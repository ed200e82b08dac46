// The checkpoints of tests/golden through modules: logits of Hugging Face transformers, for the
// prompt whole and in chunks, token by token, and beside other sequences. Checkpoints that modules
// do not run are refused by name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/model/loader.h"
#include "rudder/pjrt/model_text.h"
#include "rudder/pjrt/module_decoder.h"
#include "rudder/pjrt/pjrt_ops.h"
#include "rudder/pjrt/test_plugin.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"

namespace rudder {
namespace {

constexpr int32_t kNumSeqs = 3;
constexpr int32_t kBlockSize = 16;
constexpr int32_t kMaxTokens = 256;

struct Piece {
  int32_t seq = 0;
  int32_t begin = 0;
  std::vector<int32_t> ids;
};

struct Answers {
  std::vector<int32_t> prompt;
  std::vector<float> logits;
  int32_t max_len = 0;  // that the answers were made for: some ropes depend on it
};

template <typename T>
std::vector<T> values(const weights::Safetensors& file, std::string_view name) {
  const auto bytes = file.bytes_of(*file.find(name));
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

Answers read_answers(const std::string& folder) {
  const auto file = weights::MappedFile::open(folder + "/golden.safetensors").value();
  const auto parsed = weights::parse_safetensors(file->bytes(), "golden.safetensors").value();
  const auto text = weights::read_text_file(folder + "/meta.json", 1 << 20).value();
  const auto meta = parse_json(text, "meta.json").value();
  return {values<int32_t>(parsed, "prompt_ids"), values<float>(parsed, "logits"),
          static_cast<int32_t>(meta.as_object().at("max_len").as_int64())};
}

// A model whose sequences' blocks lie interleaved.
class Model {
 public:
  Model(const std::string& folder, int32_t max_len, tensor::DType dtype = tensor::DType::kF32)
      : max_blocks_((max_len + kBlockSize - 1) / kBlockSize) {
    ops_ = pjrt::PjrtOps::make({.plugin = pjrt::test_plugin(), .dtype = dtype}).value();
    const auto checkpoint = weights::Checkpoint::open_folder(folder).value();
    spec_ = model::read_spec(*checkpoint).value();
    weights_ = model::load_weights(*checkpoint, spec_, *ops_, {}).value();
    model::OwnKvDecoderParts parts{
        .spec = spec_,
        .weights = weights_,
        .ops = *ops_,
        .limits = {.max_tokens = kMaxTokens, .max_logits_rows = kMaxTokens, .max_seq_len = max_len},
        .kv = {},
        .num_blocks = kNumSeqs * max_blocks_};
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      parts.kv.push_back({0, static_cast<int32_t>(model::kv_layer_of(spec_, i)), 1});
    }
    decoder_ = pjrt::make_module_decoder(parts, {}).value();
  }

  size_t vocab() const { return static_cast<size_t>(spec_.vocab); }

  // Logits of every token.
  std::vector<float> step(const std::vector<Piece>& pieces) {
    std::vector<int32_t> ids;
    std::vector<int32_t> positions;
    std::vector<int32_t> slots;
    std::vector<int32_t> rows;
    std::vector<int32_t> begins = {0};
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
      begins.push_back(static_cast<int32_t>(ids.size()));
      kv_len.push_back(piece.begin + static_cast<int32_t>(piece.ids.size()));
      table_row.push_back(static_cast<int32_t>(table_row.size()));
      for (int32_t b = 0; b < max_blocks_; ++b) table.push_back(block(piece.seq, b));
    }
    tensor::View block_table = tensor::host_view(table);
    block_table.shape = {std::ssize(pieces), max_blocks_};
    const tensor::View logits =
        decoder_->forward({.ids = tensor::host_view(ids),
                           .positions = tensor::host_view(positions),
                           .kv_slot = tensor::host_view(slots),
                           .attention = {.q_begin = tensor::host_view(begins),
                                         .kv_len = tensor::host_view(kv_len),
                                         .table_row = tensor::host_view(table_row),
                                         .block_table = block_table},
                           .logits_rows = tensor::host_view(rows)});
    const Result<void> status = ops_->status();
    EXPECT_TRUE(status) << status.error().message;
    if (logits.empty()) return {};
    return {logits.as<float>(), logits.as<float>() + logits.shape.numel()};
  }

 private:
  static int32_t block(int32_t seq, int32_t index) { return index * kNumSeqs + seq; }

  const int32_t max_blocks_;
  std::unique_ptr<pjrt::PjrtOps> ops_;
  model::ModelSpec spec_;
  model::Weights weights_;
  std::unique_ptr<model::Decoder> decoder_;
};

class GoldenPjrt : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_FALSE(pjrt::test_plugin().empty()) << "tools/setup.sh test installs the plugin";
    folder_ = "tests/golden/" + GetParam();
    const auto checkpoint = weights::Checkpoint::open_folder(folder_).value();
    const Result<void> runs = pjrt::check_spec(model::read_spec(*checkpoint).value());
    if (runs) return;
    EXPECT_EQ(runs.error().code, ErrorCode::kUnsupported);
    EXPECT_FALSE(runs.error().where.empty());
    GTEST_SKIP() << runs.error().to_string();
  }

  static void expect_close(const std::vector<float>& actual, std::span<const float> expected,
                           const char* what, float tolerance = 1e-4f) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    float largest = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      const float difference = std::abs(actual[i] - expected[i]);
      largest = difference <= largest ? largest : difference;  // a NaN comes through
    }
    fmt::print("  {} {}: largest difference {:.2e}\n", GetParam(), what, largest);
    EXPECT_LE(largest, tolerance) << what;
  }

  std::string folder_;
};

TEST_P(GoldenPjrt, HasTheLogitsOfTransformers) {
  const Answers answers = read_answers(folder_);
  const auto count = static_cast<int32_t>(answers.prompt.size());
  ASSERT_LT(count, answers.max_len);
  Model model(folder_, answers.max_len);
  expect_close(model.step({{0, 0, answers.prompt}}), answers.logits, "whole");
  const auto part = [&](int32_t begin, int32_t end) {
    return std::vector<int32_t>(answers.prompt.begin() + begin, answers.prompt.begin() + end);
  };
  const int32_t half = count / 2;
  // In two chunks, of which the second is beside other sequences: one alone, and one in its middle.
  std::vector<float> chunked = model.step({{1, 0, part(0, half)}});
  model.step({{2, 0, part(0, 5)}});
  const std::vector<float> all =
      model.step({{0, count, {1}}, {1, half, part(half, count)}, {2, 5, part(5, 9)}});
  const auto own = all.begin() + static_cast<int64_t>(model.vocab());
  chunked.insert(chunked.end(), own, own + (count - half) * static_cast<int64_t>(model.vocab()));
  expect_close(chunked, answers.logits, "in chunks");
  // Token by token, two sequences side by side; the blocks hold what others have left.
  std::vector<float> singles;
  for (int32_t i = 0; i < count; ++i) {
    const std::vector<float> both = model.step({{2, i, part(i, i + 1)}, {0, i, part(i, i + 1)}});
    singles.insert(singles.end(), both.begin(), both.begin() + static_cast<int64_t>(model.vocab()));
  }
  expect_close(singles, answers.logits, "token by token");
}

// As other backends are held to it (golden_suite.h): weights, KV and what products read are
// rounded.
TEST_P(GoldenPjrt, IsNearInBf16) {
  const Answers answers = read_answers(folder_);
  Model model(folder_, answers.max_len, tensor::DType::kBF16);
  expect_close(model.step({{0, 0, answers.prompt}}), answers.logits, "in bf16", 0.3f);
}

std::vector<std::string> all_checkpoints() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(RUDDER_SOURCE_DIR) + "/tests/golden")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string test_name(const ::testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Short, GoldenPjrt, ::testing::Values("llama3", "qwen3", "gemma3"),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Full, GoldenPjrt, ::testing::ValuesIn(all_checkpoints()), test_name);

}  // namespace
}  // namespace rudder
