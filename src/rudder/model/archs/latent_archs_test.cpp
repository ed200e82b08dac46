// What families with latent attention read of their configs, and what of them is refused by name.
// That their mathematics are those of transformers, the goldens show.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/shard.h"
#include "rudder/model/tensor_list.h"

namespace rudder::model {
namespace {

// The published config of DeepSeek-V2-Lite, but for three of its layers.
constexpr std::string_view kPublishedLite = R"({"architectures": ["DeepseekV2ForCausalLM"],
  "model_type": "deepseek_v2", "attention_bias": false, "aux_loss_alpha": 0.001, "ep_size": 1,
  "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
  "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
  "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
  "num_experts_per_tok": 6, "num_hidden_layers": 3, "num_key_value_heads": 16,
  "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
    "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
  "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16", "v_head_dim": 128,
  "vocab_size": 102400})";

Result<ModelSpec> read_latent_config(std::string text, std::string_view from = "",
                                     std::string_view to = "") {
  if (!from.empty()) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  }
  return read_config(weights::HfConfig::parse(text, "config.json").value());
}
Result<ModelSpec> v2_lite(std::string_view from = "", std::string_view to = "") {
  return read_latent_config(std::string(kPublishedLite), from, to);
}

TEST(LatentArchs, DeepSeekPublishedLiteIsRead) {
  const ModelSpec spec = v2_lite().value();
  const LatentAttention& latent = *latent_of(spec.layers[0]);
  EXPECT_EQ(latent.shape.row(), 576);
  EXPECT_EQ(latent.query_rank, 0);
  EXPECT_TRUE(latent.neighbours);
  EXPECT_FALSE(latent.bias);
  EXPECT_EQ(latent.latent_eps, 1e-6f);
  // 192^-1/2 * (0.1 * 0.707 * ln 40 + 1)^2
  EXPECT_NEAR(latent.scale, 0.114721, 1e-6);
  EXPECT_EQ(spec.ropes[0].rotary_dim, 64);
  EXPECT_EQ(std::get<RopeYarn>(spec.ropes[0].scaling).attention_factor, 1);  // both mscales are one
  EXPECT_EQ(spec.longest_positions, 163840);
  EXPECT_NE(gated_mlp_of(spec.layers[0]), nullptr);
  const Experts& experts = *experts_of(spec.layers[1]);
  EXPECT_EQ(experts.count, 64);
  EXPECT_EQ(experts.shared_width, 2816);
  EXPECT_EQ(experts.router.kind, ops::RouterKind::kSoftmaxThenTop);
  EXPECT_FALSE(experts.router.correction);
  const KvGeometry kept = kv_geometry(spec.layers[2]);
  EXPECT_EQ(kept.rows(), 1);
  EXPECT_EQ(kept.head_dim, 576);
  EXPECT_TRUE(runs_trees(spec));
}

TEST(LatentArchs, QueriesMayHaveARowOfTheirOwn) {
  const ModelSpec spec = v2_lite(R"("q_lora_rank": null)", R"("q_lora_rank": 96)").value();
  EXPECT_EQ(latent_of(spec.layers[0])->query_rank, 96);
  // A missing key is the class's.
  EXPECT_EQ(latent_of(v2_lite(R"("q_lora_rank": null,)", "").value().layers[0])->query_rank, 1536);
}

TEST(LatentArchs, DeepSeekV3RoutesBySigmoidsInGroups) {
  const ModelSpec spec = read_latent_config(R"({"architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3", "num_hidden_layers": 5, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}})")
                             .value();
  const LatentAttention& latent = *latent_of(spec.layers[4]);
  EXPECT_EQ(latent.query_rank, 1536);
  EXPECT_EQ(latent.shape.num_heads, 128);
  EXPECT_NEAR(latent.scale, 0.135234, 1e-5);
  EXPECT_NE(gated_mlp_of(spec.layers[2]), nullptr);
  const Router& router = experts_of(spec.layers[3])->router;
  EXPECT_EQ(router.kind, ops::RouterKind::kSigmoid);
  EXPECT_TRUE(router.correction && router.renormalises);
  EXPECT_EQ(router.groups, 8);
  EXPECT_EQ(router.kept_groups, 4);
  EXPECT_EQ(router.scale, 2.5f);
}

TEST(LatentArchs, MistralSmall4GrowsItsQueries) {
  const ModelSpec spec = read_latent_config(R"({"architectures": ["Mistral4ForCausalLM"],
    "model_type": "mistral4", "num_hidden_layers": 2})")
                             .value();
  EXPECT_EQ(latent_of(spec.layers[0])->shape.row(), 320);
  EXPECT_EQ(spec.query_growth.period, 8192);
  EXPECT_EQ(spec.query_growth.slope, 0.1);
  const Router& router = experts_of(spec.layers[0])->router;
  EXPECT_EQ(router.kind, ops::RouterKind::kSoftmaxThenTop);
  EXPECT_TRUE(router.renormalises && !router.correction);
}

TEST(LatentArchs, WhatIsNotServedIsRefusedByItsKey) {
  const auto expect_refused = [](std::string_view from, std::string_view to, std::string_view key) {
    const auto spec = v2_lite(from, to);
    ASSERT_FALSE(spec) << to;
    EXPECT_TRUE(spec.error().where.ends_with(key)) << spec.error().to_string();
  };
  expect_refused(R"("norm_topk_prob": false)", R"("norm_topk_prob": true)", "norm_topk_prob");
  expect_refused(R"("scoring_func": "softmax")", R"("scoring_func": "sigmoid")", "scoring_func");
  expect_refused(R"("moe_layer_freq": 1)", R"("moe_layer_freq": 2)", "moe_layer_freq");
  expect_refused(R"("qk_rope_head_dim": 64)", R"("qk_rope_head_dim": 63)", "qk_rope_head_dim");
  expect_refused(R"("kv_lora_rank": 512)", R"("kv_lora_rank": 0)", "kv_lora_rank");
  expect_refused(R"("kv_lora_rank": 512)", R"("kv_lora_rank": 1000000)", "num_attention_heads");
  expect_refused(R"("topk_method": "greedy")", R"("topk_method": "noaux_tc")", "topk_method");
  std::string grouped(kPublishedLite);
  grouped.replace(grouped.find(R"("n_group": 1)"), 12, R"("n_group": 8)");
  EXPECT_TRUE(read_latent_config(grouped)) << "greedy knows no groups";
  const auto limited = read_latent_config(grouped, R"("greedy")", R"("group_limited_greedy")");
  ASSERT_FALSE(limited);
  EXPECT_TRUE(limited.error().where.ends_with("topk_method")) << limited.error().to_string();
  const auto v4 = read_latent_config(R"({"architectures": ["DeepseekV4ForCausalLM"]})");
  ASSERT_FALSE(v4);
  EXPECT_TRUE(v4.error().where.ends_with("architectures"));
}

// A rank has some of the heads, and all of what every head reads.
TEST(LatentArchs, RanksDivideHeads) {
  const ModelSpec spec = v2_lite().value();
  const ModelSpec part = shard_spec(spec, {1, 4}).value();
  EXPECT_EQ(latent_of(part.layers[0])->shape.num_heads, 4);
  EXPECT_EQ(kv_geometry(part.layers[0]).head_dim, 576);
  const auto refused = shard_spec(spec, {0, 3});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("16 heads of layer 0"), std::string::npos);
}

}  // namespace
}  // namespace rudder::model
