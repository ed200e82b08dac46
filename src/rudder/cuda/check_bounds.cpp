#include "rudder/cuda/check_bounds.h"

#include <fmt/format.h>

namespace rudder::cuda {

Result<void> check_parts(const ops::StepBounds& bounds) {
  const auto check = [](bool is_used, std::string_view what,
                        std::string_view where) -> Result<void> {
    if (!is_used) return {};
    return fail(ErrorCode::kUnsupported,
                fmt::format("the CUDA backend has no kernel with {}", what), std::string(where));
  };
  RUDDER_TRY_VOID(check(bounds.scales_branches, "scaled branches", "model.branch_scale"));
  RUDDER_TRY_VOID(check(bounds.scales_layers, "scaled layers", "model.layers.has_scale"));
  RUDDER_TRY_VOID(check(bounds.scales_logits, "scaled logits", "model.logit_scale"));
  for (const ops::AttentionShape& shape : bounds.attention) {
    RUDDER_TRY_VOID(check(shape.has_v_norm, "a norm of values", "model.layers.mixer.v_norm"));
    RUDDER_TRY_VOID(check(shape.has_sinks, "attention sinks", "model.layers.mixer.sinks"));
  }
  return {};
}

}  // namespace rudder::cuda
