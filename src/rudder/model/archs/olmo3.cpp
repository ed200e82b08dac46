// OLMo 3: OLMo 2 with a window in three layers of four; the others have a rope of their own.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr double kOlmo3Theta = 5e5;
constexpr std::string_view kOlmo3Defaults = R"({
  "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-5, "sliding_window": 4096})";

Result<ModelSpec> read_olmo3(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kOlmo3Defaults));
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.one_rope = false}));
  const int32_t head_dim = attention_of(spec.layers[0])->head_dim;
  RUDDER_TRY(spec.ropes, read_kinds_of_ropes(whole, head_dim, kOlmo3Theta, kOlmo3Theta));
  const auto all_but_each_fourth = [](size_t layer, int64_t) { return (layer + 1) % 4 != 0; };
  RUDDER_TRY(const std::vector<bool> sliding,
             sliding_layers(whole, spec.layers.size(), all_but_each_fourth, 0));
  if (whole.has("sliding_window")) RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    spec.layers[i].norms = {.pre = false, .post = true};
    attention_of(spec.layers[i])->rope = sliding[i] ? kSlidingRope : kFullRope;
  }
  set_qk_norm(spec, QkNorm::kAllHeads);
  return spec;
}

}  // namespace

Architecture olmo3() {
  WeightNames names;
  names.mixer_post_norm = "post_attention_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return {"Olmo3ForCausalLM", "olmo3", read_olmo3, names, "", "Olmo3Model"};
}

}  // namespace rudder::model
