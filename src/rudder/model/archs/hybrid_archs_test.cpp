// What families with state spaces, short convolutions and layers of one branch read of their
// configs, and what of damaged ones is refused by name. That their mathematics are those of
// transformers, the goldens show.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/tensor_names.h"
#include "rudder/model/shard.h"
#include "rudder/model/tensor_list.h"
#include "rudder/model/tiny_checkpoint.h"

namespace rudder::model {
namespace {

struct HybridCase {
  std::string_view name;  // of the architecture
  std::string_view keys;
  std::string_view types;  // how its config says which layers are which
};

constexpr HybridCase kHybridCases[] = {
    {"Lfm2ForCausalLM",
     R"("hidden_size": 16, "intermediate_size": 12, "num_attention_heads": 2,
        "num_key_value_heads": 1, "norm_eps": 1e-5, "block_multiple_of": 4, "conv_bias": true)",
     R"("layer_types": ["conv", "full_attention", "conv"])"},
    {"Lfm2MoeForCausalLM",
     R"("hidden_size": 16, "intermediate_size": 12, "num_attention_heads": 2,
        "num_key_value_heads": 1, "norm_eps": 1e-5, "moe_intermediate_size": 6,
        "num_experts": 4, "num_experts_per_tok": 2, "num_dense_layers": 1)",
     R"("layer_types": ["full_attention", "conv", "conv"])"},
    {"GraniteMoeHybridForCausalLM",
     R"("hidden_size": 16, "intermediate_size": 6, "num_attention_heads": 2,
        "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 10, "mamba_n_heads": 4, "mamba_d_head": 8,
        "mamba_n_groups": 2, "mamba_d_state": 6)",
     R"("layer_types": ["mamba", "attention", "mamba"])"},
    {"BambaForCausalLM",
     R"("hidden_size": 16, "intermediate_size": 12, "num_attention_heads": 2,
        "num_key_value_heads": 1, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 2,
        "mamba_d_state": 6)",
     R"("attn_layer_indices": [1])"},
    {"FalconH1ForCausalLM",
     R"("hidden_size": 16, "intermediate_size": 12, "num_attention_heads": 2,
        "num_key_value_heads": 1, "mamba_d_ssm": 24, "mamba_n_heads": 4, "mamba_d_head": 6,
        "mamba_n_groups": 2, "mamba_d_state": 6, "mamba_rms_norm": true,
        "mlp_multipliers": [0.5, 0.25], "time_step_limit": [0.0, Infinity])",
     R"("num_hidden_layers": 3)"},
    {"NemotronHForCausalLM",
     R"("hidden_size": 16, "intermediate_size": 12, "num_attention_heads": 2, "head_dim": 8,
        "num_key_value_heads": 1, "mamba_num_heads": 4, "mamba_head_dim": 6, "n_groups": 2,
        "ssm_state_size": 6, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 6, "moe_shared_expert_intermediate_size": 10,
        "time_step_limit": [0.0, {"__float__": "Infinity"}])",
     R"("hybrid_override_pattern": "ME*-M")"}};

// A whole checkpoint of the case, with `more` keys in front.
TinyModel hybrid(const HybridCase& one, std::string_view more = "") {
  TinyModel tiny;
  const bool counts = one.types.starts_with("\"hybrid") || one.types.starts_with("\"num_hidden");
  tiny.config = fmt::format(
      R"({{"architectures": ["{}"], {}{}, {}{}, "vocab_size": 5, "max_position_embeddings": 32}})",
      one.name, more, one.keys, counts ? "" : R"("num_hidden_layers": 3, )", one.types);
  tiny.decls.clear();
  const auto config = weights::HfConfig::parse(tiny.config, "config.json");
  EXPECT_TRUE(config) << config.error().to_string();
  const auto spec = read_config(*config);
  if (!spec) return tiny;  // a config that is refused
  const WeightNames& names = (*find_architecture(one.name))->names;
  const TensorList list(*spec, names);
  for (const ListedTensor& tensor : list.tensors()) {
    tiny.decls[tensor.decl.name] = tensor.decl;
  }
  return tiny;
}

Result<ModelSpec> read_tiny(TinyModel& tiny) {
  RUDDER_TRY(const auto checkpoint, tiny.open());
  return read_spec(*checkpoint);
}

void expect_damaged(TinyModel& tiny, ErrorCode code, std::string_view part) {
  const auto checkpoint = tiny.open().value();
  const auto spec = read_spec(*checkpoint);
  const auto fits = spec ? check_tensors(*checkpoint, *spec) : tl::unexpected(spec.error());
  ASSERT_FALSE(fits) << part;
  EXPECT_EQ(fits.error().code, code) << fits.error().to_string();
  EXPECT_NE(fits.error().to_string().find(part), std::string::npos) << fits.error().to_string();
}

class HybridArchs : public ::testing::TestWithParam<HybridCase> {};

TEST_P(HybridArchs, WhatIsWholeFitsAndWhatIsNotIsRefusedByName) {
  TinyModel whole = hybrid(GetParam());
  const auto checkpoint = whole.open().value();
  const auto spec = read_spec(*checkpoint);
  ASSERT_TRUE(spec) << spec.error().to_string();
  const auto fits = check_tensors(*checkpoint, *spec);
  ASSERT_TRUE(fits) << fits.error().to_string();
  EXPECT_TRUE(keeps_states(*spec));

  for (const auto& [name, decl] : whole.decls) {
    TinyModel tiny = hybrid(GetParam());
    tiny.decls.erase(name);
    // A head that is missing is that of an embedding model, or tied.
    if (name != "lm_head.weight") {
      expect_damaged(tiny, ErrorCode::kCorruptFile, fmt::format("'{}' is missing", name));
    }
    tiny = hybrid(GetParam());
    tiny.add(name, {3, 1, 2});
    expect_damaged(tiny, ErrorCode::kCorruptFile, "its shape is [3, 1, 2]");
  }
  TinyModel tiny = hybrid(GetParam());
  tiny.add("model.layers.0.self_attn.sinks", {2});
  expect_damaged(tiny, ErrorCode::kUnsupported, "have no place in this architecture");
}

// Before any weight is read.
TEST_P(HybridArchs, ABackendWithoutItsOpsRefusesIt) {
  hybrid(GetParam()).expect_refused(ErrorCode::kUnsupported, "layers that keep a state");
}

INSTANTIATE_TEST_SUITE_P(Families, HybridArchs, ::testing::ValuesIn(kHybridCases),
                         [](const auto& test) { return std::string(test.param.name); });

const HybridCase& case_of(std::string_view name) {
  return *std::ranges::find(kHybridCases, name, &HybridCase::name);
}

void expect_key_refused(const HybridCase& one, std::string_view more, std::string_view key,
                        std::string_view part) {
  TinyModel tiny = hybrid(one, fmt::format("{}, ", more));
  const auto spec = read_tiny(tiny);
  ASSERT_FALSE(spec) << more;
  EXPECT_TRUE(spec.error().where.ends_with(key)) << spec.error().to_string();
  EXPECT_NE(spec.error().to_string().find(part), std::string::npos) << spec.error().to_string();
}

TEST(HybridConfigs, KindsOfLayersThatNobodyKnowsAreRefused) {
  HybridCase lfm2 = case_of("Lfm2ForCausalLM");
  lfm2.types = R"("layer_types": ["conv", "full_attention", "wave"])";
  expect_key_refused(lfm2, R"("conv_L_cache": 3)", "layer_types", "'wave' is not known");
  lfm2.types = R"("layer_types": ["conv", "conv"])";
  expect_key_refused(lfm2, R"("conv_L_cache": 3)", "layer_types", "2 layer types for 3 layers");
  lfm2.types = R"("layer_types": ["conv", "mamba", "conv"])";
  expect_key_refused(lfm2, R"("conv_L_cache": 3)", "layer_types", "convolutions and attention");
  HybridCase nemotron = case_of("NemotronHForCausalLM");
  nemotron.types = R"("hybrid_override_pattern": "ME*X")";
  expect_key_refused(nemotron, R"("conv_kernel": 4)", "hybrid_override_pattern", "'X'");
}

TEST(HybridConfigs, WhatAFamilyDoesNotHaveHereIsRefusedByItsKey) {
  const HybridCase& nemotron = case_of("NemotronHForCausalLM");
  expect_key_refused(nemotron, R"("moe_latent_size": 8)", "moe_latent_size", "narrower space");
  expect_key_refused(nemotron, R"("mlp_hidden_act": "silu")", "mlp_hidden_act", "relu2");
  expect_key_refused(nemotron, R"("num_hidden_layers": 4)", "num_hidden_layers", "5 layers");
  const HybridCase& falcon = case_of("FalconH1ForCausalLM");
  for (const std::string_view key : {"attention_bias", "mamba_proj_bias", "projectors_bias"}) {
    expect_key_refused(falcon, fmt::format(R"("{}": true)", key), key, "biases");
  }
  expect_key_refused(falcon, R"("ssm_multipliers": [1, 1])", "ssm_multipliers", "5 positive");
  expect_key_refused(falcon, R"("key_multiplier": 0)", "key_multiplier", "not positive");
  expect_key_refused(case_of("BambaForCausalLM"), R"("time_step_limit": [2.0, 1.0])",
                     "time_step_limit", "two limits");
  expect_key_refused(case_of("BambaForCausalLM"), R"("mamba_expand": 3)", "mamba_n_heads",
                     "48 channels");
}

TEST(HybridConfigs, LimitsOfStepsMayBeInfinite) {
  for (const std::string_view name : {"FalconH1ForCausalLM", "NemotronHForCausalLM"}) {
    TinyModel tiny = hybrid(case_of(name));
    const ModelSpec spec = read_tiny(tiny).value();
    EXPECT_TRUE(std::isinf(space_of(spec.layers[0])->step_high)) << name;
  }
}

TEST(HybridConfigs, ALayerOfOneBranchHasNoSitesOfTheOther) {
  TinyModel tiny = hybrid(case_of("NemotronHForCausalLM"));
  const ModelSpec spec = read_tiny(tiny).value();
  ASSERT_EQ(spec.layers.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NE(spec.layers[i].has_mixer(), spec.layers[i].has_mlp()) << i;
  }
  EXPECT_EQ(attention_of(spec.layers[2])->rope, kNoRope);
}

TEST(HybridConfigs, ANormOverAllChannelsIsNotDividedAmongRanks) {
  TinyModel whole = hybrid(case_of("BambaForCausalLM"));
  const auto refused = shard_spec(read_tiny(whole).value(), {0, 2});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().to_string().find("norm of layer 0"), std::string::npos);
  TinyModel groups = hybrid(case_of("FalconH1ForCausalLM"));
  ModelSpec spec = read_tiny(groups).value();
  spec.vocab = 64;  // that of the tiny one cannot be divided
  const auto part = shard_spec(spec, {0, 2});
  ASSERT_TRUE(part) << part.error().to_string();
  EXPECT_EQ(space_of(part->layers[0])->heads, 2);
  EXPECT_EQ(space_of(part->layers[0])->groups, 1);
}

TEST(Archs, AModelWithoutAttentionIsRefused) {
  const auto config = weights::HfConfig::parse(
      R"({"architectures": ["GraniteMoeHybridForCausalLM"], "num_hidden_layers": 2,
          "layer_types": ["mamba", "mamba"]})",
      "config.json");
  ASSERT_TRUE(config);
  const auto spec = read_config(*config);
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().where, "config.json: architectures");
  EXPECT_NE(spec.error().message.find("no layer attends"), std::string::npos);
}

}  // namespace
}  // namespace rudder::model
