// Granite 3: Llama's mathematics with four numbers: of the embeddings, the scores, what branches
// add, and the logits. Granite SWA besides: sinks, windows, a base of the rope for each layer, and
// layers that rotate nothing.
#include <algorithm>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kGraniteDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-6})";
constexpr std::string_view kGraniteSwaDefaults = R"({
  "vocab_size": 100352, "hidden_size": 2560, "intermediate_size": 8192, "num_hidden_layers": 24,
  "num_attention_heads": 20, "num_key_value_heads": 4, "hidden_act": "silu",
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "sliding_window": 128})";

Result<ModelSpec> granite_like(const HfConfig& config, const LlamaDefaults& defaults) {
  RUDDER_TRY(ModelSpec spec, llama_like(config, defaults));
  RUDDER_TRY_VOID(set_multipliers(config, spec));
  return spec;
}

Result<ModelSpec> read_granite(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kGraniteDefaults));
  return granite_like(whole, {});
}

Result<ModelSpec> read_granite_swa(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kGraniteSwaDefaults));
  RUDDER_TRY(ModelSpec spec, granite_like(whole, {.tied_head = true}));
  const auto all_but_each_fourth = [](size_t layer, int64_t) { return layer % 4 != 0; };
  RUDDER_TRY(const std::vector<bool> sliding,
             sliding_layers(whole, spec.layers.size(), all_but_each_fourth, 0));
  if (whole.has("sliding_window")) RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  for (LayerSpec& layer : spec.layers) softmax_of(layer)->sinks = true;
  RUDDER_TRY_VOID(set_layer_thetas(whole, spec));
  return spec;
}

}  // namespace

Architecture granite() {
  return {"GraniteForCausalLM", "granite", read_granite, {}, "", "GraniteModel"};
}

Architecture granite_swa() {
  return {"GraniteSWAForCausalLM", "granite_swa", read_granite_swa, {}, "", "GraniteSWAModel"};
}

}  // namespace rudder::model
