// LFM2: most layers have a gated short convolution in place of attention, whose queries and keys
// are normed per head. LFM2-MoE: behind some dense layers the MLPs are mixtures of experts; the
// 1e-6 that its router adds to the sum of the chosen scores is that of ops::RouteArgs.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/layer_kinds.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr double kLfm2Theta = 1e6;

constexpr std::string_view kLfm2Defaults = R"({
  "vocab_size": 65536, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000,
  "norm_eps": 1e-5, "conv_bias": false, "conv_L_cache": 3, "block_multiple_of": 256,
  "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": true})";
constexpr std::string_view kLfm2MoeDefaults = R"({
  "vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000,
  "norm_eps": 1e-5, "conv_bias": false, "conv_L_cache": 3, "moe_intermediate_size": 1792,
  "num_experts": 32, "num_experts_per_tok": 4})";

// Without "layer_types" those of "full_attn_idxs" have attention, or all.
Result<std::vector<LayerKind>> lfm2_kinds(const HfConfig& config, size_t num_layers) {
  constexpr std::string_view kIndices = "full_attn_idxs";
  if (config.has("layer_types")) {
    config.has(kIndices);  // says the same
    return layer_kinds(config, "layer_types", num_layers);
  }
  if (!config.has(kIndices)) return std::vector<LayerKind>(num_layers, LayerKind::kAttention);
  RUDDER_TRY(const std::vector<int64_t> indices,
             config.integers(kIndices, 0, static_cast<int64_t>(num_layers) - 1));
  std::vector<LayerKind> kinds(num_layers, LayerKind::kConvolution);
  for (const int64_t index : indices) kinds[static_cast<size_t>(index)] = LayerKind::kAttention;
  return kinds;
}

Result<ModelSpec> read_mixers(const HfConfig& whole) {
  LlamaDefaults defaults{
      .tied_head = true, .activation_key = nullptr, .activation = "silu", .eps_key = "norm_eps"};
  defaults.rope.theta = kLfm2Theta;
  RUDDER_TRY(ModelSpec spec, llama_like(whole, defaults));
  constexpr std::string_view kTied = "tie_embedding";  // goes before the usual key
  if (whole.has(kTied)) {
    RUDDER_TRY(spec.tied_head, whole.boolean(kTied));
  }
  set_qk_norm(spec, QkNorm::kPerHead);
  ShortConv conv{.width = spec.hidden};
  RUDDER_TRY(const int64_t length, whole.integer("conv_L_cache", 1, 256));
  conv.length = static_cast<int32_t>(length);
  RUDDER_TRY(conv.bias, whole.boolean("conv_bias"));
  RUDDER_TRY(const std::vector<LayerKind> kinds, lfm2_kinds(whole, spec.layers.size()));
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == LayerKind::kConvolution) {
      spec.layers[i].mixer = conv;
    } else if (kinds[i] != LayerKind::kAttention) {
      return fail(ErrorCode::kUnsupported, "this architecture has convolutions and attention",
                  whole.where("layer_types"));
    }
  }
  return spec;
}

// Two thirds of what the config says, times a multiplier, rounded up.
Result<int32_t> adjusted_width(const HfConfig& config) {
  constexpr std::string_view kAlias = "block_ff_dim";  // goes before the usual key
  RUDDER_TRY(int64_t width,
             config.integer(config.has(kAlias) ? kAlias : "intermediate_size", 1, kWidestBranch));
  RUDDER_TRY(const int64_t multiple, config.integer("block_multiple_of", 1, kWidestBranch));
  RUDDER_TRY(const double multiplier, config.number("block_ffn_dim_multiplier"));
  RUDDER_TRY(const bool adjusts, config.boolean("block_auto_adjust_ff_dim"));
  if (!adjusts) return static_cast<int32_t>(width);
  width = 2 * width / 3;
  const double wanted = std::floor(multiplier * static_cast<double>(width));
  if (!(wanted >= 1 && wanted <= kWidestBranch)) {
    return fail(ErrorCode::kCorruptFile, fmt::format("an MLP of {} neurons", wanted),
                config.where("block_ffn_dim_multiplier"));
  }
  width = (static_cast<int64_t>(wanted) + multiple - 1) / multiple * multiple;
  return static_cast<int32_t>(width);
}

Result<ModelSpec> read_lfm2(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kLfm2Defaults));
  RUDDER_TRY(ModelSpec spec, read_mixers(whole));
  RUDDER_TRY(const int32_t width, adjusted_width(whole));
  for (LayerSpec& layer : spec.layers) gated_mlp_of(layer)->width = width;
  return spec;
}

Result<ModelSpec> read_lfm2_moe(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kLfm2MoeDefaults));
  RUDDER_TRY(ModelSpec spec, read_mixers(whole));
  RUDDER_TRY(Experts experts, read_experts(whole, spec));
  RUDDER_TRY(experts.router, read_grouped_router(whole, experts));
  experts.router.groups = experts.router.kept_groups = 1;  // whatever "n_group" says
  RUDDER_TRY(experts.router.correction, whole.boolean_or("use_expert_bias", true));
  RUDDER_TRY(const int64_t dense, whole.integer_or("num_dense_layers", 2, 0, 1 << 20));
  for (size_t i = static_cast<size_t>(dense); i < spec.layers.size(); ++i) {
    spec.layers[i].mlp = experts;
  }
  return spec;
}

WeightNames lfm2_names() {
  WeightNames names;
  names.final_norm = "model.embedding_norm";
  names.mixer_pre_norm = "operator_norm";
  names.mlp_pre_norm = "ffn_norm";
  names.of<Attention>().out = "self_attn.out_proj";
  names.of<Attention>().q_norm = "self_attn.q_layernorm";
  names.of<Attention>().k_norm = "self_attn.k_layernorm";
  names.of<GatedMlp>() = {{"feed_forward.w1", "feed_forward.w3"}, "feed_forward.w2"};
  Experts::Names& experts = names.of<Experts>();
  experts.router = "feed_forward.gate";
  experts.correction = "feed_forward.expert_bias";
  experts.experts = "feed_forward.experts";
  experts.gate = "w1";
  experts.up = "w3";
  experts.down = "w2";
  return names;
}

}  // namespace

Architecture lfm2() {
  return {"Lfm2ForCausalLM", "lfm2", read_lfm2, lfm2_names(), "", "Lfm2Model"};
}

Architecture lfm2_moe() {
  return {"Lfm2MoeForCausalLM", "lfm2_moe", read_lfm2_moe, lfm2_names(), "", "Lfm2MoeModel"};
}

}  // namespace rudder::model
