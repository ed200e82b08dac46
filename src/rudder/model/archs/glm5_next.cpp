// GLM 5.3 Flash: layers of a delta rule whose decays are those of channels, with a floor, between
// them latent attention that knows no position; a residual of several streams that ends in their
// mean; clamped gates; mixtures with sigmoids. An indexer chooses the keys of attention: it is
// served as far as it chooses all of them (hyper_like.h).
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/channel_delta.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/hyper_like.h"
#include "rudder/model/archs/latent_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kFlashDefaults = R"({
  "vocab_size": 154880, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 45,
  "num_attention_heads": 64, "hidden_act": "silu", "max_position_embeddings": 1048576,
  "rms_norm_eps": 1e-5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 256,
  "qk_rope_head_dim": 0, "v_head_dim": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048,
  "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "routed_scaling_factor": 2.5,
  "linear_head_dim": 128, "linear_num_heads": 64, "linear_conv_kernel_dim": 4,
  "first_k_dense_replace": 3, "swiglu_limit": 10.0, "hc_mult": 4, "hc_eps": 1e-6,
  "hc_sinkhorn_iters": 20, "index_topk": 2048, "index_kpool": 16,
  "index_kpool_always_select_tail": true})";

// "linear_lower_bound", null for none; or what published files call it.
Result<float> read_decay_floor(const HfConfig& config) {
  constexpr std::string_view kFloor = "linear_lower_bound";
  constexpr std::string_view kPublished = "gate_lower_bound";
  HfConfig from = config;
  std::string_view key = kFloor;
  if (config.has(kLinearConfig)) {
    RUDDER_TRY(const HfConfig linear, config.object(kLinearConfig));
    RUDDER_TRY(const bool has_one, linear.boolean_or("safe_gate", true));
    if (linear.is_null(kPublished) && !has_one) return 0.0f;
    if (linear.has(kPublished)) {
      from = linear;
      key = kPublished;
    }
  }
  if (from.is_null(key)) return 0.0f;
  RUDDER_TRY(const double floor, from.number_or(key, -5));
  if (floor < 0) return static_cast<float>(floor);
  return fail(ErrorCode::kCorruptFile, fmt::format("decays have no floor of {}", floor),
              from.where(key));
}

// All but every fourth, where "layer_types" does not say.
Result<std::vector<bool>> delta_layers_of_next(const HfConfig& config, size_t num_layers) {
  std::vector<bool> out(num_layers);
  constexpr std::string_view kTypes = "layer_types";
  if (!config.has(kTypes)) {
    for (size_t i = 0; i < num_layers; ++i) out[i] = i % 4 != 3;
    return out;
  }
  RUDDER_TRY(const std::vector<std::string> words, config.strings(kTypes));
  if (words.size() != num_layers) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} layer types for {} layers", words.size(), num_layers),
                config.where(kTypes));
  }
  for (size_t i = 0; i < num_layers; ++i) {
    out[i] = words[i] == "linear_attention";
    if (out[i] || words[i] == "deepseek_sparse_attention" || words[i] == "full_attention") continue;
    return fail(ErrorCode::kUnsupported, fmt::format("the layer type '{}' is not known", words[i]),
                config.where(kTypes));
  }
  return out;
}

// Of every query the last pool, which is not full, is chosen besides.
Result<void> check_pools(const HfConfig& config) {
  constexpr std::string_view kTail = "index_kpool_always_select_tail";
  RUDDER_TRY(const int64_t pool, config.integer("index_kpool", 1));
  RUDDER_TRY(const int64_t chosen, config.integer("index_topk", 1));
  if (chosen % pool != 0) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} is no multiple of pools of {}", chosen, pool),
                config.where("index_topk"));
  }
  RUDDER_TRY(const bool has_tail, config.boolean(kTail));
  if (has_tail) return {};
  return fail(ErrorCode::kUnsupported, "the last keys of a query are chosen here",
              config.where(kTail));
}

Result<ModelSpec> read_glm5_next(const HfConfig& config) {
  RUDDER_TRY(const HfConfig text,
             config.has("text_config") ? config.object("text_config") : Result<HfConfig>(config));
  RUDDER_TRY(HfConfig whole, with_linear_keys(text));
  RUDDER_TRY(whole, with_class_defaults(whole, kFlashDefaults));
  if (!whole.has("n_routed_experts") && !whole.has("num_local_experts")) {
    RUDDER_TRY(whole, with_class_defaults(whole, R"({"n_routed_experts": 288})"));
  }
  RUDDER_TRY_VOID(whole.integer("q_lora_rank", 1));
  RUDDER_TRY(ModelSpec spec, latent_like(whole, LatentRope::kNone));
  constexpr std::string_view kTied = "tie_word_embeddings";
  RUDDER_TRY(spec.tied_head, (config.has(kTied) ? config : whole).boolean_or(kTied, false));
  RUDDER_TRY_VOID(check_pools(whole));
  RUDDER_TRY_VOID(limit_to_chosen_keys(whole, spec));
  RUDDER_TRY(HyperConnections streams, read_hyper_connections(whole, true));
  streams.ends_in_mean = true;
  spec.residual = streams;

  RUDDER_TRY(GatedDelta delta, read_channel_delta(whole));
  RUDDER_TRY(delta.decay_floor, read_decay_floor(text));
  RUDDER_TRY(const std::vector<bool> is_delta, delta_layers_of_next(whole, spec.layers.size()));
  RUDDER_TRY(const ops::Activation activation, read_limited_silu(whole, spec));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    gated_mlp_of(spec.layers[i])->activation = activation;
    latent_of(spec.layers[i])->latent_eps = spec.norm_eps;
    latent_of(spec.layers[i])->neighbours = true;  // as of none
    if (is_delta[i]) spec.layers[i].mixer = delta;
  }
  RUDDER_TRY(Experts experts, read_experts_beside_shared(whole, spec));
  RUDDER_TRY(experts.router, read_grouped_router(whole, experts));
  RUDDER_TRY_VOID(set_experts_by_layer(whole, experts, spec));
  return spec;
}

WeightNames glm5_next_names() {
  WeightNames names = shared_expert_names({"model.visual.", "visual."});
  names.prefix = "model.language_model.";
  names.embedding = "model.language_model.embed_tokens.weight";
  names.final_norm = "model.language_model.norm";
  names.ignored_modules = {"self_attn.indexer"};
  names.of<GatedDelta>() = {.conv = {"self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight",
                                     "self_attn.v_conv1d.weight"},
                            .a_log = "self_attn.A_log",
                            .flat_a_log = true,
                            .step_bias = "self_attn.dt_bias",
                            .norm = "self_attn.o_norm",
                            .out = "self_attn.o_proj"};
  return names;
}

}  // namespace

Architecture glm5_next() {
  return {.name = "Glm5NextForConditionalGeneration",
          .model_type = "glm5_next",
          .read_spec = read_glm5_next,
          .names = glm5_next_names(),
          .text_model_type = "glm5_next_text",
          .may_be_flat = true};
}

}  // namespace rudder::model
