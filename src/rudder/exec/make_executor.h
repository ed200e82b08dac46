// Makes an executor that is ready for its first step from a checkpoint: computes the memory budget,
// loads the weights, allocates the KV cache. apps/, which picks the backend, calls it once at
// start.
#pragma once

#include <cstdint>
#include <memory>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/exec/memory_budget.h"
#include "rudder/exec/settings.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/steer/capture/lens.h"
#include "rudder/step/executor.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::exec {

// From the engine's settings.
struct StepLimits {
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_repeat = 1;
  int32_t max_draft = 0;  // a backend that takes no drafts has 0 all the same
};

struct LoadedModel {
  std::unique_ptr<step::Executor> executor;
  model::ModelSpec spec;
  MemoryBudget memory;
  // Over the executor's weights, which outlive its use; null where there is no capture, or the
  // backend has no reader.
  std::shared_ptr<steer::capture::Lens> lens;
};

// Where the memory would go; allocates nothing (--dry-run).
Result<MemoryBudget> budget_model(const weights::Checkpoint& checkpoint, const ops::Ops& ops,
                                  const ExecSettings& settings, const StepLimits& limits);

// Of the two long parts of loading; empty functions report nothing.
struct LoadProgress {
  ProgressFn weights;  // the checkpoint's bytes
  ProgressFn graphs;   // captured sizes of steps
};

// The checkpoint may be closed afterwards.
Result<LoadedModel> load_model(const weights::Checkpoint& checkpoint, std::unique_ptr<ops::Ops> ops,
                               const ExecSettings& settings, const StepLimits& limits,
                               const LoadProgress& progress);

}  // namespace rudder::exec
