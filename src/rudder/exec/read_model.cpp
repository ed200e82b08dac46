#include "rudder/exec/read_model.h"

#include "rudder/model/loader.h"
#include "rudder/model/shard.h"

namespace rudder::exec {
namespace {

Result<void> keep_on_host(model::ModelSpec& spec) {
  if (!spec.layer_embedding.exists()) {
    return fail(ErrorCode::kInvalidArgument, "the model has no embeddings by layer",
                "layer-embeddings");
  }
  spec.layer_embedding.on_host = true;
  return {};
}

Result<void> divide_experts(model::ModelSpec& spec, ops::Ops& device) {
  constexpr const char* kWhere = "enable-expert-parallel";
  if (!model::divide_by_expert(spec)) {
    return fail(ErrorCode::kInvalidArgument, "the model has no mixture of experts", kWhere);
  }
  if (!device.is_host() && !ops::rank_of(device).is_alone()) {
    return fail(ErrorCode::kUnsupported,
                "ranks on GPUs divide the neurons of each expert; leave it out", kWhere);
  }
  return {};
}

}  // namespace

Result<model::ModelSpec> read_model(const weights::Checkpoint& checkpoint,
                                    const ExecSettings& settings, ops::Ops& device) {
  RUDDER_TRY(model::ModelSpec spec, model::read_spec(checkpoint));
  if (settings.quantization.layer_embeddings == "host") RUDDER_TRY_VOID(keep_on_host(spec));
  if (settings.parallel.by_expert) RUDDER_TRY_VOID(divide_experts(spec, device));
  return spec;
}

}  // namespace rudder::exec
