// The products of a model that adapters may change: every product of its layers' mixers and MLPs.
// Which tensors of a checkpoint they are, and what of an adapter's matrices a rank multiplies.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/lora/adapter.h"
#include "rudder/lora/base_tensors.h"
#include "rudder/model/spec.h"
#include "rudder/model/tensors.h"
#include "rudder/model/weights.h"
#include "rudder/ops/comm.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// Of the whole model, in the order that deltas name them by.
Result<lora::Targets> adapter_targets(const weights::Checkpoint& checkpoint, const ModelSpec& spec);

// Of a target's product, for DoRA. kUnsupported: the checkpoint has its weight in few bits. The
// views are the checkpoint's.
Result<lora::BaseTensors> base_tensors(const weights::Checkpoint& checkpoint,
                                       const lora::Target& target);

// One product of a rank, and the targets that its parts are, one a part.
struct AdaptedProduct {
  LinearModule module;  // its target is in the weights
  std::vector<int32_t> targets;
};
// Of the stage's layers; `spec` is the whole model's, `weights` are those of the rank and stage.
Result<std::vector<AdaptedProduct>> adapted_products(const weights::Checkpoint& checkpoint,
                                                     const ModelSpec& spec, Weights& weights,
                                                     ops::Rank rank, const Stage& stage);

// Device bytes of one row of the adapter table; `spec` is that of the rank's part and stage.
int64_t adapter_row_bytes(const ModelSpec& spec, int32_t max_rank, tensor::DType act);
// The most columns of AdaptArgs.mid.
int64_t widest_adapter_mid(int32_t max_rank);

}  // namespace rudder::model
