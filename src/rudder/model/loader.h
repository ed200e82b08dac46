// Loads a checkpoint folder (or an in-memory one) into Weights: reads the config, picks the
// architecture, binds every tensor by name, applies load-time transforms. Every tensor of the
// checkpoint is consumed or named in an Error. Called once at start.
#pragma once

#include <string_view>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/model/weight_budget.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct WeightNames;   // archs/archs.h

// From config.json; errors name the key.
Result<ModelSpec> read_spec(const weights::Checkpoint& checkpoint);

// What loading looks at first: every tensor of the spec is there, in its shape and in a type that
// loads, and none is left over. Errors name the tensor. Hardly any data is read.
Result<void> check_tensors(const weights::Checkpoint& checkpoint, const ModelSpec& spec);

// `spec` is the whole model's; of one rank of a group (ops/comm.h), or of one stage, that part is
// loaded. Progress is in bytes of checkpoint.
Result<Weights> load_weights(const weights::Checkpoint& checkpoint, const ModelSpec& spec,
                             ops::Ops& ops, const ProgressFn& progress, const Stage& stage = {});
// With tensors of those names, whatever the architecture is.
Result<Weights> load_weights(const weights::Checkpoint& checkpoint, const ModelSpec& spec,
                             const WeightNames& names, ops::Ops& ops, const ProgressFn& progress,
                             const Stage& stage = {});

// Loads a list of tensors: all of a checkpoint behind `prefix`, or an Error names one that is left
// over, before the first byte is read. Their norms are as those of `spec` and `names`. Returns the
// device bytes.
Result<int64_t> load_list(const weights::Checkpoint& checkpoint, const ModelSpec& spec,
                          const WeightNames& names, const LayerTensors& tensors,
                          std::string_view prefix, ops::Ops& ops);

// An embedding table of f32, f16 or bf16 on the device, as table_dtype (tensors.h) says.
Result<ops::View> upload_table(const ops::View& stored, ops::Ops& ops);

// What the backend stores of a checkpoint's weights, tensor by tensor; both outlive it. What the
// checkpoint does not have counts as bf16.
FormatOf stored_formats(const weights::Checkpoint& checkpoint, const ops::Ops& ops);
Result<WeightBudget> budget_weights(const weights::Checkpoint& checkpoint, const ModelSpec& spec,
                                    const ops::Ops& ops, ops::Rank rank = {},
                                    const Stage& stage = {});
// divide_layers (stage.h) with what the backend stores of the checkpoint.
Result<std::vector<Stage>> divide_checkpoint(const weights::Checkpoint& checkpoint,
                                             const ModelSpec& spec, const ops::Ops& ops,
                                             int32_t count);

}  // namespace rudder::model
