// Experts of which one tensor holds a product of all: parts out of it, ranks, and what is refused.
#include "rudder/model/quantised/stacked_experts.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "rudder/model/binder.h"
#include "rudder/model/loader.h"
#include "rudder/model/quantised/stored_weight.h"
#include "rudder/model/tiny_checkpoint.h"

namespace rudder::model {
namespace {

using tensor::DType;

TEST(StackedExperts, APartIsTurnedOutOfAll) {
  constexpr int64_t kInputs = 3;
  constexpr int64_t kRows = 70;  // more than a tile
  std::vector<float> all(2 * kInputs * 2 * kRows);
  std::iota(all.begin(), all.end(), 0.0f);
  const ops::View view{all.data(), DType::kF32, {2, kInputs, 2 * kRows}};
  Memory memory;
  const ops::View up = turned_rows(view, {2, 1, 1, 2}, kRows, memory);
  ASSERT_EQ(up.shape, (tensor::Shape{kRows, kInputs}));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kInputs; ++i) {
      const auto wanted = static_cast<float>((kInputs + i) * 2 * kRows + 2 * row + 1);
      ASSERT_EQ(up.as<float>()[row * kInputs + i], wanted) << row << ' ' << i;
    }
  }
  const ops::View bias{all.data(), DType::kF32, {3, 4}};
  const ops::View gate = strided_row(bias, {3, 2, 0, 2}, 2, memory);
  EXPECT_EQ(gate.as<float>()[0], 8.0f);
  EXPECT_EQ(gate.as<float>()[1], 10.0f);
}

// Of a golden checkpoint: the linears of its first layer as a rank loads them.
class StackedParts : public ::testing::TestWithParam<const char*> {
 protected:
  StackedParts()
      : checkpoint_(weights::Checkpoint::open_folder(GetParam()).value()),
        spec_(read_spec(*checkpoint_).value()),
        quantisation_(read_quantisation(*checkpoint_).value()) {}

  std::vector<BoundLinear> bind(ops::Rank rank) {
    const WeightNames names = (*find_architecture(spec_.architecture))->names;
    Binder binder(*checkpoint_, quantisation_);
    KeepingOps ops;
    EXPECT_TRUE(binder.read_for(ops));
    std::vector<BoundLinear> out;
    for (const LinearModule& module : layer_tensors(spec_, names, 0, nullptr, rank).linears) {
      if (module.experts == 0) continue;
      auto bound = binder.take_linear(module);
      EXPECT_TRUE(bound) << bound.error().to_string();
      if (bound) out.push_back(std::move(*bound));
    }
    return out;
  }
  static std::vector<float> row_of(const ops::LinearPart& part, int64_t row) {
    Memory memory;
    const ops::LinearPart wide =
        part.format.is_wide() ? part : multiply_out(part, DType::kF32, memory);
    return values_of(wide.codes.rows(row, 1));
  }

  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  ModelSpec spec_;
  Quantisation quantisation_;
};

TEST_P(StackedParts, ARankHasItsNeuronsOfEach) {
  const std::vector<BoundLinear> whole = bind({});
  const std::vector<BoundLinear> second = bind({1, 2});
  ASSERT_EQ(whole.size(), 2u);
  ASSERT_EQ(second.size(), 2u);
  const auto experts = static_cast<size_t>(experts_of(spec_.layers[0])->count);
  ASSERT_EQ(whole[0].parts.size(), 2 * experts);
  ASSERT_EQ(whole[1].parts.size(), experts);
  const int64_t half = experts_of(spec_.layers[0])->width / 2;
  for (size_t i = 0; i < 2 * experts; ++i) {
    ASSERT_EQ(second[0].parts[i].out(), half);
    EXPECT_EQ(row_of(second[0].parts[i], 0), row_of(whole[0].parts[i], half)) << i;
    EXPECT_FALSE(second[0].parts[i].bias.empty());
  }
  for (size_t e = 0; e < experts; ++e) {
    ASSERT_EQ(second[1].parts[e].in(), half);
    const std::vector<float> all = row_of(whole[1].parts[e], 3);
    const std::vector<float> part = row_of(second[1].parts[e], 3);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + half)) << e;
    EXPECT_TRUE(second[1].parts[e].bias.empty()) << "the first rank adds it";
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, StackedParts,
                         ::testing::Values("tests/golden/gpt-oss", "tests/golden/gpt-oss-mxfp4"),
                         [](const auto& test) {
                           return std::string(test.param).ends_with("mxfp4") ? "Mxfp4" : "Wide";
                         });

// A tiny gpt-oss of two experts.
TinyModel tiny_gpt_oss() {
  TinyModel tiny;
  tiny.replace_in_config("LlamaForCausalLM", "GptOssForCausalLM");
  tiny.replace_in_config("\"hidden_size\"",
                         R"("head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1,
                            "hidden_size")");
  const std::string layer = "model.layers.0.";
  for (const char* gone : {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    tiny.decls.erase(layer + gone + ".weight");
  }
  tiny.add(layer + "self_attn.q_proj.bias", {8});
  tiny.add(layer + "self_attn.k_proj.bias", {4});
  tiny.add(layer + "self_attn.v_proj.bias", {4});
  tiny.add(layer + "self_attn.o_proj.bias", {8});
  tiny.add(layer + "self_attn.sinks", {2});
  tiny.add(layer + "mlp.router.weight", {2, 8});
  tiny.add(layer + "mlp.router.bias", {2});
  tiny.add(layer + "mlp.experts.gate_up_proj", {2, 8, 12});
  tiny.add(layer + "mlp.experts.gate_up_proj_bias", {2, 12});
  tiny.add(layer + "mlp.experts.down_proj", {2, 6, 8});
  tiny.add(layer + "mlp.experts.down_proj_bias", {2, 8});
  return tiny;
}

TEST(StackedExperts, WhatDoesNotFitIsRefusedByName) {
  const std::string experts = "model.layers.0.mlp.experts.";
  TinyModel whole = tiny_gpt_oss();
  const auto checkpoint = whole.open().value();
  const ModelSpec spec = read_spec(*checkpoint).value();
  const auto fits = check_tensors(*checkpoint, spec);
  ASSERT_TRUE(fits) << fits.error().to_string();
  EXPECT_EQ(attention_of(spec.layers[0])->window, 128);

  TinyModel tiny = tiny_gpt_oss();
  tiny.decls.erase(experts + "down_proj_bias");
  tiny.expect_refused(ErrorCode::kCorruptFile, "down_proj_bias' is missing");
  tiny = tiny_gpt_oss();
  tiny.add(experts + "gate_up_proj", {2, 12, 8});
  tiny.expect_refused(ErrorCode::kCorruptFile, "its shape is [2, 12, 8]");
  tiny = tiny_gpt_oss();
  tiny.add("model.layers.0.mlp.router.weight", {3, 8});
  tiny.expect_refused(ErrorCode::kCorruptFile, "'model.layers.0.mlp.router.weight'");
  tiny = tiny_gpt_oss();
  tiny.add(experts + "gate_up_proj_blocks", {2, 12, 1, 16}, DType::kU8);
  tiny.expect_refused(ErrorCode::kUnsupported, "have no place in this architecture");
  tiny = tiny_gpt_oss();
  tiny.replace_in_config("\"hidden_size\"", R"("swiglu_limit": 5.0, "hidden_size")");
  tiny.expect_refused(ErrorCode::kUnsupported, "swiglu_limit");
  tiny = tiny_gpt_oss();
  tiny.replace_in_config("\"hidden_size\"", R"("layer_types": ["linear"], "hidden_size")");
  tiny.expect_refused(ErrorCode::kUnsupported, "the layer type 'linear' is not known");
}

}  // namespace
}  // namespace rudder::model
