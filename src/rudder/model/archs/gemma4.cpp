// Gemma 4, its text models: norms as Gemma 3 has them, multiplied by w; scores without a
// scale; values normed too; a number by which each layer's output is multiplied. Layers without a
// window have wider heads, often fewer of keys, and a rope of which a part turns; in larger models
// their values are the raw keys. The last layer has no window. Some have a mixture of experts
// beside each MLP; small ones have embeddings by layer, and last layers that read the keys and
// values of the last layer of their kind that has its own. What the encoders of images and sound
// hold is not read.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/gemma_like.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr double kSlidingTheta = 1e4;
constexpr int64_t kEachSixth = 6;  // each sixth layer has no window
constexpr int64_t kMostElements = 1 << 20;

constexpr std::string_view kGemma4Defaults = R"({
  "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
  "max_position_embeddings": 131072, "sliding_window": 512, "global_head_dim": 512,
  "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144})";
// Where there are none, or null.
constexpr std::string_view kGemma4Ropes = R"({
  "rope_parameters": {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                       "rope_theta": 1000000.0}}})";
constexpr std::string_view kUnifiedDefaults = R"({
  "max_position_embeddings": 262144, "sliding_window": 1024, "hidden_size_per_layer_input": 0})";

// What no text model of the family has. Of an assistant all layers read KV of its model.
Result<void> check_text(const HfConfig& config, bool is_assistant) {
  const auto refuse = [&](const char* what, const char* key) {
    return fail(ErrorCode::kUnsupported, fmt::format("{} are not supported", what),
                config.where(key));
  };
  if (is_assistant) {
    RUDDER_TRY(const bool has_experts, config.boolean_or("enable_moe_block", false));
    if (has_experts) return refuse("an assistant's mixtures of experts", "enable_moe_block");
    RUDDER_TRY(const int64_t by_layer, config.integer_or("hidden_size_per_layer_input", 0, 0));
    if (by_layer != 0) {
      return refuse("an assistant's embeddings by layer", "hidden_size_per_layer_input");
    }
    config.has("vocab_size_per_layer_input");  // theirs
    RUDDER_TRY(const int64_t all, config.integer("num_hidden_layers", 1));
    RUDDER_TRY(const int64_t shared, config.integer_or("num_kv_shared_layers", 0, 0));
    if (shared != 0 && shared != all) {
      return refuse("an assistant's layers with KV", "num_kv_shared_layers");
    }
    RUDDER_TRY_VOID(config.boolean_or("use_double_wide_mlp", false));  // of layers that share KV
  }
  // "vision": the tokens of an image see each other, and there are none.
  RUDDER_TRY(const std::string both_ways, config.string_or("use_bidirectional_attention", ""));
  if (both_ways.empty() || both_ways == "vision") return {};
  return refuse("attention to later tokens", "use_bidirectional_attention");
}

// Heads of the layers without a window: "per_layer_config" as transformers writes it, or two
// numbers for all of them, as published.
Result<void> set_global_heads(const HfConfig& config, const std::vector<bool>& sliding, bool k_is_v,
                              ModelSpec& spec) {
  const bool by_layer = config.has("per_layer_config");
  std::optional<HfConfig> layers;
  if (by_layer) {
    RUDDER_TRY(layers, config.object("per_layer_config"));
  }
  // Without effect where the other spelling is there, or values have a projection of their own.
  for (const char* key : {"global_head_dim", "num_global_key_value_heads"}) config.has(key);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    Attention& attention = *attention_of(spec.layers[i]);
    const auto set = [&](const HfConfig& from, const char* dim, const char* heads) -> Result<void> {
      RUDDER_TRY(const int64_t head_dim,
                 from.integer_or(dim, attention.head_dim, 2, kMostElements));
      RUDDER_TRY(const int64_t kv_heads,
                 from.integer_or(heads, attention.num_kv_heads, 1, attention.num_heads));
      if (head_dim % 2 != 0 || head_dim * attention.num_heads > kMostElements) {
        return fail(ErrorCode::kUnsupported, fmt::format("heads of {}", head_dim), from.where(dim));
      }
      if (attention.num_heads % kv_heads != 0) {
        return fail(ErrorCode::kCorruptFile,
                    fmt::format("{} heads are not a multiple of {} kv heads", attention.num_heads,
                                kv_heads),
                    from.where(heads));
      }
      attention.head_dim = static_cast<int32_t>(head_dim);
      attention.num_kv_heads = static_cast<int32_t>(kv_heads);
      return {};
    };
    // transformers pads the numbers of a model of ten layers and more.
    const size_t width = fmt::format("{}", spec.layers.size() - 1).size();
    std::string index = fmt::format("{}", i);
    if (layers && !layers->has(index)) index = fmt::format("{:0{}}", i, width);
    if (layers && layers->has(index)) {
      RUDDER_TRY(const HfConfig own, layers->object(index));
      RUDDER_TRY_VOID(set(own, "head_dim", "num_key_value_heads"));
      for (const std::string& key : own.unread_keys()) {
        return fail(ErrorCode::kUnsupported, "a number by layer that is not of its heads",
                    own.where(key));
      }
    } else if (!by_layer && !sliding[i]) {
      RUDDER_TRY_VOID(set(config, "global_head_dim",
                          k_is_v ? "num_global_key_value_heads" : "num_key_value_heads"));
    }
  }
  for (const std::string& key : by_layer ? layers->unread_keys() : std::vector<std::string>()) {
    return fail(ErrorCode::kCorruptFile, "there is no such layer", layers->where(key));
  }
  return {};
}

// A rope for the layers with a window and one for the others, each of the width of their heads.
Result<void> set_ropes(const HfConfig& config, const std::vector<bool>& sliding, ModelSpec& spec) {
  RUDDER_TRY(const HfConfig both, config.object("rope_parameters"));
  spec.ropes.resize(2);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    Attention& attention = *attention_of(spec.layers[i]);
    attention.rope = sliding[i] ? kSlidingRope : kFullRope;
    RopeSpec& rope = spec.ropes[static_cast<size_t>(attention.rope)];
    if (rope.rotary_dim == 0) {
      RUDDER_TRY(const HfConfig own,
                 both.object(sliding[i] ? "sliding_attention" : "full_attention"));
      RUDDER_TRY(rope, read_rope_object(
                           own, config, attention.head_dim,
                           {.theta = kSlidingTheta, .is_partial = true, .is_by_layer = true}));
    }
    const bool is_whole = std::holds_alternative<RopeProportional>(rope.scaling) ||
                          std::holds_alternative<RopeDefault>(rope.scaling);
    if (!is_whole || rope.rotary_dim != attention.head_dim) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("layer {} has heads of {}, its rope is of another kind or of heads "
                              "of {}",
                              i, attention.head_dim, rope.rotary_dim),
                  config.where("rope_parameters"));
    }
  }
  if (spec.ropes[kSlidingRope].rotary_dim == 0) spec.ropes.resize(1);
  return {};
}

// The last "num_kv_shared_layers" layers read the keys and values of the last layer of their kind
// in front of them; "use_double_wide_mlp": their MLPs are twice as wide.
Result<void> share_kv(const HfConfig& config, const std::vector<bool>& sliding, ModelSpec& spec) {
  constexpr std::string_view kShared = "num_kv_shared_layers";
  const auto count = static_cast<int64_t>(spec.layers.size());
  RUDDER_TRY(const int64_t shared, config.integer_or(kShared, 0, 0, count - 1));
  RUDDER_TRY(const bool is_wide, config.boolean_or("use_double_wide_mlp", false));
  const auto own = static_cast<size_t>(count - shared);
  for (size_t i = own; i < spec.layers.size(); ++i) {
    size_t source = own;
    while (source > 0 && sliding[source - 1] != sliding[i]) --source;
    if (source == 0) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("no layer of the kind of layer {} has keys and values", i),
                  config.where(kShared));
    }
    Attention& attention = *attention_of(spec.layers[i]);
    attention.own_kv = false;
    attention.kv_layer = static_cast<int32_t>(source - 1);
    if (is_wide) gated_mlp_of(spec.layers[i])->width *= 2;
  }
  return {};
}

Result<void> read_layer_embedding(const HfConfig& config, ModelSpec& spec) {
  constexpr std::string_view kWidth = "hidden_size_per_layer_input";
  RUDDER_TRY(const int64_t width, config.integer_or(kWidth, 0, 0, kMostElements));
  RUDDER_TRY(const int64_t vocab, config.integer_or("vocab_size_per_layer_input", spec.vocab, 0,
                                                    std::numeric_limits<int32_t>::max()));
  if (width == 0) return {};
  if (vocab < spec.vocab) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} of {} tokens have embeddings by layer", vocab, spec.vocab),
                config.where("vocab_size_per_layer_input"));
  }
  spec.layer_embedding = {.width = static_cast<int32_t>(width),
                          .layers = static_cast<int32_t>(spec.layers.size()),
                          .vocab = static_cast<int32_t>(vocab),
                          .activation = activation_of(spec)};
  return {};
}

// Every layer has experts beside its MLP, which has a width of its own.
Result<void> add_experts(const HfConfig& config, ModelSpec& spec) {
  RUDDER_TRY(const bool has_experts, config.boolean_or("enable_moe_block", false));
  if (!has_experts) return {};
  RUDDER_TRY(Experts experts, read_experts(config, spec, {.chosen = "top_k_experts"}));
  experts.router.renormalises = true;
  experts.router.scales_experts = true;
  experts.own_norms = true;
  for (LayerSpec& layer : spec.layers) {
    experts.shared_width = gated_mlp_of(layer)->width;
    layer.mlp = experts;
  }
  return {};
}

Result<ModelSpec> read_text_model(const HfConfig& config, bool is_assistant) {
  RUDDER_TRY_VOID(check_text(config, is_assistant));
  RUDDER_TRY(ModelSpec spec, llama_like(config, {.tied_head = true,
                                                 .activation_key = "hidden_activation",
                                                 .activation = "gelu_pytorch_tanh",
                                                 .one_rope = false}));
  spec.embed_scale = std::sqrt(static_cast<float>(spec.hidden));
  RUDDER_TRY(spec.final_softcap, soft_cap(config, "final_logit_softcapping"));
  const auto all_but_each_nth = [](size_t layer, int64_t n) {
    return (layer + 1) % static_cast<size_t>(n) != 0;
  };
  RUDDER_TRY(std::vector<bool> sliding,
             sliding_layers(config, spec.layers.size(), all_but_each_nth, kEachSixth));
  sliding.back() = false;
  RUDDER_TRY_VOID(set_windows(config, sliding, spec));
  RUDDER_TRY(const bool k_is_v, config.boolean_or("attention_k_eq_v", false));
  RUDDER_TRY_VOID(set_global_heads(config, sliding, k_is_v, spec));
  RUDDER_TRY_VOID(set_ropes(config, sliding, spec));
  set_qk_norm(spec, QkNorm::kPerHead);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    Attention& attention = *attention_of(spec.layers[i]);
    attention.scale = 1;
    attention.own_kv = !is_assistant;
    attention.v_norm = attention.own_kv;
    attention.v_is_k = attention.own_kv && k_is_v && !sliding[i];
    spec.layers[i].norms.post = true;
    spec.layers[i].has_scale = true;
  }
  if (is_assistant) return spec;
  RUDDER_TRY_VOID(share_kv(config, sliding, spec));
  RUDDER_TRY_VOID(read_layer_embedding(config, spec));
  RUDDER_TRY_VOID(add_experts(config, spec));
  return spec;
}

Result<ModelSpec> read_gemma4(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kGemma4Defaults));
  return read_text_model(whole.with_defaults(kGemma4Ropes), false);
}

Result<ModelSpec> read_gemma4_multimodal(const HfConfig& config) {
  RUDDER_TRY(const HfConfig text, config.object("text_config"));
  return read_gemma4(text);
}

Result<ModelSpec> read_gemma4_unified(const HfConfig& config) {
  RUDDER_TRY(const HfConfig text, config.object("text_config"));
  RUDDER_TRY(const HfConfig whole, with_class_defaults(text, kUnifiedDefaults));
  return read_gemma4(whole);
}

// Its logits are not capped, its rows not scaled: it embeds nothing.
Result<ModelSpec> read_assistant_text(const HfConfig& text) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(text, kGemma4Defaults));
  RUDDER_TRY(ModelSpec spec, read_text_model(whole.with_defaults(kGemma4Ropes), true));
  spec.final_softcap = 0;
  spec.embed_scale = 1;
  return spec;
}

Result<ModelSpec> read_gemma4_assistant(const HfConfig& config) {
  RUDDER_TRY(const HfConfig text, config.object("text_config"));
  return read_assistant_text(text);
}

Result<ModelSpec> read_unified_assistant(const HfConfig& config) {
  RUDDER_TRY(const HfConfig text, config.object("text_config"));
  RUDDER_TRY(const HfConfig whole, with_class_defaults(text, kUnifiedDefaults));
  return read_assistant_text(whole);
}

WeightNames gemma4_names() {
  WeightNames names = gemma_names();
  names.norm_offset = 0;
  Experts::Names& experts = names.of<Experts>();
  experts.router = "router.proj";
  experts.experts = "experts";
  experts.stacked_gate_up = "gate_up_proj";
  experts.stack_form = StackForm::kBehind;
  experts.shared_gate_up = {"mlp.gate_proj", "mlp.up_proj"};
  experts.shared_down = "mlp.down_proj";
  return names;
}

WeightNames gemma4_multimodal_names() {
  WeightNames names = gemma4_names();
  names.prefix = "model.language_model.";
  names.embedding = "model.language_model.embed_tokens.weight";
  names.final_norm = "model.language_model.norm";
  names.ignored_prefixes = {"model.vision_tower.", "model.audio_tower.",     "model.embed_vision.",
                            "model.embed_audio.",  "model.vision_embedder.", "vision_tower.",
                            "audio_tower.",        "embed_vision.",          "embed_audio.",
                            "vision_embedder."};
  return names;
}

WeightNames gemma4_assistant_names() {
  WeightNames names = gemma4_names();
  names.ignored_prefixes = {"pre_projection.", "post_projection."};  // assistant.h has them
  return names;
}

}  // namespace

Architecture gemma4() {
  return {"Gemma4ForCausalLM", "gemma4_text", read_gemma4, gemma4_names()};
}

Architecture gemma4_multimodal() {
  return {"Gemma4ForConditionalGeneration", "gemma4", read_gemma4_multimodal,
          gemma4_multimodal_names(), "gemma4_text"};
}

// Images and sound without an encoder; the text is the same.
Architecture gemma4_unified() {
  return {"Gemma4UnifiedForConditionalGeneration", "gemma4_unified", read_gemma4_unified,
          gemma4_multimodal_names(), "gemma4_unified_text"};
}

Architecture gemma4_assistant() {
  return {"Gemma4AssistantForCausalLM", "gemma4_assistant", read_gemma4_assistant,
          gemma4_assistant_names(), "gemma4_text"};
}

Architecture gemma4_unified_assistant() {
  return {"Gemma4UnifiedAssistantForCausalLM", "gemma4_unified_assistant", read_unified_assistant,
          gemma4_assistant_names(), "gemma4_unified_text"};
}

}  // namespace rudder::model
