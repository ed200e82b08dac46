// MedusaProposer: guesses with Medusa heads (model/medusa.h) from the rows of the step that has
// just been sampled. A head reads the row behind the model's final norm that the sequence's last
// token was sampled from, and nothing of it outlives the step: it runs no tokens
// (DraftCaps::guesses_from_rows), and preemption, cached prefixes and chunks do not concern it. All
// heads run behind one another without the host. A guess is a chain of each head's likeliest token,
// which stays in the slots (row_passes.h), or a tree: of each head those of the ranks that the tree
// names, behind a step whose tokens the host has. The executor's worker thread uses it.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/row_passes.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/medusa.h"
#include "rudder/ops/ops.h"
#include "rudder/step/draft_tree.h"
#include "rudder/step/executor.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::exec {

class MedusaProposer final : public DraftSource {
 public:
  // Heads that fit their model (fit_medusa), with the weights of the rank; `tree` is what they
  // guess, empty: chains.
  MedusaProposer(const model::MedusaSpec& spec, model::MedusaWeights weights,
                 step::RankedTree tree = {});
  // From limits.draft_model, for the whole model `target`.
  static Result<std::unique_ptr<DraftSource>> read(const StepLimits& limits,
                                                   const model::ModelSpec& target);

  void describe(step::DraftCaps& caps) const override;
  Result<void> check_device(ops::Ops& ops, const model::Stage& stage) const override;
  RowsRead rows_read() const override { return {.sampled = true}; }
  Result<int64_t> weight_bytes(ops::Ops& ops) const override;
  int64_t device_bytes(const step::Capacity& capacity, tensor::DType act,
                       ops::Rank rank) const override;
  Result<void> shard(ops::Rank rank) override;
  Result<void> load(ops::Ops& ops) override;

  Result<void> bind(const DraftSite& site) override;
  void follow(const DeviceStep& step) override { keep_tokens(*ops_, step); }
  Result<Setup> enqueue(const DeviceStep& step, std::span<GuessAsk> asks) override;
  Result<Setup> run(std::span<GuessAsk> asks) override;

 private:
  void read_guess(size_t index, GuessAsk& ask) const;
  int32_t num_fetched(const step::Capacity& capacity) const;
  int32_t head_of(int32_t draft) const;

  const model::MedusaSpec spec_;
  model::MedusaWeights weights_;
  const step::RankedTree tree_;
  int32_t num_top_ = -1;  // of the likeliest tokens of each head that a tree takes
  const weights::Checkpoint* checkpoint_ = nullptr;  // until they are loaded

  // Once bound.
  ops::Ops* ops_ = nullptr;
  ops::View final_rows_;
  std::unique_ptr<model::MedusaHeads> heads_;  // points into this
  std::unique_ptr<RowPasses> passes_;
  std::unique_ptr<ops::Event> done_;
};

}  // namespace rudder::exec
