// Kimi Linear: layers of a delta rule whose decays are those of channels (KDA), between them latent
// attention that knows no position; mixtures with sigmoids. Published files and transformers name
// the keys of its config, and the MLP of its first layer, differently: both are read.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/channel_delta.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/latent_like.h"
#include "rudder/model/archs/layer_kinds.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kDefaults = R"({
  "vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 1048576,
  "rms_norm_eps": 1e-5, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "n_shared_experts": 1, "moe_intermediate_size": 1024, "n_group": 1,
  "topk_group": 1, "num_experts_per_tok": 8, "routed_scaling_factor": 2.446,
  "linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4,
  "first_k_dense_replace": 1})";

constexpr Alias kAliases[] = {{"num_experts_per_token", "num_experts_per_tok"},
                              {"num_shared_experts", "n_shared_experts"},
                              {"num_expert_group", "n_group"},
                              {"model_max_length", "max_position_embeddings"},
                              {"moe_renormalize", "norm_topk_prob", false}};
constexpr std::string_view kLinear = kLinearConfig;

// 1-based layers of a list.
Result<void> mark_layers(const HfConfig& lists, std::string_view key, bool is_delta,
                         std::vector<int>& marks) {
  RUDDER_TRY(const std::vector<int64_t> layers,
             lists.integers(key, 1, static_cast<int64_t>(marks.size())));
  for (const int64_t layer : layers) marks[static_cast<size_t>(layer - 1)] += is_delta ? 1 : 3;
  return {};
}

// Which layers have the delta rule: "layer_types", the two lists of published files, or all but
// every fourth.
Result<std::vector<bool>> delta_layers(const HfConfig& config, size_t num_layers) {
  std::vector<bool> out(num_layers);
  if (config.has("layer_types")) {
    RUDDER_TRY(const std::vector<LayerKind> kinds, layer_kinds(config, "layer_types", num_layers));
    for (size_t i = 0; i < num_layers; ++i) {
      if (kinds[i] != LayerKind::kAttention && kinds[i] != LayerKind::kRecurrent) {
        return fail(ErrorCode::kUnsupported, "layers have attention or a delta rule here",
                    config.where("layer_types"));
      }
      out[i] = kinds[i] == LayerKind::kRecurrent;
    }
    return out;
  }
  if (!config.has(kLinear)) {
    for (size_t i = 0; i < num_layers; ++i) out[i] = i == 0 || i % 4 != 0;
    return out;
  }
  RUDDER_TRY(const HfConfig lists, config.object(kLinear));
  std::vector<int> marks(num_layers);
  RUDDER_TRY_VOID(mark_layers(lists, "kda_layers", true, marks));
  RUDDER_TRY_VOID(mark_layers(lists, "full_attn_layers", false, marks));
  for (size_t i = 0; i < num_layers; ++i) {
    if (marks[i] != 1 && marks[i] != 3) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("layer {} is not in one of the two lists", i + 1),
                  config.where(kLinear));
    }
    out[i] = marks[i] == 1;
  }
  return out;
}

Result<void> refuse_others(const HfConfig& config) {
  RUDDER_TRY(const std::string scores, config.string_or("moe_router_activation_func", "sigmoid"));
  if (scores != "sigmoid") {
    return fail(ErrorCode::kUnsupported, "routers have sigmoids here",
                config.where("moe_router_activation_func"));
  }
  RUDDER_TRY(const bool knows_none, config.boolean_or("mla_use_nope", true));
  if (knows_none) return {};
  return fail(ErrorCode::kUnsupported, "attention knows no position here",
              config.where("mla_use_nope"));
}

Result<ModelSpec> read_kimi_linear(const HfConfig& config) {
  RUDDER_TRY(HfConfig whole, renamed(config, kAliases, config));
  RUDDER_TRY(whole, with_linear_keys(whole));
  RUDDER_TRY(whole, with_class_defaults(whole, kDefaults));
  if (!whole.has("num_experts") && !whole.has("num_local_experts")) {
    RUDDER_TRY(whole, with_class_defaults(whole, R"({"num_local_experts": 256})"));
  }
  RUDDER_TRY_VOID(refuse_others(whole));
  RUDDER_TRY(ModelSpec spec, latent_like(whole));
  spec.ropes.clear();
  RUDDER_TRY(const GatedDelta delta, read_channel_delta(whole));
  RUDDER_TRY(const std::vector<bool> is_delta, delta_layers(whole, spec.layers.size()));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    auto& latent = std::get<LatentAttention>(spec.layers[i].mixer);
    latent.rope = kNoRope;
    latent.neighbours = true;  // as of none
    if (is_delta[i]) spec.layers[i].mixer = delta;
  }
  RUDDER_TRY(Experts experts, read_experts(whole, spec));
  RUDDER_TRY(const int64_t shared, whole.integer("n_shared_experts", 0, 64));
  experts.shared_width = static_cast<int32_t>(shared * experts.width);
  RUDDER_TRY(experts.router, read_grouped_router(whole, experts));
  RUDDER_TRY_VOID(set_experts_by_layer(whole, experts, spec));
  return spec;
}

WeightNames kimi_linear_names() {
  WeightNames names;
  names.of<GatedDelta>() = {.conv = {"self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight",
                                     "self_attn.v_conv1d.weight"},
                            .a_log = "self_attn.A_log",
                            .step_bias = "self_attn.dt_bias",
                            .norm = "self_attn.o_norm",
                            .out = "self_attn.o_proj"};
  names.of<Experts>() = {.router = "block_sparse_moe.gate",
                         .correction = "block_sparse_moe.gate.e_score_correction_bias",
                         .experts = "block_sparse_moe.experts",
                         .gate = "w1",
                         .up = "w3",
                         .down = "w2",
                         .shared_gate_up = {"block_sparse_moe.shared_experts.gate_proj",
                                            "block_sparse_moe.shared_experts.up_proj"},
                         .shared_down = "block_sparse_moe.shared_experts.down_proj"};
  return names;
}

}  // namespace

Architecture kimi_linear() {
  return {"KimiLinearForCausalLM", "kimi_linear", read_kimi_linear, kimi_linear_names(), "",
          "KimiLinearModel"};
}

}  // namespace rudder::model
