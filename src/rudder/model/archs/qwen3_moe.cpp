// Qwen 3 with mixtures of experts in all layers, or in some.
#include <fmt/format.h>

#include <algorithm>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

// head_dim is, where it is not told, the hidden size by the number of heads.
constexpr std::string_view kQwen3MoeDefaults = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
  "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "sliding_window": 4096,
  "max_window_layers": 28, "moe_intermediate_size": 768, "num_experts_per_tok": 8})";

// Whether each layer is a mixture: every "decoder_sparse_step"-th, but for "mlp_only_layers".
Result<std::vector<bool>> mixture_layers(const weights::HfConfig& config, size_t num_layers) {
  RUDDER_TRY(const int64_t step, config.integer_or("decoder_sparse_step", 1, 1, 1 << 20));
  std::vector<double> dense;
  if (config.has("mlp_only_layers")) {
    RUDDER_TRY(dense, config.numbers("mlp_only_layers"));
  }
  std::vector<bool> out;
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const bool is_dense = std::ranges::find(dense, static_cast<double>(layer)) != dense.end();
    out.push_back(!is_dense && (static_cast<int64_t>(layer) + 1) % step == 0);
  }
  return out;
}

Result<ModelSpec> read_qwen3_moe(const weights::HfConfig& config) {
  RUDDER_TRY(weights::HfConfig whole, with_class_defaults(config, kQwen3MoeDefaults));
  if (!whole.has("num_experts") && !whole.has("num_local_experts")) {
    RUDDER_TRY(whole, with_class_defaults(whole, R"({"num_experts": 128})"));
  }
  RUDDER_TRY(ModelSpec spec, llama_like(whole));
  set_qk_norm(spec, QkNorm::kPerHead);
  RUDDER_TRY_VOID(set_windows_above(whole, spec));
  RUDDER_TRY(Experts experts, read_experts(whole, spec));
  RUDDER_TRY(experts.router.renormalises, whole.boolean_or("norm_topk_prob", false));
  RUDDER_TRY(const std::vector<bool> mixtures, mixture_layers(whole, spec.layers.size()));
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (mixtures[layer]) spec.layers[layer].mlp = experts;
  }
  return spec;
}

}  // namespace

Architecture qwen3_moe() {
  return {"Qwen3MoeForCausalLM", "qwen3_moe", read_qwen3_moe, {}, "", "Qwen3MoeModel"};
}

}  // namespace rudder::model
