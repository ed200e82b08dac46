// AssistantProposer: guesses with an assistant (model/assistant.h) from the row of the step that
// has just been sampled and from the model's own KV, which it reads through the block tables of the
// model's steps. It keeps nothing of a sequence and runs no tokens (DraftCaps::guesses_from_rows),
// so preemption, cached prefixes, chunks and rejected drafts do not concern it, and it takes no
// blocks. All tokens of a sequence but the last are in KV when it guesses: each pass sees these,
// whatever earlier drafts left behind them. The executor's worker thread uses it.
//
// Guesses are passes of single tokens (row_passes.h): a pass takes the token that the one before it
// has sampled. They stay in the slots of the model, and nothing waits for the host. Passes that
// come again are replayed from graphs (graphs.h).
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/graphs.h"
#include "rudder/exec/row_passes.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/assistant.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::exec {

class AssistantProposer final : public DraftSource {
 public:
  // An assistant that fits its model (fit_assistant); spec and weights are the rank's part.
  AssistantProposer(model::AssistantSpec spec, model::AssistantWeights weights)
      : spec_(std::move(spec)), weights_(std::move(weights)) {}
  // From limits.draft_model, for the whole model `target`.
  static Result<std::unique_ptr<DraftSource>> read(const StepLimits& limits,
                                                   const model::ModelSpec& target);

  void describe(step::DraftCaps& caps) const override {
    caps.guesses_from_rows = true;
    caps.keeps_guesses = true;
  }
  Result<void> check_device(ops::Ops& ops, const model::Stage& stage) const override;
  Result<void> check_model(const model::ModelSpec& model, const step::KvGroups& groups,
                           int32_t max_seq_len) const override;
  Result<void> join(std::vector<model::Stage>& stages) const override;
  RowsRead rows_read() const override { return {.sampled = true}; }
  Result<int64_t> weight_bytes(ops::Ops& ops) const override;
  int64_t device_bytes(const step::Capacity& capacity, tensor::DType act,
                       ops::Rank rank) const override;
  Result<void> shard(ops::Rank rank) override;
  Result<void> load(ops::Ops& ops) override;

  Result<void> bind(const DraftSite& site) override;
  void follow(const DeviceStep& step) override { keep_tokens(*ops_, step); }
  Result<Setup> enqueue(const DeviceStep& step, std::span<GuessAsk> asks) override;

 private:
  Result<void> name_slots(int32_t num_slots);
  void take_sampled(const DeviceStep& pass, int64_t count);

  model::AssistantSpec spec_;
  model::AssistantWeights weights_;
  const weights::Checkpoint* checkpoint_ = nullptr;  // until it is loaded

  // Once bound.
  ops::Ops* ops_ = nullptr;
  ops::View final_rows_;                         // DraftSite.sampled_rows
  ops::View block_table_;                        // of the model's steps
  int32_t group_rows_ = 0;                       // of it: AttentionBatch.group_rows
  std::unique_ptr<model::Assistant> assistant_;  // points into this
  std::unique_ptr<RowPasses> passes_;
  std::unique_ptr<Graphs> graphs_;  // points into both; none where every pass runs op by op
  ops::View slots_;  // [num_slots, 1] i32 -1 - slot: the id that stands for the slot's carry
};

}  // namespace rudder::exec
