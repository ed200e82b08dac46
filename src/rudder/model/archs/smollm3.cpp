// SmolLM 3: Llama's mathematics; some layers, usually every fourth, rotate nothing.
#include <fmt/format.h>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kSmolLm3Defaults = R"({
  "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
  "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6})";

// "no_rope_layers" has a 1 for each layer that rotates and a 0 for each that does not.
Result<std::vector<bool>> rotating_layers(const HfConfig& config, size_t num_layers) {
  RUDDER_TRY(const int64_t interval, config.integer_or("no_rope_layer_interval", 4, 1));
  std::vector<bool> rotates;
  if (!config.has("no_rope_layers")) {
    for (size_t i = 0; i < num_layers; ++i) {
      rotates.push_back((i + 1) % static_cast<size_t>(interval) != 0);
    }
    return rotates;
  }
  RUDDER_TRY(const std::vector<double> listed, config.numbers("no_rope_layers"));
  if (listed.size() < num_layers) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} numbers for {} layers", listed.size(), num_layers),
                config.where("no_rope_layers"));
  }
  for (size_t i = 0; i < num_layers; ++i) rotates.push_back(listed[i] != 0);
  return rotates;
}

Result<ModelSpec> read_smollm3(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kSmolLm3Defaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.tied_head = true, .rope = {.theta = 2e6}}));
  RUDDER_TRY(const std::vector<bool> rotates, rotating_layers(whole, spec.layers.size()));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (!rotates[i]) attention_of(spec.layers[i])->rope = kNoRope;
  }
  RUDDER_TRY(const bool has_windows, whole.boolean_or("use_sliding_window", false));
  if (!has_windows || !whole.has("sliding_window")) {
    whole.has("layer_types");  // without effect
    return spec;
  }
  std::vector<bool> sliding = rotates;
  sliding.flip();
  if (whole.has("layer_types")) {
    RUDDER_TRY(sliding, sliding_layers(whole, spec.layers.size(), nullptr, 0));
  }
  RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  return spec;
}

}  // namespace

Architecture smollm3() {
  return {"SmolLM3ForCausalLM", "smollm3", read_smollm3, {}, "", "SmolLM3Model"};
}

}  // namespace rudder::model
