// AssistantProposer: guesses with an assistant (model/assistant.h) from the row of the step that
// has just been sampled and from the model's own KV, which it reads through the block tables of the
// model's steps. It keeps nothing of a sequence and runs no tokens (DraftCaps::guesses_from_rows),
// so preemption, cached prefixes, chunks and rejected drafts do not concern it, and it takes no
// blocks. All tokens of a sequence but the last are in KV when it guesses: each pass sees these,
// whatever earlier drafts left behind them. The executor's worker thread uses it.
//
// Guesses are passes of single tokens, one behind another without the host: a pass takes the token
// that the one before it has sampled. Passes that come again are replayed from graphs
// (pass_graphs.h).
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/pass_graphs.h"
#include "rudder/exec/proposer.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/assistant.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

// An assistant that fits its model (fit_assistant); the weights are the rank's part.
struct AssistantDraft {
  model::AssistantSpec spec;
  model::AssistantWeights weights;
  model::AssistantSource source = {};  // set by the executor
};

class AssistantProposer final : public Proposer {
 public:
  // `ops` outlives it; `capacity` is the executor's, `read` what its steps leave. `has_graphs`:
  // where the device has them, passes are captured when they come back.
  static Result<std::unique_ptr<AssistantProposer>> make(AssistantDraft draft, ops::Ops& ops,
                                                         const step::Capacity& capacity,
                                                         const StepRows& read, bool has_graphs);
  // Device bytes beside the weights: its own, and those of StepRows.final_rows.
  static int64_t device_bytes(const model::AssistantSpec& spec, const step::Capacity& capacity,
                              tensor::DType act, ops::Rank rank = {});

  Result<Setup> run(std::span<GuessAsk> asks) override;

 private:
  AssistantProposer(AssistantDraft draft, ops::Ops& ops, const StepRows& read)
      : draft_(std::move(draft)), ops_(ops), read_(read) {}

  Result<void> name_slots(int32_t num_slots);
  void pack(std::span<GuessAsk> asks);
  void take_sampled(const DeviceStep& step);

  const AssistantDraft draft_;
  ops::Ops& ops_;
  const StepRows read_;
  std::unique_ptr<model::Assistant> assistant_;  // points into draft_
  std::unique_ptr<StepBuffers> buffers_;
  std::unique_ptr<PassGraphs> graphs_;  // points into both; none where every pass runs op by op
  std::unique_ptr<ops::Event> done_;
  ops::View slots_;  // [num_slots, 1] i32 -1 - slot: the id that stands for the slot's carry

  PackedStep packed_;
  std::vector<GuessAsk*> guessed_;
};

}  // namespace rudder::exec
