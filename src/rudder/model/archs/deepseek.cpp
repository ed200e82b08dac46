// Families with latent attention: DeepSeek V2 and V3 (also Kimi K2, Moonlight), GLM 4.7 Flash,
// Mistral Small 4. They differ in routers and in what their config classes take for granted.
#include <fmt/format.h>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/latent_like.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kV2Defaults = R"({
  "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-6, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "n_shared_experts": 2, "moe_intermediate_size": 1407,
  "first_k_dense_replace": 0, "topk_method": "greedy"})";
constexpr std::string_view kV3Defaults = R"({
  "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
  "num_attention_heads": 128, "hidden_act": "silu", "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-6, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "n_shared_experts": 1, "moe_intermediate_size": 2048,
  "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8,
  "routed_scaling_factor": 2.5})";
constexpr std::string_view kGlmFlashDefaults = R"({
  "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240, "num_hidden_layers": 47,
  "num_attention_heads": 20, "hidden_act": "silu", "max_position_embeddings": 202752,
  "rms_norm_eps": 1e-5, "kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 192,
  "qk_rope_head_dim": 64, "v_head_dim": 256, "n_shared_experts": 1, "moe_intermediate_size": 1536,
  "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "routed_scaling_factor": 1.8})";
constexpr std::string_view kMistral4Defaults = R"({
  "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 1048576,
  "rms_norm_eps": 1e-6, "kv_lora_rank": 256, "q_lora_rank": 1024, "qk_nope_head_dim": 64,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "n_shared_experts": 1, "moe_intermediate_size": 2048,
  "first_k_dense_replace": 0, "num_experts_per_tok": 4})";
constexpr std::string_view kMistralRope = R"({"rope_parameters": {
  "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "beta_fast": 32.0, "beta_slow": 1.0,
  "original_max_position_embeddings": 8192, "mscale": 1.0, "mscale_all_dim": 1.0,
  "llama_4_scaling_beta": 0.1}})";

// The class's number of experts, which goes by two names.
Result<HfConfig> with_experts(const HfConfig& config, std::string_view defaults, int count) {
  RUDDER_TRY(HfConfig whole, with_class_defaults(config, defaults));
  for (const std::string_view key : {"n_routed_experts", "num_local_experts", "num_experts"}) {
    if (whole.has(key)) return whole;
  }
  return with_class_defaults(whole, fmt::format(R"({{"n_routed_experts": {}}})", count));
}

Result<void> refuse_but(const HfConfig& config, std::string_view key, std::string_view word) {
  RUDDER_TRY(const std::string found, config.string_or(key, std::string(word)));
  if (found == word) return {};
  return fail(ErrorCode::kUnsupported, fmt::format("it is '{}', and '{}' is served", found, word),
              config.where(key));
}

// Softmaxes; weights are not divided by their sum, whatever "norm_topk_prob" says.
Result<Router> read_v2_router(const HfConfig& config, const Experts& experts) {
  RUDDER_TRY_VOID(refuse_but(config, "scoring_func", "softmax"));
  RUDDER_TRY(const int64_t groups, config.integer_or("n_group", 1, 1, experts.count));
  RUDDER_TRY(const int64_t kept, config.integer_or("topk_group", groups, 1, groups));
  RUDDER_TRY(const std::string method, config.string("topk_method"));
  const bool keeps_all = method == "group_limited_greedy" && kept == groups;
  if (!keeps_all) RUDDER_TRY_VOID(refuse_but(config, "topk_method", "greedy"));
  RUDDER_TRY(const bool renormalises, config.boolean_or("norm_topk_prob", false));
  if (renormalises) {
    return fail(ErrorCode::kUnsupported, "weights of experts are not divided by their sum here",
                config.where("norm_topk_prob"));
  }
  Router router{.kind = ops::RouterKind::kSoftmaxThenTop};
  RUDDER_TRY(const double scale, config.number_or("routed_scaling_factor", 1));
  router.scale = static_cast<float>(scale);
  return router;
}

Result<ModelSpec> read_v2(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_experts(config, kV2Defaults, 64));
  RUDDER_TRY(ModelSpec spec, latent_like(whole));
  for (LayerSpec& layer : spec.layers) {
    latent_of(layer)->neighbours = true;  // whatever "rope_interleave" says
  }
  RUDDER_TRY(Experts experts, read_experts_beside_shared(whole, spec));
  RUDDER_TRY(experts.router, read_v2_router(whole, experts));
  RUDDER_TRY_VOID(set_experts_from(whole, experts, spec));
  return spec;
}

Result<Experts> read_v3_experts(const HfConfig& config, const ModelSpec& spec) {
  RUDDER_TRY_VOID(refuse_but(config, "scoring_func", "sigmoid"));
  RUDDER_TRY_VOID(refuse_but(config, "topk_method", "noaux_tc"));
  RUDDER_TRY(Experts experts, read_experts_beside_shared(config, spec));
  RUDDER_TRY(experts.router, read_grouped_router(config, experts));
  return experts;
}

Result<ModelSpec> read_v3(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_experts(config, kV3Defaults, 256));
  RUDDER_TRY(ModelSpec spec, latent_like(whole));
  RUDDER_TRY(const Experts experts, read_v3_experts(whole, spec));
  RUDDER_TRY_VOID(set_experts_from(whole, experts, spec));
  return spec;
}

// "mlp_layer_types" names each layer's MLP; without it, all but the first are mixtures, or what
// "first_k_dense_replace" of published files says, which is the same.
Result<ModelSpec> read_glm4_moe_lite(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_experts(config, kGlmFlashDefaults, 64));
  constexpr std::string_view kTurning = "qk_rope_head_dim";
  constexpr std::string_view kAlias = "head_dim";  // the class takes it for the other
  RUDDER_TRY(const int64_t turning, whole.integer(kTurning, 1));
  RUDDER_TRY(const int64_t alias, whole.integer_or(kAlias, turning, 1));
  if (alias != turning) {
    return fail(ErrorCode::kUnsupported, fmt::format("it is not '{}', {}", kTurning, turning),
                whole.where(kAlias));
  }
  RUDDER_TRY(ModelSpec spec, latent_like(whole));
  RUDDER_TRY(const Experts experts, read_v3_experts(whole, spec));
  RUDDER_TRY_VOID(
      set_experts_by_layer(whole.with_defaults(R"({"first_k_dense_replace": 1})"), experts, spec));
  return spec;
}

// Softmaxes in groups; queries grow with their position.
Result<ModelSpec> read_mistral4(const HfConfig& config) {
  RUDDER_TRY(HfConfig whole, with_experts(config, kMistral4Defaults, 128));
  if (!whole.has("rope_scaling")) whole = whole.with_defaults(kMistralRope);
  RUDDER_TRY(ModelSpec spec, latent_like(whole, LatentRope::kPartOfQuery));
  RUDDER_TRY(spec.query_growth, read_growth(whole));
  RUDDER_TRY(Experts experts, read_experts_beside_shared(whole, spec));
  RUDDER_TRY(experts.router, read_grouped_router(whole, experts));
  experts.router.kind = ops::RouterKind::kSoftmaxThenTop;
  experts.router.correction = false;
  RUDDER_TRY_VOID(set_experts_from(whole, experts, spec));
  return spec;
}

}  // namespace

Architecture deepseek_v2() {
  return {"DeepseekV2ForCausalLM", "deepseek_v2", read_v2, shared_expert_names({}), "",
          "DeepseekV2Model"};
}

Architecture deepseek_v3() {
  return {"DeepseekV3ForCausalLM",
          "deepseek_v3",
          read_v3,
          shared_expert_names({"model.layers.61."}),
          "",
          "DeepseekV3Model"};
}

Architecture glm4_moe_lite() {
  return {"Glm4MoeLiteForCausalLM",
          "glm4_moe_lite",
          read_glm4_moe_lite,
          shared_expert_names({"model.layers.47."}),
          "",
          "Glm4MoeLiteModel"};
}

Architecture mistral4() {
  return {"Mistral4ForCausalLM",   "mistral4", read_mistral4,
          shared_expert_names({}), "",         "Mistral4Model"};
}

}  // namespace rudder::model
