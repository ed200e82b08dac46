// EXAONE 4: norms after the branches only, RMS norm of each q and k head. Where some layers have a
// window, the others rotate nothing.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kExaone4Defaults = R"({
  "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
  "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096})";

Result<ModelSpec> read_exaone4(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kExaone4Defaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  for (LayerSpec& layer : spec.layers) layer.norms = {.pre = false, .post = true};
  set_qk_norm(spec, QkNorm::kPerHead);
  if (!whole.has("sliding_window")) {
    for (const char* key : {"layer_types", "sliding_window_pattern"}) whole.has(key);  // no effect
    return spec;
  }
  // A pattern may be letters too; then, as in transformers, "layer_types" has to be there.
  int64_t pattern = 0;
  whole.has("sliding_window_pattern");
  if (!whole.has("layer_types")) {
    RUDDER_TRY(pattern, whole.integer_or("sliding_window_pattern", 4, 1));
  }
  const auto all_but_each_nth = [](size_t layer, int64_t n) {
    return (layer + 1) % static_cast<size_t>(n) != 0;
  };
  RUDDER_TRY(const std::vector<bool> sliding,
             sliding_layers(whole, spec.layers.size(), all_but_each_nth, pattern));
  RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (!sliding[i]) attention_of(spec.layers[i])->rope = kNoRope;
  }
  return spec;
}

}  // namespace

Architecture exaone4() {
  WeightNames names;
  names.mixer_post_norm = "post_attention_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return {"Exaone4ForCausalLM", "exaone4", read_exaone4, names, "", "Exaone4Model"};
}

}  // namespace rudder::model
