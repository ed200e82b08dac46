// Every golden checkpoint served: loaded from its folder as the commands do, run by the real
// scheduler in chunks and with run-ahead, beside copies of itself and from the prefix cache. Greedy
// tokens are those of Hugging Face transformers (tools/golden).
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "metamorphic/harness.h"
#include "rudder/base/json.h"
#include "rudder/exec/make_executor.h"
#include "rudder/weights/checkpoint.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"

namespace rudder::metamorphic {
namespace {

constexpr double kTolerance = 2e-3;  // of logits

const std::string kGoldenRoot = std::string(RUDDER_SOURCE_DIR) + "/tests/golden";

std::vector<int32_t> ids_of(const weights::Safetensors& file, std::string_view name) {
  const auto bytes = file.bytes_of(*file.find(name));
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

class GoldenServing : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = kGoldenRoot + "/" + GetParam();
    auto file = weights::MappedFile::open(folder_ + "/golden.safetensors");
    ASSERT_TRUE(file) << file.error().to_string();
    auto tensors = weights::parse_safetensors((*file)->bytes(), "golden.safetensors");
    ASSERT_TRUE(tensors) << tensors.error().to_string();
    prompt_ = ids_of(*tensors, "prompt_ids");
    const auto logits = tensors->bytes_of(*tensors->find("logits"));
    logits_.resize(logits.size() / sizeof(float));
    std::memcpy(logits_.data(), logits.data(), logits.size());
    greedy_ = ids_of(*tensors, "greedy_ids");
    auto text = weights::read_text_file(folder_ + "/meta.json", 1 << 20);
    ASSERT_TRUE(text) << text.error().to_string();
    auto meta = parse_json(*text, "meta.json");
    ASSERT_TRUE(meta) << meta.error().to_string();
    max_len_ = static_cast<int32_t>(meta->as_object().at("max_len").as_int64());
  }

  // Five times the same sequence, the last two late enough to find the prompt cached.
  void serve_and_compare(std::unique_ptr<ops::Ops> ops) {
    auto checkpoint = weights::Checkpoint::open_folder(folder_);
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    exec::ExecSettings settings;
    settings.max_model_len = max_len_;
    settings.kv_cache_memory_bytes = 4 << 20;
    auto loaded = exec::load_model(**checkpoint, std::move(ops), settings,
                                   {.max_num_seqs = 8, .max_num_batched_tokens = 50}, {});
    ASSERT_TRUE(loaded) << loaded.error().to_string();

    Ask ask;
    ask.prompt = prompt_;
    ask.sampling.temperature = 0;
    ask.max_len = static_cast<int32_t>(prompt_.size() + greedy_.size());
    ASSERT_LE(ask.max_len, max_len_);
    std::vector<Ask> asks(5, ask);
    asks[1].sampling.num_prompt_logprobs = 1;
    for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(7 * i);
    sched::SchedSettings scheduling;
    scheduling.max_num_seqs = 8;
    scheduling.max_num_batched_tokens = 50;
    const Outcome outcome = run(*loaded->executor, scheduling, asks);
    EXPECT_GT(outcome.stats.prefix_hits, 0u);
    for (const Got& got : outcome.got) {
      EXPECT_EQ(got.tokens, greedy_);
      EXPECT_EQ(got.end, step::SeqEnd::kLength);
    }
    EXPECT_TRUE(outcome.got[0].scores.empty());
    compare_scores(outcome.got[1]);
  }

  // With those that the logits of transformers give.
  void compare_scores(const Got& got) {
    const std::vector<int32_t> scored(prompt_.begin() + 1, prompt_.end());
    EXPECT_EQ(got.scored, scored);
    ASSERT_EQ(got.scores.size(), scored.size() * 3) << "logprob, and one token beside it";
    ASSERT_EQ(got.ranks.size(), scored.size());
    const size_t vocab = logits_.size() / prompt_.size();
    for (size_t i = 0; i < scored.size(); ++i) {
      const std::span<const float> row(logits_.data() + i * vocab, vocab);
      double sum = 0;
      for (const float x : row) sum += std::exp(static_cast<double>(x));
      const double own = row[static_cast<size_t>(scored[i])];
      const auto nearly = [&](double at) {
        return std::ranges::count_if(row, [&](float x) { return x > at; });
      };
      const double best = *std::ranges::max_element(row);
      EXPECT_NEAR(got.scores[3 * i], own - std::log(sum), kTolerance) << "token " << i + 1;
      EXPECT_GE(got.ranks[i], nearly(own + kTolerance) + 1);
      EXPECT_LE(got.ranks[i], nearly(own - kTolerance));
      EXPECT_NEAR(got.scores[3 * i + 2], best - std::log(sum), kTolerance);
    }
  }

  std::string folder_;
  std::vector<int32_t> prompt_;
  std::vector<int32_t> greedy_;
  std::vector<float> logits_;  // [prompt, vocab]
  int32_t max_len_ = 0;
};

TEST_P(GoldenServing, ReferenceBackend) {
  serve_and_compare(backends().front().make());
}

TEST_P(GoldenServing, FastBackendInF32) {
  serve_and_compare(backends().back().make());
}

// The demo model's pinned continuations (models/demo/README.md), all of them at once.
TEST(DemoServing, GreedyContinuations) {
  const std::string folder = std::string(RUDDER_SOURCE_DIR) + "/models/demo";
  auto checkpoint = weights::Checkpoint::open_folder(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  exec::ExecSettings settings;
  settings.kv_cache_memory_bytes = 64 << 20;
  auto loaded = exec::load_model(**checkpoint, backends().back().make(), settings,
                                 {.max_num_seqs = 16, .max_num_batched_tokens = 256}, {});
  ASSERT_TRUE(loaded) << loaded.error().to_string();

  std::vector<Ask> asks;
  std::vector<std::vector<int32_t>> expected;
  std::ifstream lines(folder + "/eval/greedy.jsonl");
  for (std::string line; std::getline(lines, line);) {
    auto row = parse_json(line, "greedy.jsonl");
    ASSERT_TRUE(row) << row.error().to_string();
    const auto ids = [&](const char* key) {
      std::vector<int32_t> out;
      for (const auto& id : row->as_object().at(key).as_array()) {
        out.push_back(static_cast<int32_t>(id.as_int64()));
      }
      return out;
    };
    Ask ask;
    ask.prompt = ids("prompt");
    expected.push_back(ids("continuation"));
    ask.sampling.temperature = 0;
    ask.sampling.stop_ids = {2};
    ask.max_len = static_cast<int32_t>(ask.prompt.size() + expected.back().size());
    asks.push_back(ask);
  }
  ASSERT_GT(asks.size(), 30u);
  sched::SchedSettings scheduling;
  scheduling.max_num_seqs = 16;
  scheduling.max_num_batched_tokens = 256;
  const Outcome outcome = run(*loaded->executor, scheduling, asks);
  for (size_t i = 0; i < asks.size(); ++i) EXPECT_EQ(outcome.got[i].tokens, expected[i]) << i;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldenRoot)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenServing, ::testing::ValuesIn(golden_names()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace rudder::metamorphic
