// Qwen3-Next and Qwen3.5 (3.6 and 3.8 are of its shape), dense and with mixtures of experts: most
// layers have a gated delta rule in place of attention, and what attention reads is gated. Of a
// checkpoint with an image encoder the text model alone is read.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kNextDefaults = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
  "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32, "num_experts": 512, "num_experts_per_tok": 10,
  "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512})";
constexpr std::string_view k35Defaults = R"({
  "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
  "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32})";
// Its class has no intermediate_size: every layer is a mixture.
constexpr std::string_view k35MoeDefaults = R"({
  "vocab_size": 248320, "hidden_size": 2048, "intermediate_size": 512, "num_hidden_layers": 40,
  "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32, "num_experts": 256, "num_experts_per_tok": 8,
  "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512})";

constexpr int64_t kMostHeads = 1 << 12;
constexpr int64_t kWidestHead = 1 << 12;
constexpr int64_t kLongestFilter = 1 << 8;

// Which layers have the delta rule: "layer_types", or all but every "full_attention_interval"-th.
Result<std::vector<bool>> linear_layers(const HfConfig& config, size_t num_layers) {
  constexpr std::string_view kTypes = "layer_types";
  RUDDER_TRY(const int64_t interval, config.integer_or("full_attention_interval", 4, 1));
  std::vector<bool> out;
  if (!config.has(kTypes)) {
    for (size_t i = 0; i < num_layers; ++i) {
      out.push_back((i + 1) % static_cast<size_t>(interval) != 0);
    }
    return out;
  }
  RUDDER_TRY(const std::vector<std::string> types, config.strings(kTypes));
  if (types.size() != num_layers) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} layer types for {} layers", types.size(), num_layers),
                config.where(kTypes));
  }
  for (const std::string& type : types) {
    if (type != "linear_attention" && type != "full_attention") {
      return fail(ErrorCode::kUnsupported, fmt::format("the layer type '{}' is not known", type),
                  config.where(kTypes));
    }
    out.push_back(type == "linear_attention");
  }
  return out;
}

Result<GatedDelta> read_delta(const HfConfig& config) {
  GatedDelta delta;
  const auto read = [&](const char* key, int64_t most, int32_t& out) -> Result<void> {
    RUDDER_TRY(const int64_t value, config.integer(key, 1, most));
    out = static_cast<int32_t>(value);
    return {};
  };
  RUDDER_TRY_VOID(read("linear_num_key_heads", kMostHeads, delta.key_heads));
  RUDDER_TRY_VOID(read("linear_num_value_heads", kMostHeads, delta.value_heads));
  RUDDER_TRY_VOID(read("linear_key_head_dim", kWidestHead, delta.key_dim));
  RUDDER_TRY_VOID(read("linear_value_head_dim", kWidestHead, delta.value_dim));
  RUDDER_TRY_VOID(read("linear_conv_kernel_dim", kLongestFilter, delta.conv_length));
  if (delta.value_heads % delta.key_heads != 0) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} value heads are not a multiple of {} key heads", delta.value_heads,
                            delta.key_heads),
                config.where("linear_num_value_heads"));
  }
  return delta;
}

// What all of the family have.
Result<ModelSpec> read_hybrid(const HfConfig& config) {
  const HfConfig whole = config.with_defaults(R"({"partial_rotary_factor": 0.25})");
  whole.has("partial_rotary_factor");  // without effect where the rope says its own
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.rope = {.is_partial = true}}));
  constexpr std::string_view kGate = "attn_output_gate";
  RUDDER_TRY(const bool has_gate, whole.boolean_or(kGate, true));
  if (!has_gate) {
    return fail(ErrorCode::kUnsupported, "attention of this architecture is gated",
                whole.where(kGate));
  }
  set_qk_norm(spec, QkNorm::kPerHead);
  RUDDER_TRY(const GatedDelta delta, read_delta(whole));
  RUDDER_TRY(const std::vector<bool> linear, linear_layers(whole, spec.layers.size()));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    attention_of(spec.layers[i])->out_gate = true;
    if (linear[i]) spec.layers[i].mixer = delta;
  }
  return spec;
}

Result<Experts> read_shared_experts(const HfConfig& config, const ModelSpec& spec) {
  RUDDER_TRY(Experts experts, read_experts(config, spec));
  RUDDER_TRY(const int64_t shared,
             config.integer("shared_expert_intermediate_size", 1, int64_t{1} << 20));
  experts.shared_width = static_cast<int32_t>(shared);
  experts.shared_gate = true;
  experts.router.renormalises = true;
  return experts;
}

Result<ModelSpec> read_qwen3_next(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kNextDefaults));
  RUDDER_TRY(ModelSpec spec, read_hybrid(whole));
  RUDDER_TRY(Experts experts, read_shared_experts(whole, spec));
  RUDDER_TRY(experts.router.renormalises, whole.boolean_or("norm_topk_prob", true));
  RUDDER_TRY(const std::vector<bool> mixtures, mixture_layers(whole, spec.layers.size()));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (mixtures[i]) spec.layers[i].mlp = experts;
  }
  return spec;
}

Result<ModelSpec> read_qwen3_5(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, k35Defaults));
  return read_hybrid(whole);
}

Result<ModelSpec> read_qwen3_5_moe(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, k35MoeDefaults));
  RUDDER_TRY(ModelSpec spec, read_hybrid(whole));
  RUDDER_TRY(const Experts experts, read_shared_experts(whole, spec));
  for (LayerSpec& layer : spec.layers) layer.mlp = experts;
  return spec;
}

template <Result<ModelSpec> (*read)(const HfConfig&)>
Result<ModelSpec> read_text(const HfConfig& config) {
  RUDDER_TRY(const HfConfig text, config.object("text_config"));
  return read(text);
}

WeightNames hybrid_names() {
  WeightNames names;
  names.norm_offset = 1;
  names.ignored_prefixes = {"mtp.", "model.visual.", "visual."};
  return names;
}

WeightNames multimodal_names() {
  WeightNames names = hybrid_names();
  names.prefix = "model.language_model.";
  names.embedding = "model.language_model.embed_tokens.weight";
  names.final_norm = "model.language_model.norm";
  return names;
}

}  // namespace

Architecture qwen3_next() {
  WeightNames names = hybrid_names();
  names.of<GatedDelta>().in = {"linear_attn.in_proj_qkvz"};
  names.of<GatedDelta>().gates = {"linear_attn.in_proj_ba"};
  return {"Qwen3NextForCausalLM", "qwen3_next", read_qwen3_next, names, "", "Qwen3NextModel"};
}

Architecture qwen3_5() {
  return {"Qwen3_5ForCausalLM", "qwen3_5_text", read_qwen3_5, hybrid_names(), "",
          "Qwen3_5TextModel"};
}

Architecture qwen3_5_moe() {
  return {"Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", read_qwen3_5_moe, hybrid_names(), "",
          "Qwen3_5MoeTextModel"};
}

Architecture qwen3_5_multimodal() {
  return {"Qwen3_5ForConditionalGeneration", "qwen3_5", read_text<read_qwen3_5>, multimodal_names(),
          "qwen3_5_text"};
}

Architecture qwen3_5_moe_multimodal() {
  return {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", read_text<read_qwen3_5_moe>,
          multimodal_names(), "qwen3_5_moe_text"};
}

}  // namespace rudder::model
