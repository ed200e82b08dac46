// Hunyuan 4: latent attention with sinks and a gate on what is read, halves of a head turn; a
// residual of several streams that are not mixed; mixtures with sigmoids, whose experts clamp their
// gates and whose shared MLP does not. An indexer chooses the keys of attention: it is served as
// far as it chooses all of them (hyper_like.h).
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/hyper_like.h"
#include "rudder/model/archs/latent_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kHyDefaults = R"({
  "vocab_size": 120832, "hidden_size": 2816, "intermediate_size": 6912, "num_hidden_layers": 34,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 192,
  "qk_rope_head_dim": 64, "v_head_dim": 256, "n_shared_experts": 1, "moe_intermediate_size": 768,
  "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "routed_scaling_factor": 2.827,
  "first_k_dense_replace": 1, "swiglu_limit": 10.0, "hc_mult": 4, "hc_eps": 1e-6,
  "hc_magnitude": 2.0, "index_topk": 2048})";

Result<void> check_layers_attend(const HfConfig& config) {
  constexpr std::string_view kTypes = "layer_types";
  if (!config.has(kTypes)) return {};
  RUDDER_TRY(const std::vector<std::string> types, config.strings(kTypes));
  const auto attends = [](const std::string& type) {
    return type == "deepseek_sparse_attention" || type == "full_attention";
  };
  if (std::ranges::all_of(types, attends)) return {};
  return fail(ErrorCode::kUnsupported, "all layers attend here", config.where(kTypes));
}

Result<ModelSpec> read_hy_v4(const HfConfig& config) {
  RUDDER_TRY(HfConfig whole, with_class_defaults(config, kHyDefaults));
  if (!whole.has("n_routed_experts") && !whole.has("num_local_experts")) {
    RUDDER_TRY(whole, with_class_defaults(whole, R"({"n_routed_experts": 256})"));
  }
  RUDDER_TRY(ModelSpec spec, latent_like(whole, LatentRope::kPart));
  RUDDER_TRY_VOID(limit_to_chosen_keys(whole, spec));
  RUDDER_TRY_VOID(check_layers_attend(whole));
  RUDDER_TRY(spec.residual, read_hyper_connections(whole, false));
  for (LayerSpec& layer : spec.layers) {
    LatentAttention& latent = *latent_of(layer);
    latent.neighbours = false;
    latent.sinks = latent.out_gate = true;
  }
  RUDDER_TRY(Experts experts, read_experts_beside_shared(whole, spec));
  RUDDER_TRY(experts.activation, read_limited_silu(whole, spec));
  RUDDER_TRY(experts.router, read_grouped_router(whole, experts));
  RUDDER_TRY_VOID(set_experts_by_layer(whole, experts, spec));
  return spec;
}

WeightNames hy_v4_names() {
  WeightNames names = shared_expert_names({"model.mtp_layers."});
  names.hyper = {.mixer = "hc_pre.hc_attn_layer.hc",
                 .mlp = "hc_pre.hc_mlp_layer.hc",
                 .end = "hc_pre.hc_head.hc_head"};
  names.ignored_modules = {"self_attn.indexer"};
  names.of<LatentAttention>().gate = "self_attn.linear_gate";
  names.of<LatentAttention>().sinks = "self_attn.learnable_sink_param";
  names.of<GatedMlp>().gate_up = {"mlp.linear_gate", "mlp.up_proj"};
  names.of<Experts>().shared_gate_up = {"mlp.shared_experts.linear_gate",
                                        "mlp.shared_experts.up_proj"};
  return names;
}

}  // namespace

Architecture hy_v4() {
  return {"HYV4ForCausalLM", "hy_v4", read_hy_v4, hy_v4_names(), "", "HYV4Model"};
}

}  // namespace rudder::model
