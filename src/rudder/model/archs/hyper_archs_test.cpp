// Families with a residual of several streams: what their configs say, and what is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "rudder/model/archs/archs.h"

namespace rudder::model {
namespace {

// A config of GLM 5.3 Flash, smaller.
constexpr std::string_view kNext = R"({"architectures": ["Glm5NextForConditionalGeneration"],
  "model_type": "glm5_next", "tie_word_embeddings": false, "text_config": {
  "model_type": "glm5_next_text", "vocab_size": 64, "hidden_size": 48, "intermediate_size": 64,
  "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 16,
  "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 0, "v_head_dim": 20,
  "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
  "linear_head_dim": 8, "linear_num_heads": 3, "linear_lower_bound": -4.5, "index_topk": 64,
  "index_kpool": 4, "hc_mult": 3, "hc_sinkhorn_iters": 7, "hc_eps": 0.25, "swiglu_limit": 10.0,
  "index_kpool_always_select_tail": true, "rms_norm_eps": 1e-5,
  "max_position_embeddings": 4096}})";

// A config of Hunyuan 4, smaller.
constexpr std::string_view kHy = R"({"architectures": ["HYV4ForCausalLM"],
  "model_type": "hy_v4", "vocab_size": 64, "hidden_size": 48, "intermediate_size": 64,
  "num_hidden_layers": 3, "num_attention_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24,
  "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20, "n_routed_experts": 8,
  "num_experts_per_tok": 2, "moe_intermediate_size": 16, "index_topk": 64, "hc_mult": 3,
  "hc_magnitude": 1.5, "hc_eps": 0.25, "swiglu_limit": 10.0, "rms_norm_eps": 1e-5,
  "max_position_embeddings": 4096})";

Result<ModelSpec> read_with(std::string_view text, std::string_view from, std::string_view to) {
  std::string whole(text);
  if (!from.empty()) {
    const size_t at = whole.find(from);
    if (at == std::string::npos) return fail(ErrorCode::kInternal, std::string(from));
    whole.replace(at, from.size(), to);
  }
  RUDDER_TRY(const weights::HfConfig config, weights::HfConfig::parse(whole, "config.json"));
  return read_config(config);
}

// Where the config is refused with `to` in place of `from`.
std::string refused_at(std::string_view text, std::string_view from, std::string_view to) {
  const auto read = read_with(text, from, to);
  return read ? "read" : read.error().where;
}

TEST(HyperArchs, StreamsAndFloorsAreRead) {
  const ModelSpec spec = read_with(kNext, "", "").value();
  const auto& streams = std::get<HyperConnections>(spec.residual);
  EXPECT_EQ(streams.rule.streams, 3);
  EXPECT_EQ(streams.rule.iterations, 7);
  EXPECT_EQ(streams.rule.eps, 0.25f);
  EXPECT_EQ(streams.rule.norm_eps, 1e-5f);
  EXPECT_TRUE(streams.ends_in_mean);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::get<GatedDelta>(spec.layers[i].mixer).decay_floor, -4.5f);
  }
  EXPECT_EQ(latent_of(spec.layers[3])->rope, kNoRope);
  EXPECT_EQ(latent_of(spec.layers[3])->shape.rope_dim, 0);
  EXPECT_EQ(gated_mlp_of(spec.layers[0])->activation, ops::Activation::kLimitedSilu);
  EXPECT_EQ(experts_of(spec.layers[3])->shared_activation, ops::Activation::kLimitedSilu);
  // An indexer chooses all keys up to there.
  EXPECT_EQ(spec.longest_positions, 64);
  const auto none = read_with(kNext, "-4.5", "null");
  EXPECT_EQ(std::get<GatedDelta>(none.value().layers[0].mixer).decay_floor, 0);
}

TEST(HyperArchs, StreamsThatAreNotMixedAreRead) {
  const ModelSpec spec = read_with(kHy, "", "").value();
  const auto& streams = std::get<HyperConnections>(spec.residual);
  EXPECT_EQ(streams.rule.iterations, 0);
  EXPECT_EQ(streams.rule.magnitude, 1.5f);
  EXPECT_EQ(streams.rule.post_eps, 0.25f);
  EXPECT_FALSE(streams.ends_in_mean);
  const LatentAttention& latent = *latent_of(spec.layers[0]);
  EXPECT_TRUE(latent.sinks && latent.out_gate);
  EXPECT_FALSE(latent.neighbours);
  EXPECT_EQ(gated_mlp_of(spec.layers[0])->activation, ops::Activation::kSilu);
  EXPECT_EQ(experts_of(spec.layers[1])->activation, ops::Activation::kLimitedSilu);
  EXPECT_EQ(experts_of(spec.layers[1])->shared_activation, ops::Activation::kSilu);
  EXPECT_EQ(spec.longest_positions, 64);
}

TEST(HyperArchs, BadNumbersAreRefusedByTheirKeys) {
  constexpr std::string_view kIn = "config.json: text_config.";
  const auto of_next = [&](std::string_view from, std::string_view to) {
    const std::string where = refused_at(kNext, from, to);
    return where.starts_with(kIn) ? where.substr(kIn.size()) : where;
  };
  EXPECT_EQ(of_next(R"("hc_mult": 3)", R"("hc_mult": 0)"), "hc_mult");
  EXPECT_EQ(of_next(R"("hc_mult": 3)", R"("hc_mult": 99)"), "hc_mult");
  EXPECT_EQ(of_next(R"("hc_sinkhorn_iters": 7)", R"("hc_sinkhorn_iters": 0)"), "hc_sinkhorn_iters");
  for (const std::string other : {"hc_pre_from_prev_sublayer", "hc_count"}) {
    EXPECT_EQ(of_next(R"("hc_mult": 3)", R"("hc_mult": 3, ")" + other + R"(": true)"), other);
    EXPECT_EQ(refused_at(kHy, R"("hc_mult": 3)", R"("hc_mult": 3, ")" + other + R"(": true)"),
              "config.json: " + other);
  }
  EXPECT_EQ(of_next(R"("hc_eps": 0.25)", R"("hc_eps": 0)"), "hc_eps");
  EXPECT_EQ(of_next(R"("hc_eps": 0.25)", R"("hc_eps": -1)"), "hc_eps");
  EXPECT_EQ(of_next("-4.5", "1.5"), "linear_lower_bound");
  EXPECT_EQ(of_next(R"("swiglu_limit": 10.0)", R"("swiglu_limit": 7.0)"), "swiglu_limit");
  EXPECT_EQ(of_next(R"("index_topk": 64)", R"("index_topk": 63)"), "index_topk");
  EXPECT_EQ(of_next(R"("index_kpool": 4)", R"("index_kpool": 0)"), "index_kpool");
  EXPECT_EQ(of_next(R"(tail": true)", R"(tail": false)"), "index_kpool_always_select_tail");
  EXPECT_EQ(of_next(R"("qk_rope_head_dim": 0)", R"("qk_rope_head_dim": 8)"), "qk_rope_head_dim");
  EXPECT_EQ(of_next(R"("q_lora_rank": 24,)", R"("q_lora_rank": null,)"), "q_lora_rank");
  EXPECT_EQ(of_next(R"("hc_mult": 3)", R"("hc_mult": 3, "layer_types": ["linear_attention"])"),
            "layer_types");
  EXPECT_EQ(refused_at(kHy, R"("hc_magnitude": 1.5)", R"("hc_magnitude": 0)"),
            "config.json: hc_magnitude");
  EXPECT_EQ(refused_at(kHy, R"("hc_mult": 3)", R"("hc_mult": 0)"), "config.json: hc_mult");
  EXPECT_EQ(refused_at(kHy, R"("index_topk": 64)", R"("index_topk": 0)"),
            "config.json: index_topk");
}

TEST(HyperArchs, WhatIsNotServedIsRefusedByName) {
  for (const std::string_view name :
       {"DeepseekV4ForCausalLM", "DeepseekV41ForCausalLM", "Qwen4ExpForConditionalGeneration"}) {
    const auto found = find_architecture(name);
    ASSERT_FALSE(found) << name;
    EXPECT_EQ(found.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(found.error().message.find(fmt::format("'{}' is not served: it has ", name)),
              std::string::npos);
  }
}

}  // namespace
}  // namespace rudder::model
