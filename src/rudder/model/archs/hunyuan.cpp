// Hunyuan v1 (dense): RMS norm of each q and k head behind the rope, whose base a number widens.
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/class_defaults.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kHunyuanDefaults = R"({
  "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-5})";

Result<ModelSpec> read_hunyuan(const HfConfig& config) {
  RUDDER_TRY(const HfConfig whole, with_class_defaults(config, kHunyuanDefaults));
  RUDDER_TRY(const bool norms, whole.boolean_or("use_qk_norm", true));
  if (!norms) {
    return fail(ErrorCode::kUnsupported, "queries and keys of this architecture are normed",
                whole.where("use_qk_norm"));
  }
  RUDDER_TRY(ModelSpec spec, llama_like(whole, {.rope = {.is_widened = true}}));
  set_qk_norm(spec, QkNorm::kPerHead);
  for (LayerSpec& layer : spec.layers) {
    attention_of(layer)->norms_rotated = true;
    gated_mlp_of(layer)->bias = false;
  }
  return spec;
}

}  // namespace

Architecture hunyuan() {
  WeightNames names;
  names.of<Attention>().q_norm = "self_attn.query_layernorm";
  names.of<Attention>().k_norm = "self_attn.key_layernorm";
  return {"HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", read_hunyuan, names, "",
          "HunYuanDenseV1Model"};
}

}  // namespace rudder::model
