// Nemotron-H and Nemotron 3: a layer has one branch alone, a state space (Mamba-2), attention
// without a rope, an MLP of squared ReLUs or a mixture of such experts.
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

constexpr std::string_view kNemotronHDefaults = R"({
  "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 21504,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
  "max_position_embeddings": 4096, "layer_norm_epsilon": 1e-5, "mlp_hidden_act": "relu2",
  "mamba_hidden_act": "silu", "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
  "ssm_state_size": 128, "conv_kernel": 4, "time_step_min": 0.001,
  "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688,
  "moe_shared_expert_intermediate_size": 7688, "n_shared_experts": 1})";

constexpr std::string_view kLayersOfTheClass =
    R"({"layers_block_type": ["mamba", "moe", "attention", "mlp"]})";

Result<std::vector<LayerKind>> nemotron_kinds(const HfConfig& config) {
  constexpr std::string_view kPattern = "hybrid_override_pattern";
  constexpr std::string_view kOther = "layer_types";
  const std::string_view words = config.has(kOther) ? kOther : "layers_block_type";
  const bool has_pattern = config.has(kPattern);  // says the same where words are there
  if (has_pattern && !config.has(words)) return pattern_kinds(config, kPattern);
  const HfConfig whole = config.with_defaults(kLayersOfTheClass);
  RUDDER_TRY(const std::vector<std::string> kinds, whole.strings(words));
  return layer_kinds(whole, words, kinds.size());
}

// The class takes keys by the names that they have in Bamba too, and before its own.
std::string_view either(const HfConfig& config, std::string_view other, std::string_view key) {
  return config.has(other) ? other : key;
}

Result<void> expect_word(const HfConfig& config, std::string_view key, std::string_view word) {
  RUDDER_TRY(const std::string found, config.string(key));
  if (found == word) return {};
  return fail(ErrorCode::kUnsupported, fmt::format("it is '{}', not '{}'", found, word),
              config.where(key));
}

// Steps have a lower limit alone.
Result<StateSpace> read_space(const HfConfig& config) {
  config.has("mamba_proj_bias");  // without effect, unlike "use_bias"
  const SpaceKeys keys{.heads = "mamba_num_heads",
                       .groups = either(config, "mamba_n_groups", "n_groups"),
                       .head_dim = "mamba_head_dim",
                       .state_dim = "ssm_state_size",
                       .conv_length = either(config, "mamba_d_conv", "conv_kernel"),
                       .conv_bias = either(config, "mamba_conv_bias", "use_conv_bias"),
                       .bias = "use_bias"};
  RUDDER_TRY(StateSpace space, read_state_space(config, 0, keys));
  RUDDER_TRY(const double least, config.number(either(config, "mamba_dt_min", "time_step_min")));
  space.step_low = static_cast<float>(least);
  space.step_high = INFINITY;
  space.norm_runs = space.groups;
  return space;
}

Result<Experts> read_mixture(const HfConfig& config, const ModelSpec& spec) {
  RUDDER_TRY(Experts experts, read_experts(config, spec, {.count = "n_routed_experts"}));
  RUDDER_TRY(experts.router, read_grouped_router(config, experts));
  RUDDER_TRY(const int64_t shared,
             config.integer("moe_shared_expert_intermediate_size", 1, kWidestBranch));
  experts.shared_width = static_cast<int32_t>(shared);
  constexpr std::string_view kShared = "n_shared_experts";
  RUDDER_TRY(const int64_t count, config.integer(kShared, 0));
  constexpr std::string_view kLatent = "moe_latent_size";
  if (count == 1 && !config.has(kLatent)) return experts;
  return fail(ErrorCode::kUnsupported,
              count == 1 ? "experts that work in a narrower space are not supported"
                         : "one expert of all tokens is supported",
              config.where(count == 1 ? kLatent : kShared));
}

Result<ModelSpec> read_nemotron_h(const HfConfig& config) {
  RUDDER_TRY(HfConfig whole, with_class_defaults(config, kNemotronHDefaults));
  RUDDER_TRY(const std::vector<LayerKind> kinds, nemotron_kinds(whole));
  whole = whole.with_defaults(fmt::format(R"({{"num_hidden_layers": {}}})", kinds.size()));
  RUDDER_TRY_VOID(expect_word(whole, "mlp_hidden_act", "relu2"));
  RUDDER_TRY_VOID(expect_word(whole, "mamba_hidden_act", "silu"));
  // The square of a ReLU is that ReLU times what it is of: gate and up are one tensor.
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.activation_key = nullptr,
                                                .activation = "relu",
                                                .eps_key = "layer_norm_epsilon",
                                                .one_rope = false}));
  if (spec.layers.size() != kinds.size()) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("it is {}, and {} layers are listed", spec.layers.size(), kinds.size()),
                whole.where("num_hidden_layers"));
  }
  RUDDER_TRY(const StateSpace space, read_space(whole));
  RUDDER_TRY(const Experts experts, read_mixture(whole, spec));
  for (size_t i = 0; i < kinds.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    Attention& attention = *attention_of(layer);
    attention.rope = kNoRope;
    attention.qkv_bias = attention.out_bias = false;  // whatever "attention_bias" says
    if (kinds[i] == LayerKind::kExperts) layer.mlp = experts;
    if (kinds[i] == LayerKind::kRecurrent) layer.mixer = space;
    if (kinds[i] == LayerKind::kMlp || kinds[i] == LayerKind::kExperts) {
      layer.mixer = NoMixer{};
    } else {
      layer.mlp = NoMlp{};
    }
    if (kinds[i] == LayerKind::kConvolution) {
      return fail(ErrorCode::kUnsupported, "the layer type 'conv' is not of this architecture",
                  whole.where("layers_block_type"));
    }
  }
  return spec;
}

WeightNames nemotron_h_names() {
  WeightNames names;
  names.prefix = "backbone.";
  names.embedding = "backbone.embeddings.weight";
  names.final_norm = "backbone.norm_f";
  names.mixer_pre_norm = names.mlp_pre_norm = "norm";
  names.of<Attention>().qkv = {"mixer.q_proj", "mixer.k_proj", "mixer.v_proj"};
  names.of<Attention>().out = "mixer.o_proj";
  names.of<StateSpace>() = {.in = "mixer.in_proj",
                            .conv = "mixer.conv1d.weight",
                            .conv_bias = "mixer.conv1d.bias",
                            .a_log = "mixer.A_log",
                            .step_bias = "mixer.dt_bias",
                            .skip = "mixer.D",
                            .norm = "mixer.norm",
                            .out = "mixer.out_proj"};
  names.of<GatedMlp>() = {{"mixer.up_proj", "mixer.up_proj"}, "mixer.down_proj"};
  Experts::Names& experts = names.of<Experts>();
  experts.router = "mixer.gate";
  experts.correction = "mixer.gate.e_score_correction_bias";
  experts.experts = "mixer.experts";
  experts.gate = experts.up = "up_proj";
  experts.shared_gate_up = {"mixer.shared_experts.up_proj", "mixer.shared_experts.up_proj"};
  experts.shared_down = "mixer.shared_experts.down_proj";
  names.ignored_prefixes = {"mtp."};
  return names;
}

}  // namespace

Architecture nemotron_h() {
  return {"NemotronHForCausalLM", "nemotron_h", read_nemotron_h,
          nemotron_h_names(),     "",           "NemotronHModel"};
}

}  // namespace rudder::model
