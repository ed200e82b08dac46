// Granite 4 and Bamba: state spaces (Mamba-2) in place of most attention, Granite's MLPs beside
// mixtures of experts. Falcon-H1: attention and a state space side by side in every layer, and
// multipliers of nearly everything, which are folded into weights as they are loaded.
#include <fmt/format.h>

#include <algorithm>
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

constexpr std::string_view kGraniteHybridDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-6, "num_local_experts": 8, "num_experts_per_tok": 2,
  "shared_intermediate_size": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1,
  "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2})";
constexpr std::string_view kBambaDefaults = R"({
  "vocab_size": 128000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "mamba_n_heads": 128,
  "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2})";
constexpr std::string_view kFalconH1Defaults = R"({
  "vocab_size": 128000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "mamba_d_ssm": 1024,
  "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
  "mamba_expand": 2})";

// As wide as "mamba_expand" says.
Result<StateSpace> read_expanded(const HfConfig& config, const ModelSpec& spec) {
  RUDDER_TRY(const int64_t expand, config.integer("mamba_expand", 1, 64));
  return read_state_space(config, expand * spec.hidden);
}

Result<ModelSpec> read_granite_hybrid(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kGraniteHybridDefaults));
  RUDDER_TRY(const std::string positions, whole.string_or("position_embedding_type", ""));
  const bool has_rope = positions == "rope";
  if (!has_rope) whole.has("rope_parameters");  // without effect
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.one_rope = has_rope}));
  RUDDER_TRY_VOID(set_multipliers(whole, spec));
  RUDDER_TRY(const StateSpace space, read_expanded(whole, spec));
  const std::string_view key = whole.has("layer_types") ? "layer_types" : "layers_block_type";
  std::vector<LayerKind> kinds(spec.layers.size(), LayerKind::kRecurrent);
  if (whole.has(key)) {
    RUDDER_TRY(kinds, layer_kinds(whole, key, spec.layers.size()));
  }
  RUDDER_TRY(const int64_t shared, whole.integer("shared_intermediate_size", 1, kWidestBranch));
  RUDDER_TRY(const int64_t count, whole.integer("num_local_experts", 0, kWidestBranch));
  Experts experts;
  if (count > 0) {
    RUDDER_TRY(experts, read_experts(whole, spec,
                                     {.width = "intermediate_size", .count = "num_local_experts"}));
    experts.router.kind = ops::RouterKind::kTopThenSoftmax;
    experts.shared_width = static_cast<int32_t>(shared);
  } else {
    RUDDER_TRY_VOID(whole.integer("num_experts_per_tok", 0));
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    if (!has_rope) attention_of(layer)->rope = kNoRope;
    if (kinds[i] != LayerKind::kRecurrent && kinds[i] != LayerKind::kAttention) {
      return fail(ErrorCode::kUnsupported, "this architecture has state spaces and attention",
                  whole.where(key));
    }
    if (kinds[i] == LayerKind::kRecurrent) layer.mixer = space;
    if (count > 0) {
      layer.mlp = experts;
    } else {
      gated_mlp_of(layer)->width = static_cast<int32_t>(shared);
    }
  }
  return spec;
}

Result<ModelSpec> read_bamba(const HfConfig& config) {
  RUDDER_TRY(HfConfig whole, with_class_defaults(config, kBambaDefaults));
  // Half of a head turns where the rope itself does not say, whatever stands beside it.
  constexpr std::string_view kPart = "partial_rotary_factor";
  RUDDER_TRY(const double part, whole.number_or(kPart, 0.5));
  RUDDER_TRY(const HfConfig rope, rope_object(whole));
  if (part != 0.5 && !rope.has(kPart)) {
    return fail(ErrorCode::kUnsupported, "half of a head turns in this architecture",
                whole.where(kPart));
  }
  whole = whole.with_defaults(R"({"partial_rotary_factor": 0.5})");
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.rope = {.is_partial = true}}));
  RUDDER_TRY(const StateSpace space, read_expanded(whole, spec));
  std::vector<int64_t> attends;
  if (whole.has("attn_layer_indices")) {
    RUDDER_TRY(attends, whole.integers("attn_layer_indices", 0,
                                       static_cast<int64_t>(spec.layers.size()) - 1));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (std::ranges::find(attends, static_cast<int64_t>(i)) == attends.end()) {
      spec.layers[i].mixer = space;
    }
  }
  return spec;
}

// Numbers of a list of `count`, ones without it; positive.
Result<std::vector<float>> multipliers(const HfConfig& config, std::string_view key, size_t count) {
  if (!config.has(key)) return std::vector<float>(count, 1.0f);
  RUDDER_TRY(const std::vector<double> values, config.numbers(key));
  const bool fits = std::ranges::all_of(values, [](double value) { return value > 0; });
  if (values.size() != count || !fits) {
    return fail(ErrorCode::kCorruptFile, fmt::format("they are not {} positive numbers", count),
                config.where(key));
  }
  return std::vector<float>(values.begin(), values.end());
}

Result<void> set_space_factors(const HfConfig& config, StateSpace& space) {
  RUDDER_TRY(const float in, multiplier(config, "ssm_in_multiplier"));
  RUDDER_TRY(const std::vector<float> each,
             multipliers(config, "ssm_multipliers", StateSpace::kNumInputs));
  for (size_t i = 0; i < each.size(); ++i) space.in_factors[i] = in * each[i];
  RUDDER_TRY(space.out_factor, multiplier(config, "ssm_out_multiplier"));
  return {};
}

// Queries and keys are linear in the input, so their factors are those of the scores; so are values
// in that of what attention adds.
Result<void> set_attention_factors(const HfConfig& config, Attention& attention) {
  RUDDER_TRY(const float in, multiplier(config, "attention_in_multiplier"));
  RUDDER_TRY(const float key, multiplier(config, "key_multiplier"));
  RUDDER_TRY(const float out, multiplier(config, "attention_out_multiplier"));
  attention.scale *= in * in * key;
  attention.out_factor = in * out;
  return {};
}

Result<ModelSpec> read_falcon_h1(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kFalconH1Defaults));
  for (const std::string_view key :
       {"attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"}) {
    RUDDER_TRY(const bool has_bias, whole.boolean_or(key, false));
    if (!has_bias) continue;
    return fail(ErrorCode::kUnsupported,
                "biases of projections, which have multipliers, are not "
                "supported",
                whole.where(key));
  }
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  RUDDER_TRY(spec.embed_scale, multiplier(whole, "embedding_multiplier"));
  RUDDER_TRY(spec.logit_scale, multiplier(whole, "lm_head_multiplier"));
  RUDDER_TRY(const int64_t expand, whole.integer("mamba_expand", 1, 64));
  RUDDER_TRY(const int64_t width,
             whole.integer_or("mamba_d_ssm", expand * spec.hidden, 1, kWidestBranch));
  RUDDER_TRY(StateSpace space, read_state_space(whole, width));
  RUDDER_TRY_VOID(set_space_factors(whole, space));
  RUDDER_TRY(const bool is_normed, whole.boolean_or("mamba_rms_norm", false));
  RUDDER_TRY(const bool norm_first, whole.boolean_or("mamba_norm_before_gate", true));
  space.norm_runs = is_normed ? space.groups : 0;
  space.gates_first = !norm_first;
  RUDDER_TRY(const std::vector<float> of_mlp, multipliers(whole, "mlp_multipliers", 2));
  for (LayerSpec& layer : spec.layers) {
    GatedMlp& mlp = *gated_mlp_of(layer);
    mlp.gate_factor = of_mlp[0];
    mlp.out_factor = of_mlp[1];
    Attention attention = *attention_of(layer);
    RUDDER_TRY_VOID(set_attention_factors(whole, attention));
    layer.mixer = Parallel{.hidden = spec.hidden, .attention = attention, .space = space};
  }
  return spec;
}

WeightNames granite_hybrid_names() {
  WeightNames names;
  names.of<GatedMlp>() = {{"shared_mlp.input_linear"}, "shared_mlp.output_linear"};
  Experts::Names& experts = names.of<Experts>();
  experts.router = "block_sparse_moe.router.layer";
  experts.experts = "block_sparse_moe";
  experts.stacked_gate_up = "input_linear.weight";
  experts.down = "output_linear.weight";
  experts.stack_form = StackForm::kBehind;
  experts.shared_gate_up = {"shared_mlp.input_linear"};
  experts.shared_down = "shared_mlp.output_linear";
  return names;
}

WeightNames bamba_names() {
  WeightNames names;
  names.final_norm = "model.final_layernorm";
  names.mlp_pre_norm = "pre_ff_layernorm";
  names.of<GatedMlp>() = {{"feed_forward.gate_proj", "feed_forward.up_proj"},
                          "feed_forward.down_proj"};
  return names;
}

}  // namespace

Architecture granite_hybrid() {
  return {"GraniteMoeHybridForCausalLM",
          "granitemoehybrid",
          read_granite_hybrid,
          granite_hybrid_names(),
          "",
          "GraniteMoeHybridModel"};
}

Architecture bamba() {
  return {"BambaForCausalLM", "bamba", read_bamba, bamba_names(), "", "BambaModel"};
}

Architecture falcon_h1() {
  return {"FalconH1ForCausalLM", "falcon_h1", read_falcon_h1, bamba_names(), "", "FalconH1Model"};
}

}  // namespace rudder::model
