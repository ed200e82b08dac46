#include "rudder/model/check_facets.h"

#include <fmt/format.h>

#include <algorithm>

namespace rudder::model {

namespace {

// What a layer asks of the ops with a state; nothing where it keeps none.
ops::StateLimits asked_by(const LayerSpec& layer) {
  ops::StateLimits asked{.filter = 0, .key_dim = 0, .decay_floor = false};
  if (const auto* const delta = std::get_if<GatedDelta>(&layer.mixer)) {
    asked = {.filter = delta->conv_length,
             .key_dim = delta->key_dim,
             .decay_floor = delta->decay_floor < 0};
  } else if (const auto* const conv = std::get_if<ShortConv>(&layer.mixer)) {
    asked.filter = conv->length;
  } else if (const StateSpace* const space = space_of(layer)) {
    asked = {.filter = space->conv_length, .key_dim = space->state_dim};
  }
  return asked;
}

Result<void> check_states(const LayerSpec& layer, ops::Ops& ops) {
  const ops::StateLimits asked = asked_by(layer);
  const bool recurs = asked.filter > 0;
  const Attention* const attention = attention_of(layer);
  const bool gates = attention != nullptr && attention->out_gate;
  if (ops.state_ops() == nullptr) {
    if (!recurs && !gates) return {};
    return fail(ErrorCode::kUnsupported,
                "the backend " + ops.name() + " has no kernels of " +
                    (recurs ? "layers that keep a state" : "gated attention"),
                recurs ? "layer_types" : "attn_output_gate");
  }
  const ops::StateLimits most = ops.state_ops()->state_limits();
  if (asked.decay_floor && !most.decay_floor) {
    return fail(ErrorCode::kUnsupported,
                "the backend " + ops.name() + " has no kernel of decays with a floor",
                "linear_lower_bound");
  }
  if (asked.filter <= most.filter && asked.key_dim <= most.key_dim) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("the backend {} takes filters of up to {} tokens and states of up to {} "
                          "rows, not {} and {}",
                          ops.name(), most.filter, most.key_dim, asked.filter, asked.key_dim),
              "layer_types");
}

Result<void> check_latents(const ModelSpec& spec, ops::Ops& ops) {
  const bool has_latents =
      std::ranges::any_of(spec.layers, [](const LayerSpec& l) { return latent_of(l) != nullptr; });
  if (!has_latents || ops::latent_ops_of(ops.state_ops()) != nullptr) return {};
  return fail(ErrorCode::kUnsupported,
              "the backend " + ops.name() + " has no kernels of latent attention", "kv_lora_rank");
}

}  // namespace

Result<void> check_facets(const ModelSpec& spec, ops::Ops& ops) {
  RUDDER_TRY_VOID(check_latents(spec, ops));
  for (const LayerSpec& layer : spec.layers) RUDDER_TRY_VOID(check_states(layer, ops));
  return {};
}

}  // namespace rudder::model
