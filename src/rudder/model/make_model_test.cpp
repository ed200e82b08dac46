#include "rudder/model/make_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "rudder/base/json.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/assistant.h"
#include "rudder/model/loader.h"

namespace rudder::model {
namespace {

TEST(MakeModel, EveryShapeIsReadable) {
  for (const std::string_view name : make_model_names()) {
    const auto text = make_model_config(name);
    ASSERT_TRUE(text) << name;
    const auto config = weights::HfConfig::parse(*text, "config.json");
    ASSERT_TRUE(config) << name << ": " << config.error().to_string();
    const auto spec = read_config(*config);
    ASSERT_TRUE(spec) << name << ": " << spec.error().to_string();
  }
}

// Parameters as published, in millions: a wrong dimension shows here.
TEST(MakeModel, ShapesHaveThePublishedSizes) {
  const std::pair<const char*, double> published[] = {
      {"llama-2-7b", 6738},     {"llama-3.1-8b", 8030},     {"llama-3.2-1b", 1236},
      {"llama-3.2-3b", 3213},   {"qwen2.5-0.5b", 494},      {"qwen2.5-7b", 7616},
      {"qwen3-0.6b", 596},      {"qwen3-8b", 8191},         {"mistral-7b", 7242},
      {"gemma-2-2b", 2614},     {"gemma-2-9b", 9242},       {"gemma-3-1b", 1000},
      {"gemma-3-27b", 27009},   {"phi-3-mini", 3821},       {"olmo-2-7b", 7299},
      {"qwen3-30b-a3b", 30532}, {"mixtral-8x7b", 46703},    {"olmoe-1b-7b", 6919},
      {"qwen3-32b", 32762},     {"llama-3.1-70b", 70554},   {"phi-4", 14660},
      {"gemma-4-31b", 30697},   {"gemma-7b", 8538},         {"mistral-small-24b", 23572},
      {"smollm3-3b", 3075},     {"olmo-3-7b", 7298},        {"exaone-4-1.2b", 1279},
      {"exaone-4-32b", 32003},  {"granite-3.3-2b", 2534},   {"granite-3.3-8b", 8171},
      {"seed-oss-36b", 36151},  {"hunyuan-7b", 7504},       {"glm-4-32b-0414", 32566},
      {"ernie-4.5-0.3b", 361},  {"gemma-4-26b-a4b", 25233}, {"gemma-4-e2b", 4628},
      {"gemma-4-e4b", 7463}};
  for (const auto& [name, millions] : published) {
    const auto config = weights::HfConfig::parse(*make_model_config(name), "config.json");
    const auto spec = read_config(*config);
    ASSERT_TRUE(spec);
    // One byte a linear weight, the untied table apart, norms negligible.
    const double table =
        (spec->tied_head ? 0 : 2.0 * spec->vocab * spec->hidden) +
        2.0 * static_cast<double>(spec->layer_embedding.vocab * spec->layer_embedding.row_width());
    const auto bytes = weight_budget(*spec, {}, all_as({ops::Codes::kF8E4M3}))->bytes;
    const double linear = static_cast<double>(bytes) - table;
    const double parameters = linear + table / 2;
    EXPECT_NEAR(parameters / 1e6, millions, 0.004 * millions) << name;
  }
}

TEST(MakeModel, TheAssistantFitsItsModel) {
  const auto model = weights::HfConfig::parse(*make_model_config("gemma-4-31b"), "config.json");
  for (const std::string_view name : make_assistant_names()) {
    const auto config = weights::HfConfig::parse(*make_assistant_config(name), "config.json");
    auto spec = read_assistant(*config);
    ASSERT_TRUE(spec) << spec.error().to_string();
    EXPECT_TRUE(fit_assistant(*read_config(*model), *spec));
    EXPECT_EQ(spec->reads, (std::vector<int32_t>{58, 58, 58, 59}));
    // 470 million parameters.
    const auto parameters =
        static_cast<double>(assistant_bytes(*spec, all_as({ops::Codes::kF8E4M3})).value());
    EXPECT_NEAR(parameters / 1e6, 470, 0.004 * 470) << name;
  }
}

class MakeModelFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fmt::format("{}/make_model_{}", ::testing::TempDir(), ::getpid());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

// One layer of the smallest true shape, in three shards: 300 MB.
TEST_F(MakeModelFolder, WritesACheckpointThatLoads) {
  int64_t last = 0;
  int64_t total = 0;
  const ProgressFn progress = [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  MakeModelArgs args{.like = "qwen2.5-0.5b",
                     .folder = folder_,
                     .seed = 3,
                     .num_layers = 1,
                     .max_shard_bytes = 20'000'000};
  const auto made = make_model(args, progress);
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_EQ(last, total);

  const auto checkpoint = weights::Checkpoint::open_folder(folder_);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  EXPECT_EQ((*checkpoint)->tensor_bytes(), total);
  EXPECT_TRUE((*checkpoint)->has_file("model-00003-of-00003.safetensors"));
  const auto spec = read_spec(**checkpoint);
  ASSERT_TRUE(spec) << spec.error().to_string();
  EXPECT_EQ(spec->layers.size(), 1U);

  const auto statistics = [&](std::string_view name) {
    const tensor::View view = (*checkpoint)->find(name)->view;
    double sum = 0;
    double squares = 0;
    for (int64_t i = 0; i < view.shape.numel(); ++i) {
      const double value = tensor::to_float(view.as<tensor::BF16>()[i]);
      sum += value;
      squares += value * value;
    }
    const double mean = sum / static_cast<double>(view.shape.numel());
    return std::pair(mean,
                     std::sqrt(squares / static_cast<double>(view.shape.numel()) - mean * mean));
  };
  const auto [weight_mean, weight_spread] = statistics("model.layers.0.mlp.down_proj.weight");
  EXPECT_NEAR(weight_mean, 0, 1e-4);
  EXPECT_NEAR(weight_spread, 0.02, 1e-4);
  const auto [norm_mean, norm_spread] = statistics("model.layers.0.input_layernorm.weight");
  EXPECT_NEAR(norm_mean, 1, 0.02);
  EXPECT_NEAR(norm_spread, 0.1, 0.02);

  // One thread writes the same bytes; a second model in the folder is refused.
  EXPECT_EQ(make_model(args, {}).error().code, ErrorCode::kInvalidArgument);
  const std::string other = folder_ + "/again";
  args.folder = other;
  args.num_threads = 1;
  args.max_shard_bytes = 5'000'000'000;
  ASSERT_TRUE(make_model(args, {}));
  const auto again = weights::Checkpoint::open_folder(other);
  ASSERT_TRUE(again);
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias"}) {
    const tensor::View a = (*checkpoint)->find(name)->view;
    const tensor::View b = (*again)->find(name)->view;
    EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << name;
  }
}

TEST(MakeModel, RefusesAnUnknownShape) {
  const auto made = make_model({.like = "qwen9", .folder = "/nonexistent"}, {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
}

TEST(MakeModel, TheTokenizerHasEveryId) {
  for (const int32_t vocab : {259, 300, 32000, 151936}) {
    const auto parsed = parse_json(make_tokenizer_json(vocab), "tokenizer.json");
    ASSERT_TRUE(parsed) << parsed.error().to_string();
    const auto& bpe = parsed->as_object().at("model").as_object();
    const auto& tokens = bpe.at("vocab").as_object();
    EXPECT_EQ(tokens.size(), static_cast<size_t>(vocab));
    EXPECT_EQ(bpe.at("merges").as_array().size(), static_cast<size_t>(vocab) - 259);
    EXPECT_EQ(tokens.at("\u0120").as_int64(), 3 + ' ');
  }
}

TEST(MakeModel, TheTokenizerWithByteFallbackHasEveryId) {
  for (const int32_t vocab : {354, 32000}) {
    const std::string text = make_tokenizer_json(vocab, TokenizerKind::kByteFallback);
    const auto parsed = parse_json(text, "tokenizer.json");
    ASSERT_TRUE(parsed) << parsed.error().to_string();
    const auto& bpe = parsed->as_object().at("model").as_object();
    const auto& tokens = bpe.at("vocab").as_object();
    EXPECT_EQ(tokens.size(), static_cast<size_t>(vocab));
    EXPECT_EQ(bpe.at("merges").as_array().size(), static_cast<size_t>(vocab) - 354);
    EXPECT_TRUE(bpe.at("byte_fallback").as_bool());
    EXPECT_EQ(tokens.at("<0x0A>").as_int64(), 3 + '\n');
  }
}

}  // namespace
}  // namespace rudder::model
