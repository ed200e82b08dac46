#include "rudder/exec/read_model.h"

#include "rudder/model/loader.h"

namespace rudder::exec {

Result<model::ModelSpec> read_model(const weights::Checkpoint& checkpoint,
                                    const ExecSettings& settings) {
  RUDDER_TRY(model::ModelSpec spec, model::read_spec(checkpoint));
  if (settings.quantization.layer_embeddings != "host") return spec;
  if (!spec.layer_embedding.exists()) {
    return fail(ErrorCode::kInvalidArgument, "the model has no embeddings by layer",
                "layer-embeddings");
  }
  spec.layer_embedding.on_host = true;
  return spec;
}

}  // namespace rudder::exec
