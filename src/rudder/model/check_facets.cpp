#include "rudder/model/check_facets.h"

#include <algorithm>

namespace rudder::model {

namespace {

Result<void> check_experts(const ModelSpec& spec, ops::Ops& ops) {
  if (ops.expert_ops() == nullptr || ops.expert_ops()->scales_experts()) return {};
  for (const LayerSpec& layer : spec.layers) {
    const Experts* const experts = experts_of(layer);
    if (experts == nullptr || !experts->router.scales_experts) continue;
    return fail(ErrorCode::kUnsupported,
                "the backend " + ops.name() + " has no kernel with scales of experts",
                "router.per_expert_scale");
  }
  return {};
}

}  // namespace

Result<void> check_facets(const ModelSpec& spec, ops::Ops& ops) {
  RUDDER_TRY_VOID(check_experts(spec, ops));
  const bool has_latents =
      std::ranges::any_of(spec.layers, [](const LayerSpec& l) { return latent_of(l) != nullptr; });
  if (has_latents && ops::latent_ops_of(ops.state_ops()) == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "the backend " + ops.name() + " has no kernels of latent attention",
                "kv_lora_rank");
  }
  if (ops.state_ops() != nullptr) return {};
  for (const LayerSpec& layer : spec.layers) {
    const bool recurs = std::holds_alternative<GatedDelta>(layer.mixer) ||
                        std::holds_alternative<ShortConv>(layer.mixer) ||
                        space_of(layer) != nullptr;
    const Attention* const attention = attention_of(layer);
    const bool gates = attention != nullptr && attention->out_gate;
    if (!recurs && !gates) continue;
    return fail(ErrorCode::kUnsupported,
                "the backend " + ops.name() + " has no kernels of " +
                    (recurs ? "layers that keep a state" : "gated attention"),
                recurs ? "layer_types" : "attn_output_gate");
  }
  return {};
}

}  // namespace rudder::model
