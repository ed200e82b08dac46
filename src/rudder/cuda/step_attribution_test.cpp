#include "rudder/cuda/step_attribution.h"

#include <gtest/gtest.h>

namespace rudder::cuda {
namespace {

// A step of two layers; every node lasts 10 us. Gaps of 2 us, and a norm that begins 4 us early.
std::vector<DeviceNode> step_nodes(uint32_t launch, int64_t begin_us) {
  std::vector<const char*> names = {"begin_step_kernel", "embed_kernel"};
  for (int layer = 0; layer < 2; ++layer) {
    names.insert(names.end(), {"residual_norm_kernel", "nvjet_qkv", "qkv_prep_kernel"});
    if (layer == 0) names.push_back("work_kernel");
    names.push_back("split_kernel");
    if (layer == 0) names.push_back("quantise_kernel");  // for the product behind it
    names.insert(names.end(), {"gemv_out", "residual_norm_kernel", "fill", "nvjet_up",
                               "gated_act_kernel", "nvjet_down"});
  }
  names.insert(names.end(), {"residual_norm_kernel", "nvjet_head", "sample_kernel"});
  std::vector<DeviceNode> nodes;
  int64_t at = begin_us * 1000;
  for (const char* name : names) {
    const bool is_early = std::string_view(name) == "residual_norm_kernel";
    const int64_t begin = is_early ? at - 6000 : at;
    nodes.push_back({begin, begin + 10000, launch, 7, name});
    at = begin + 12000;
  }
  return nodes;
}

const AttributedLine& line_of(const std::vector<AttributedLine>& lines, std::string_view op) {
  for (const AttributedLine& line : lines) {
    if (line.op == op) return line;
  }
  static const AttributedLine none;
  return none;
}

TEST(StepAttribution, TimesAndGapsAddUpToTheSpan) {
  const std::vector<std::vector<DeviceNode>> replays = {step_nodes(1, 0), step_nodes(2, 1000)};
  const Attribution found = attribute_replays(replays);
  double sum = 0;
  for (const AttributedLine& line : found.ops) sum += line.time_us + line.gap_us;
  EXPECT_NEAR(sum, found.span_us, 1e-6 * found.span_us);
  double by_layer = 0;
  for (const AttributedLine& line : found.layers) by_layer += line.time_us + line.gap_us;
  EXPECT_NEAR(by_layer, found.span_us, 1e-6 * found.span_us);
  // A norm begins 4 us before the node in front of it has ended: those are that one's.
  EXPECT_NEAR(line_of(found.ops, "residual_norm").time_us, 5 * 6.0, 1e-6);
  EXPECT_NEAR(line_of(found.ops, "residual_norm").gap_us, 0, 1e-6);
  EXPECT_NEAR(line_of(found.ops, "attention").gap_us, 2 * 2.0, 1e-6);
}

TEST(StepAttribution, ProductsAndLayersByTheirOrder) {
  const std::vector<std::vector<DeviceNode>> replays = {step_nodes(1, 0)};
  const Attribution found = attribute_replays(replays);
  for (const char* op : {"linear qkv", "linear out", "linear down", "attention", "qkv_prep"}) {
    EXPECT_EQ(line_of(found.ops, op).count, 2) << op;
  }
  EXPECT_EQ(line_of(found.ops, "linear gate_up").count, 4);  // with its fills
  EXPECT_EQ(line_of(found.ops, "logits").count, 1);
  ASSERT_EQ(found.layers.size(), 3u);
  EXPECT_EQ(found.layers[0].layer, -1);
  EXPECT_EQ(found.layers[0].count, 5);  // two in front, three behind
  EXPECT_EQ(found.layers[1].count, 12);
  EXPECT_EQ(found.layers[2].count, 10);
}

TEST(StepAttribution, TheGraphThatRunsMostOften) {
  std::vector<DeviceNode> nodes;
  for (uint32_t launch = 1; launch <= 5; ++launch) {
    for (DeviceNode node : step_nodes(launch, launch * 1000)) {
      if (launch == 3) node.graph = 8;
      nodes.push_back(node);
    }
  }
  nodes.push_back({0, 5, 99, 0, "embed_kernel"});  // of no graph
  const auto replays = last_replays(nodes, 3);
  ASSERT_EQ(replays.size(), 3u);
  EXPECT_EQ(replays[0].front().launch, 2u);
  EXPECT_EQ(replays[2].front().launch, 5u);
  EXPECT_EQ(replays[0].size(), step_nodes(1, 0).size());
  EXPECT_TRUE(last_replays({}, 3).empty());
}

TEST(StepAttribution, StepsOfPromptsBeginWithTheirTokens) {
  std::vector<DeviceNode> nodes;
  nodes.push_back({0, 5, 99, 0, "copy"});  // of no step that is there whole
  for (uint32_t launch = 1; launch <= 4; ++launch) {
    for (DeviceNode node : step_nodes(launch, launch * 1000)) {
      // The last parts of such a step run op by op.
      if (node.name == "nvjet_head" || node.name == "sample_kernel") node.graph = 0;
      nodes.push_back(node);
    }
  }
  const auto steps = last_steps(nodes, 3);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].front().launch, 2u);
  for (const auto& step : steps) {
    EXPECT_EQ(step.size(), step_nodes(1, 0).size());
    EXPECT_EQ(step.front().name, "begin_step_kernel");
    EXPECT_EQ(step.back().name, "sample_kernel");
  }
  EXPECT_TRUE(last_steps({}, 3).empty());
}

}  // namespace
}  // namespace rudder::cuda
