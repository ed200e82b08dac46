// Stages: the layer ranges that the ranks of a pipeline run, one behind another. The first stage
// embeds, the last has the final norm and the output head and samples; what passes between them is
// exec/handover.h's. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/model/weight_budget.h"
#include "rudder/tensor/dtype.h"

namespace rudder::model {

// Tokens of context whose keys and values count in what a layer costs.
inline constexpr int64_t kStageContext = 2048;

// Divides the model's layers among `count` stages. A layer costs the bytes that a step of one token
// reads in it: its weights as `format_of` says, the keys and values of kStageContext tokens, or of
// its window where that is shorter, as `kv`, and its state; the head's weight counts for the last
// stage. The
// stage that costs most costs as little as it can; among such divisions, each stage from the first
// on has as few layers as it may. An Error (kInvalidArgument, "pipeline-parallel-size"): more
// stages than layers.
Result<std::vector<Stage>> divide_layers(const ModelSpec& whole, const WeightNames& names,
                                         int32_t count, const FormatOf& format_of,
                                         const ops::KvFormat& kv);

// The spec of the stage's part, which a decoder runs: its layers alone. A tied head is none,
// because the table and the head are on different stages.
ModelSpec stage_spec(const ModelSpec& whole, const Stage& stage);

}  // namespace rudder::model
