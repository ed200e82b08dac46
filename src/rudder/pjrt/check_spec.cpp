// What of a ModelSpec modules do not compute (model_text.h), refused by config.json's key.
#include <fmt/format.h>

#include <string>
#include <variant>

#include "rudder/pjrt/model_text.h"

namespace rudder::pjrt {
namespace {

using model::Attention;

tl::unexpected<Error> refuse(const std::string& what, const char* where) {
  return fail(ErrorCode::kUnsupported, fmt::format("--device pjrt does not run {}", what), where);
}

Result<void> check_attention(const Attention& attention) {
  if (!std::holds_alternative<model::Softmax>(attention.weighting)) {
    return refuse("attention with a gate in the place of its softmax", "architectures");
  }
  if (attention.out_gate) return refuse("gated attention", "attn_output_gate");
  if (!std::holds_alternative<model::RmsNorm>(attention.qk_norm_kind)) {
    return refuse("norms other than RMS norms", "architectures");
  }
  return {};
}

Result<void> check_layer(const model::LayerSpec& layer) {
  if (std::holds_alternative<model::Experts>(layer.mlp)) {
    return refuse("mixtures of experts", "num_experts");
  }
  const model::GatedMlp* const mlp = gated_mlp_of(layer);
  if (mlp == nullptr) return refuse("layers without an MLP", "architectures");
  if (mlp->activation != ops::Activation::kSilu && mlp->activation != ops::Activation::kGeluTanh) {
    return refuse("MLPs with other activations than SiLU and the GELU of tanh", "hidden_act");
  }
  if (latent_of(layer) != nullptr) return refuse("latent attention", "kv_lora_rank");
  if (!std::holds_alternative<Attention>(layer.mixer)) {
    return refuse("layers that keep a state, or have no attention", "layer_types");
  }
  return check_attention(*attention_of(layer));
}

}  // namespace

Result<void> check_spec(const model::ModelSpec& spec) {
  if (!std::holds_alternative<model::OneStream>(spec.residual)) {
    return refuse("residuals of several streams, or with gates", "architectures");
  }
  if (spec.layer_embedding.exists()) {
    return refuse("embeddings by layer", "hidden_size_per_layer_input");
  }
  if (!std::holds_alternative<model::RmsNorm>(spec.norm)) {
    return refuse("norms other than RMS norms", "architectures");
  }
  if (spec.query_growth.grows()) {
    return refuse("queries that grow with their position", "rope_parameters");
  }
  if (!spec.has_head) return refuse("checkpoints without a head", "architectures");
  for (const model::LayerSpec& layer : spec.layers) RUDDER_TRY_VOID(check_layer(layer));
  return {};
}

}  // namespace rudder::pjrt
