#include "rudder/exec/divide_experts.h"

#include "rudder/model/loader.h"

namespace rudder::exec {

Result<model::ModelSpec> read_divided_spec(const weights::Checkpoint& checkpoint,
                                           const ExecSettings& settings, ops::Ops& device) {
  constexpr const char* kWhere = "enable-expert-parallel";
  RUDDER_TRY(model::ModelSpec spec, model::read_spec(checkpoint));
  if (!settings.parallel.by_expert) return spec;
  bool has_experts = false;
  for (model::LayerSpec& layer : spec.layers) {
    if (model::Experts* const experts = model::experts_of(layer)) {
      experts->by_expert = has_experts = true;
    }
  }
  if (!has_experts) {
    return fail(ErrorCode::kInvalidArgument, "the model has no mixture of experts", kWhere);
  }
  if (!device.is_host() && !ops::rank_of(device).is_alone()) {
    return fail(ErrorCode::kUnsupported,
                "ranks on GPUs divide the neurons of each expert; leave it out", kWhere);
  }
  return spec;
}

}  // namespace rudder::exec
