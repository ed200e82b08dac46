#include "rudder/model/check_facets.h"

namespace rudder::model {

Result<void> check_facets(const ModelSpec& spec, ops::Ops& ops) {
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
