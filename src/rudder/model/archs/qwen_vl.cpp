// The text models of Qwen 2-VL, 2.5-VL and 3-VL: Qwen 2's and Qwen 3's mathematics. Their ropes
// have sections for the places of images; the positions of text are one number, for which such a
// rope is a plain one. Published files of the former two keep the keys of the text beside the
// others.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kQwen2VlDefaults = R"({
  "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
  "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": 4096,
  "max_window_layers": 80})";
constexpr std::string_view kQwen3VlDefaults = R"({
  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 128000, "rms_norm_eps": 1e-6})";

// Where they are beside the others, the text has those that its class names; the config's own
// `original_max_position_embeddings`, say, is none of its rope's then.
constexpr std::string_view kQwen2VlTextKeys[] = {
    "vocab_size",          "hidden_size",         "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "hidden_act",        "max_position_embeddings",
    "rms_norm_eps",        "use_sliding_window",  "sliding_window",    "max_window_layers",
    "layer_types",         "rope_parameters",     "rope_scaling",      "rope_theta"};

// Of the whole config.
Result<void> read_tied_head(const HfConfig& config, ModelSpec& spec) {
  RUDDER_TRY(spec.tied_head, config.boolean_or("tie_word_embeddings", false));
  return {};
}

Result<ModelSpec> read_qwen2_vl(const HfConfig& config) {
  RUDDER_TRY(const HfConfig text, config.has("text_config")
                                      ? config.object("text_config")
                                      : Result<HfConfig>(config.only(kQwen2VlTextKeys)));
  RUDDER_TRY(const HfConfig whole, with_class_defaults(text, kQwen2VlDefaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.rope = {.theta = 1e6, .is_sectioned = true}}));
  // Older files say it of the text.
  const bool is_texts = config.has("text_config") && spec.tied_head;
  RUDDER_TRY_VOID(read_tied_head(config, spec));
  spec.tied_head = spec.tied_head || is_texts;
  for (LayerSpec& layer : spec.layers) {
    attention_of(layer)->qkv_bias = true;
    attention_of(layer)->out_bias = false;
  }
  RUDDER_TRY_VOID(set_windows_above(whole, spec));
  return spec;
}

Result<ModelSpec> read_qwen3_vl(const HfConfig& config) {
  RUDDER_TRY(const HfConfig text, config.object("text_config"));
  RUDDER_TRY(const HfConfig whole, with_class_defaults(text, kQwen3VlDefaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.rope = {.theta = 5e5, .is_sectioned = true}}));
  RUDDER_TRY_VOID(read_tied_head(config, spec));
  set_qk_norm(spec, QkNorm::kPerHead);
  return spec;
}

WeightNames qwen_vl_names() {
  WeightNames names;
  names.prefix = "model.language_model.";
  names.embedding = "model.language_model.embed_tokens.weight";
  names.final_norm = "model.language_model.norm";
  names.ignored_prefixes = {"model.visual.", "visual."};
  return names;
}

}  // namespace

Architecture qwen2_vl() {
  return {.name = "Qwen2VLForConditionalGeneration",
          .model_type = "qwen2_vl",
          .read_spec = read_qwen2_vl,
          .names = qwen_vl_names(),
          .text_model_type = "qwen2_vl_text",
          .may_be_flat = true};
}

Architecture qwen2_5_vl() {
  return {.name = "Qwen2_5_VLForConditionalGeneration",
          .model_type = "qwen2_5_vl",
          .read_spec = read_qwen2_vl,
          .names = qwen_vl_names(),
          .text_model_type = "qwen2_5_vl_text",
          .may_be_flat = true};
}

Architecture qwen3_vl() {
  return {.name = "Qwen3VLForConditionalGeneration",
          .model_type = "qwen3_vl",
          .read_spec = read_qwen3_vl,
          .names = qwen_vl_names(),
          .text_model_type = "qwen3_vl_text"};
}

}  // namespace rudder::model
