// gpt-oss: attention with sinks, every other layer with a window; experts with biases and a clamped
// gate, chosen before their softmax. All experts of a layer lie in one tensor a product.
#include <fmt/format.h>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

constexpr std::string_view kGptOssDefaults = R"({
  "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
  "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": 128,
  "attention_bias": true, "num_experts_per_tok": 4, "rope_parameters": {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
    "original_max_position_embeddings": 4096}})";

Result<ModelSpec> read_gpt_oss(const weights::HfConfig& config) {
  RUDDER_TRY(weights::HfConfig whole, with_class_defaults(config, kGptOssDefaults));
  if (!whole.has("num_experts") && !whole.has("num_local_experts")) {
    RUDDER_TRY(whole, with_class_defaults(whole, R"({"num_local_experts": 128})"));
  }
  LlamaDefaults defaults;
  defaults.rope.theta = 150000;
  RUDDER_TRY(ModelSpec spec, llama_like(whole, defaults));
  const auto even = [](size_t layer, int64_t) { return layer % 2 == 0; };
  RUDDER_TRY(const auto sliding, sliding_layers(whole, spec.layers.size(), even, 0));
  RUDDER_TRY_VOID(set_windows(whole, sliding, spec));
  RUDDER_TRY(Experts experts, read_experts(whole, spec, {.width = "intermediate_size"}));
  constexpr std::string_view kLimit = "swiglu_limit";
  RUDDER_TRY(const double limit, whole.number_or(kLimit, ops::kSwigluLimit));
  if (limit != ops::kSwigluLimit || experts.activation != ops::Activation::kSilu) {
    const bool is_limit = limit != ops::kSwigluLimit;
    return fail(ErrorCode::kUnsupported,
                fmt::format("gates are SiLU and clamped at {}", ops::kSwigluLimit),
                whole.where(is_limit ? kLimit : "hidden_act"));
  }
  experts.activation = ops::Activation::kClampedSwiglu;
  experts.bias = true;
  experts.router.kind = ops::RouterKind::kTopThenSoftmax;
  experts.router.bias = true;
  for (LayerSpec& layer : spec.layers) {
    layer.mlp = experts;
    softmax_of(layer)->sinks = true;
  }
  return spec;
}

WeightNames gpt_oss_names() {
  WeightNames names;
  Experts::Names& experts = names.of<Experts>();
  experts.router = "mlp.router";
  experts.stacked_gate_up = "gate_up_proj";
  return names;
}

}  // namespace

Architecture gpt_oss() {
  return {"GptOssForCausalLM", "gpt_oss", read_gpt_oss, gpt_oss_names(), "", "GptOssModel"};
}

}  // namespace rudder::model
