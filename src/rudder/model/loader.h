// Loads a checkpoint folder (or an in-memory one) into Weights: reads the config, picks the
// architecture, binds every tensor by name, applies load-time transforms. Every tensor of the
// checkpoint is consumed or named in an Error. Called once at start.
#pragma once

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

struct WeightNames;  // archs/archs.h

// From config.json; errors name the key.
Result<ModelSpec> read_spec(const weights::Checkpoint& checkpoint);

// `spec` is the whole model's; of one rank of a group (ops/comm.h), or of one stage, that part is
// loaded. Progress is in bytes of checkpoint.
Result<Weights> load_weights(const weights::Checkpoint& checkpoint, const ModelSpec& spec,
                             ops::Ops& ops, const ProgressFn& progress, const Stage& stage = {});
// With tensors of those names, whatever the architecture is.
Result<Weights> load_weights(const weights::Checkpoint& checkpoint, const ModelSpec& spec,
                             const WeightNames& names, ops::Ops& ops, const ProgressFn& progress,
                             const Stage& stage = {});

// weight_bytes (tensors.h) of a checkpoint on a backend: fp8 in the file stays fp8 where the
// backend keeps it.
struct WeightBudget {
  int64_t bytes = 0;
  tensor::DType linear_dtype = tensor::DType::kF32;  // of the layers' products
};
WeightBudget budget_weights(const weights::Checkpoint& checkpoint, const ModelSpec& spec,
                            const ops::Ops& ops, ops::Rank rank = {}, const Stage& stage = {});

}  // namespace rudder::model
