#include "rudder/model/check_facets.h"

namespace rudder::model {

Result<void> check_facets(const ModelSpec& spec, ops::Ops& ops) {
  for (const LayerSpec& layer : spec.layers) {
    const bool recurs = std::holds_alternative<GatedDelta>(layer.mixer);
    const Attention* const attention = attention_of(layer);
    const bool gates = recurs || (attention != nullptr && attention->out_gate);
    if (recurs && ops.state_ops() == nullptr) {
      return fail(ErrorCode::kUnsupported,
                  "this backend (" + ops.name() + ") has no kernels of layers that keep a state",
                  "layer_types");
    }
    if (gates && ops.gate_ops() == nullptr) {
      return fail(ErrorCode::kUnsupported,
                  "this backend (" + ops.name() + ") has no kernels of gated attention",
                  "attn_output_gate");
    }
  }
  return {};
}

}  // namespace rudder::model
