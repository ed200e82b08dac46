#include "rudder/model/stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

constexpr ops::WeightFormat kWide = {.codes = ops::Codes::kF32};

using tensor::DType;

ModelSpec layered_spec(const std::vector<int32_t>& widths) {
  ModelSpec spec;
  spec.architecture = "LlamaForCausalLM";
  spec.hidden = 64;
  spec.vocab = 160;
  spec.max_positions = 256;
  for (const int32_t width : widths) {
    LayerSpec layer;
    Attention attention;
    attention.num_heads = 4;
    attention.num_kv_heads = 2;
    attention.head_dim = 16;
    layer.mixer = attention;
    GatedMlp mlp;
    mlp.width = width;
    layer.mlp = mlp;
    spec.layers.push_back(layer);
  }
  return spec;
}

std::vector<int32_t> layer_counts(const ModelSpec& spec, int32_t count) {
  const auto stages = divide_layers(spec, {}, count, all_as(kWide), {DType::kF32});
  EXPECT_TRUE(stages) << stages.error().to_string();
  std::vector<int32_t> counts;
  int32_t first = 0;
  for (const Stage& stage : *stages) {
    EXPECT_EQ(stage.index, std::ssize(counts));
    EXPECT_EQ(stage.count, count);
    EXPECT_EQ(stage.first_layer, first);
    first += stage.num_layers;
    counts.push_back(stage.num_layers);
  }
  return counts;
}

TEST(DivideLayers, EqualLayersAreSharedEqually) {
  EXPECT_EQ(layer_counts(layered_spec({96, 96, 96, 96}), 2), (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(layer_counts(layered_spec({96, 96, 96, 96}), 4), (std::vector<int32_t>{1, 1, 1, 1}));
  EXPECT_EQ(layer_counts(layered_spec({96, 96, 96, 96, 96, 96}), 3),
            (std::vector<int32_t>{2, 2, 2}));
}

TEST(DivideLayers, NumbersOfTheBranchBeforeStayInAStage) {
  ModelSpec spec = layered_spec({96, 96});
  spec.residual = HyperConnections{.rule = {}, .is_delayed = true};
  const auto refused = divide_layers(spec, {}, 2, all_as(kWide), {DType::kF32});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().where, "hc_pre_from_prev_sublayer");
}

TEST(DivideLayers, ByWhatLayersAndTheHeadCost) {
  EXPECT_EQ(layer_counts(layered_spec({9600, 96, 96, 96}), 2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(layer_counts(layered_spec({96, 96, 96, 9600}), 2), (std::vector<int32_t>{3, 1}));
  ModelSpec wide = layered_spec({96, 96, 96, 96});
  wide.vocab = 100'000;
  EXPECT_EQ(layer_counts(wide, 2), (std::vector<int32_t>{3, 1}));
}

TEST(DivideLayers, NoDivisionCostsLessAtItsDearestStage) {
  const std::vector<int32_t> widths = {96, 960, 480, 96, 2400, 96, 96, 720};
  const ModelSpec spec = layered_spec(widths);
  const auto cost_of = [&](int32_t begin, int32_t end) {
    int64_t cost = 0;
    for (int32_t i = begin; i < end; ++i) {
      cost += tensor_bytes(layer_tensors(spec, {}, static_cast<size_t>(i)), all_as(kWide)).value() +
              2 * kStageContext * 2 * 16 * 4;
    }
    return cost + (end == 8 ? int64_t{160} * 64 * 4 : 0);
  };
  int64_t best = cost_of(0, 8);
  for (int32_t a = 1; a < 7; ++a) {
    for (int32_t b = a + 1; b < 8; ++b) {
      best = std::min(best, std::max({cost_of(0, a), cost_of(a, b), cost_of(b, 8)}));
    }
  }
  const std::vector<int32_t> counts = layer_counts(spec, 3);
  const int32_t a = counts[0];
  const int32_t b = a + counts[1];
  EXPECT_EQ(std::max({cost_of(0, a), cost_of(a, b), cost_of(b, 8)}), best);
}

TEST(DivideLayers, MoreStagesThanLayersAreRefusedByName) {
  const auto stages = divide_layers(layered_spec({96, 96}), {}, 3, all_as(kWide), {DType::kF32});
  ASSERT_FALSE(stages);
  EXPECT_EQ(stages.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(stages.error().where, "pipeline-parallel-size");
  EXPECT_NE(stages.error().message.find("the 2 layers"), std::string::npos);
}

TEST(StageSpec, StagesHaveAllWeightsOnceButTheTable) {
  ModelSpec spec = layered_spec({96, 200, 96, 96, 300});
  for (const bool tied : {false, true}) {
    spec.tied_head = tied;
    int64_t bytes = 0;
    size_t layers = 0;
    const auto stages = divide_layers(spec, {}, 3, all_as(kWide), {DType::kF32});
    ASSERT_TRUE(stages);
    for (const Stage& stage : *stages) {
      bytes += weight_budget(spec, {}, all_as(kWide), {}, stage)->bytes;
      const ModelSpec part = stage_spec(spec, stage);
      EXPECT_FALSE(part.tied_head);
      layers += part.layers.size();
    }
    EXPECT_EQ(layers, spec.layers.size());
    const int64_t table = tied ? int64_t{spec.vocab} * spec.hidden * 4 : 0;
    EXPECT_EQ(bytes, weight_budget(spec, {}, all_as(kWide))->bytes + table);
  }
}

}  // namespace
}  // namespace rudder::model
