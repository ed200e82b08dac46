// Gemma 3: as Gemma 2 without soft-caps, with norms of q and k heads, five windowed layers to each
// global one, and a rope of their own for the windowed layers. Larger sizes come with an image
// encoder, which is not read_gemma3.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/gemma_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr double kGlobalTheta = 1e6;
constexpr double kLocalTheta = 1e4;

constexpr std::string_view kGemma3Defaults = R"({
  "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
  "max_position_embeddings": 131072, "query_pre_attn_scalar": 256, "sliding_window": 4096})";

Result<ModelSpec> read_gemma3(const HfConfig& file) {
  RUDDER_TRY(const HfConfig config, with_class_defaults(file, kGemma3Defaults));
  RUDDER_TRY(ModelSpec spec, gemma_like(config, {.tied_head = true,
                                                 .activation_key = "hidden_activation",
                                                 .activation = "gelu_pytorch_tanh",
                                                 .one_rope = false}));
  RUDDER_TRY(const double local_theta, config.number_or("rope_local_base_freq", kLocalTheta));
  RUDDER_TRY(spec.ropes, read_kinds_of_ropes(config, attention_of(spec.layers[0])->head_dim,
                                             kGlobalTheta, local_theta));
  RUDDER_TRY(const int64_t pattern, config.integer_or("sliding_window_pattern", 6, 1));
  const auto all_but_each_nth = [](size_t layer, int64_t n) {
    return (layer + 1) % static_cast<size_t>(n) != 0;
  };
  RUDDER_TRY(const auto sliding,
             sliding_layers(config, spec.layers.size(), all_but_each_nth, pattern));
  RUDDER_TRY_VOID(set_windows(config, sliding, spec));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    attention_of(spec.layers[i])->rope = sliding[i] ? kSlidingRope : kFullRope;
  }
  set_qk_norm(spec, QkNorm::kPerHead);
  return spec;
}

Result<ModelSpec> read_multimodal(const HfConfig& config) {
  RUDDER_TRY(const HfConfig text, config.object("text_config"));
  return read_gemma3(text);
}

}  // namespace

Architecture gemma3() {
  return {"Gemma3ForCausalLM", "gemma3_text", read_gemma3, gemma_names(), "", "Gemma3TextModel"};
}

Architecture gemma3_multimodal() {
  WeightNames names = gemma_names();
  names.prefix = "language_model.model.";
  names.embedding = "language_model.model.embed_tokens.weight";
  names.final_norm = "language_model.model.norm";
  names.head = "language_model.lm_head";
  names.ignored_prefixes = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                            "model.multi_modal_projector."};
  return {"Gemma3ForConditionalGeneration",
          "gemma3",
          read_multimodal,
          names,
          "gemma3_text",
          "Gemma3Model"};
}

}  // namespace rudder::model
