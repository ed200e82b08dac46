#include "rudder/model/dummy_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "rudder/model/loader.h"
#include "rudder/model/make_model.h"
#include "rudder/model/norm_gains.h"

namespace rudder::model {
namespace {

std::shared_ptr<const weights::Checkpoint> dummy(std::string_view like, int32_t layers) {
  auto checkpoint =
      make_dummy_checkpoint(std::string(like), make_model_config(like, layers).value());
  EXPECT_TRUE(checkpoint) << checkpoint.error().to_string();
  return checkpoint.value_or(nullptr);
}

TEST(DummyCheckpoint, HasWhatTheConfigAsksFor) {
  const auto checkpoint = dummy("qwen2.5-7b", 2);
  ASSERT_NE(checkpoint, nullptr);
  const auto spec = read_spec(*checkpoint);
  ASSERT_TRUE(spec) << spec.error().to_string();
  const weights::TensorInfo* table = checkpoint->find("model.embed_tokens.weight");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->view.shape, (tensor::Shape{152064, 3584}));
  EXPECT_EQ(checkpoint->find("model.layers.2.mlp.up_proj.weight"), nullptr);
  EXPECT_TRUE(checkpoint->has_file("tokenizer.json"));
  EXPECT_FALSE(checkpoint->read_text("chat_template.jinja"));
  EXPECT_EQ(checkpoint->tensor_bytes(),
            2 * (2 * 152064 * int64_t{3584} + 3584 + 2 * (233'046'016 + int64_t{2} * 3584 + 4608)));
}

// With a quantization_config of MXFP4 the experts of gpt-oss are codes, which the loader takes.
TEST(DummyCheckpoint, ExpertsMayBeMxfp4) {
  std::string config = make_model_config("gpt-oss-20b", 1).value();
  config.insert(config.find('{') + 1, R"("quantization_config": {"quant_method": "mxfp4"},)");
  const auto checkpoint = make_dummy_checkpoint("gpt-oss-20b", config);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const std::string experts = "model.layers.0.mlp.experts.";
  const auto* const blocks = (*checkpoint)->find(experts + "gate_up_proj_blocks");
  const auto* const scales = (*checkpoint)->find(experts + "down_proj_scales");
  ASSERT_TRUE(blocks != nullptr && scales != nullptr);
  EXPECT_EQ(blocks->view.shape, (tensor::Shape{32, 5760, 90, 16}));
  EXPECT_EQ(scales->view.shape, (tensor::Shape{32, 2880, 90}));
  EXPECT_EQ(scales->view.as<uint8_t>()[scales->view.bytes() - 1], 120);
  EXPECT_EQ((*checkpoint)->find(experts + "gate_up_proj"), nullptr);
  const auto spec = read_spec(**checkpoint);
  ASSERT_TRUE(spec) << spec.error().to_string();
  const auto checked = check_tensors(**checkpoint, *spec);
  EXPECT_TRUE(checked) << checked.error().to_string();
  config.replace(config.find("mxfp4"), 5, "awq");
  const auto refused = make_dummy_checkpoint("gpt-oss-20b", config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
}

// All of a tensor can be read, its values are spread as weights are, and layers differ.
TEST(DummyCheckpoint, ValuesAreSpreadAsWeightsAre) {
  const auto checkpoint = dummy("qwen2.5-0.5b", 2);
  ASSERT_NE(checkpoint, nullptr);
  for (const weights::TensorInfo& tensor : checkpoint->tensors()) {
    const bool is_norm =
        tensor.view.shape.rank() == 1 && tensor.name.find("norm") != std::string::npos;
    const auto* values = tensor.view.as<tensor::BF16>();
    const int64_t count = tensor.view.shape.numel();
    const int64_t stride = std::max<int64_t>(1, count / 20000);
    double sum = 0;
    double squares = 0;
    int64_t seen = 0;
    for (int64_t i = count - 1; i >= 0; i -= stride, ++seen) {
      const double v = tensor::to_float(values[i]);
      sum += v;
      squares += v * v;
    }
    const double mean = sum / static_cast<double>(seen);
    const double deviation = std::sqrt(squares / static_cast<double>(seen) - mean * mean);
    EXPECT_NEAR(mean, is_norm ? 1.0 : 0.0, 0.02) << tensor.name;
    const double wanted = is_norm ? 0.1 : tensor.name.ends_with(".bias") ? 0.02 / 64 : 0.02;
    EXPECT_NEAR(deviation, wanted, wanted / 5) << tensor.name;
  }
  const auto* first = checkpoint->find("model.layers.0.mlp.up_proj.weight");
  const auto* second = checkpoint->find("model.layers.1.mlp.up_proj.weight");
  EXPECT_NE(std::memcmp(first->view.data, second->view.data, first->view.bytes()), 0);
}

// The norm in front of the MLP is found under every name that architectures give it. Gains lie
// around 1, those that a checkpoint stores less 1 too.
TEST(DummyCheckpoint, GainsAreReadOfEveryArchitecture) {
  for (const char* name : {"llama-3.2-1b", "gemma-2-2b", "gemma-3-1b", "asynct-0.6b"}) {
    const auto checkpoint = dummy(name, 1);
    ASSERT_NE(checkpoint, nullptr) << name;
    const auto spec = read_spec(*checkpoint);
    ASSERT_TRUE(spec) << spec.error().to_string();
    const auto gains = read_mlp_gains(*checkpoint, *spec);
    ASSERT_TRUE(gains) << name << gains.error().to_string();
    ASSERT_EQ(gains->size(), 1U);
    const std::vector<float>& values = gains->front().values;
    ASSERT_EQ(std::ssize(values), spec->hidden) << name;
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    EXPECT_NEAR(sum / static_cast<double>(values.size()), 1.0, 0.1) << name;
  }
}

TEST(DummyCheckpoint, UnknownArchitecturesAreNamed) {
  const auto refused = make_dummy_checkpoint("x", R"({"architectures": ["NoSuchModel"]})");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("NoSuchModel"), std::string::npos);
  EXPECT_FALSE(make_dummy_checkpoint("x", R"({"architectures": []})"));
}

}  // namespace
}  // namespace rudder::model
