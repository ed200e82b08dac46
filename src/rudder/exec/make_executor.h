// Makes an executor that is ready for its first step from a checkpoint: computes the memory budget,
// loads the weights, allocates the KV cache. apps/, which picks the backend, calls it once at
// start, on the main thread. Each device of a group or a pipeline loads on a thread of its own,
// which ends before the call returns. The caller owns the executor, which owns its devices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/exec/memory_budget.h"
#include "rudder/exec/resident_model.h"
#include "rudder/exec/settings.h"
#include "rudder/features/feature_reader.h"
#include "rudder/model/own_kv_decoder.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/step/draft_method.h"
#include "rudder/step/executor.h"
#include "rudder/tap/lens.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::exec {

// From the engine's settings.
struct StepLimits {
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_repeat = 1;
  int32_t max_draft = 0;  // a backend that takes no drafts has 0 all the same
  // A model of the same tokens that guesses drafts; null: the executor has no proposer. Errors of
  // it name speculative-config.model. It may be closed when the model may.
  const weights::Checkpoint* draft_model = nullptr;
  step::DraftMethod draft_method = step::DraftMethod::kDraftModel;  // what it is
  // What heads guess, max_draft tokens; empty: chains. Refused where the backend or the model
  // (model::runs_trees) takes no trees, and on several stages.
  step::RankedTree draft_tree = {};
  bool host_trees = false;  // the host makes trees of drafts, where steps take them
  // The key of speculative-config that asks for trees of the host: it is refused likewise. Empty:
  // nothing asks for them, so there are chains where there are no trees.
  std::string tree_key = {};
  // Guesses are looked up on the device (DraftCaps::look_up), of max_draft tokens; not beside a
  // model that guesses. Refused where the backend looks nothing up.
  step::LookUp look_up = {};
  // What makes the decoder, which then keeps the KV itself, on one device that is alone; empty:
  // that of macro-ops, over KV of the device's.
  model::MakeOwnKvDecoder make_decoder = {};
};

struct LoadedModel {
  std::unique_ptr<step::Executor> executor;
  model::ModelSpec spec;  // of the whole model
  MemoryBudget memory;    // of the rank that needs most
  // Over the executor's weights, which outlive its use; null where there is no capture, the backend
  // has no reader, or ranks that do not share their memory have the head.
  std::shared_ptr<tap::Lens> lens;
  // Null where the backend reads no features, or there are no dictionaries to read them by.
  std::shared_ptr<features::FeatureReader> features;
};

// The devices that compute a model together, in the order of their stages where the settings divide
// the layers, of each stage in the order of its ranks; one may be alone.
using Ranks = std::vector<std::unique_ptr<ops::Ops>>;

// The same model several times, for an engine with replicas.
struct LoadedModels {
  std::vector<std::unique_ptr<step::Executor>> executors;  // of equal capacity
  model::ModelSpec spec;
  MemoryBudget memory;              // of the rank that needs most
  std::shared_ptr<tap::Lens> lens;  // as LoadedModel's; over the first one's weights
  std::shared_ptr<features::FeatureReader> features;  // likewise, on its first device
  std::shared_ptr<ResidentModel> resident;            // of all executors, which outlive its use
};

// Where the memory would go; allocates nothing (--dry-run). Of several ranks and replicas: of the
// rank that needs most, with the blocks that every one of them has room for.
Result<MemoryBudget> budget_model(const weights::Checkpoint& checkpoint,
                                  std::span<const Ranks> replicas, const ExecSettings& settings,
                                  const StepLimits& limits);

// Of the two long parts of loading; empty functions report nothing.
struct LoadProgress {
  ProgressFn weights;  // the checkpoint's bytes
  ProgressFn graphs;   // captured sizes of steps
};

// Replicas have equal numbers of ranks. All ranks load at the same time. The checkpoint may be
// closed afterwards.
Result<LoadedModels> load_models(const weights::Checkpoint& checkpoint, std::vector<Ranks> replicas,
                                 const ExecSettings& settings, const StepLimits& limits,
                                 const LoadProgress& progress);
// Of one replica.
Result<LoadedModel> load_model(const weights::Checkpoint& checkpoint, Ranks ranks,
                               const ExecSettings& settings, const StepLimits& limits,
                               const LoadProgress& progress);
// Of one device that is alone.
Result<LoadedModel> load_model(const weights::Checkpoint& checkpoint, std::unique_ptr<ops::Ops> ops,
                               const ExecSettings& settings, const StepLimits& limits,
                               const LoadProgress& progress);

}  // namespace rudder::exec
