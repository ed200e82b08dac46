// MedusaProposer: guesses with Medusa heads (model/medusa.h) from the rows of the step that has
// just been sampled. A head reads the row behind the model's final norm that the sequence's last
// token was sampled from, and nothing of it outlives the step: it runs no tokens
// (DraftCaps::guesses_from_rows), and preemption, cached prefixes and chunks do not concern it. All
// heads run behind one another without the host. A guess is a chain of each head's likeliest token,
// or a tree: of each head those of the ranks that the tree names. The executor's worker thread uses
// it.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/proposer.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/medusa.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

// Heads that fit their model (fit_medusa); the weights are the rank's part.
struct Medusa {
  model::MedusaSpec spec;
  model::MedusaWeights weights;
  step::RankedTree tree = {};  // what they guess, DraftCaps::guess_tree; empty: chains
};

class MedusaProposer final : public Proposer {
 public:
  // `ops` outlives it; `capacity` is the executor's, `final_rows` where its model's decoder leaves
  // the normed rows of a step's logits (Decoder::make).
  static Result<std::unique_ptr<MedusaProposer>> make(Medusa medusa, ops::Ops& ops,
                                                      const step::Capacity& capacity,
                                                      const ops::View& final_rows);
  // Device bytes beside the weights: its own, and those of `final_rows`.
  static int64_t device_bytes(const model::MedusaSpec& spec, const step::Capacity& capacity,
                              tensor::DType act, ops::Rank rank = {});

  Result<Setup> run(std::span<GuessAsk> asks) override;

 private:
  MedusaProposer(Medusa medusa, ops::Ops& ops, const ops::View& final_rows)
      : medusa_(std::move(medusa)), ops_(ops), final_rows_(final_rows) {
    for (const int32_t rank : medusa_.tree.ranks) num_top_ = std::max(num_top_, rank + 1);
  }

  void pack(std::span<GuessAsk> asks);
  void read_guess(size_t index, GuessAsk& ask) const;
  int32_t head_of(int32_t draft) const;

  const Medusa medusa_;
  int32_t num_top_ = -1;  // of the likeliest tokens of each head; -1: the likeliest alone
  ops::Ops& ops_;
  const ops::View final_rows_;
  std::unique_ptr<model::MedusaHeads> heads_;  // points into medusa_
  std::unique_ptr<StepBuffers> buffers_;
  std::unique_ptr<ops::Event> done_;

  PackedStep packed_;  // of rows alone: it has no tokens
  std::vector<GuessAsk*> guessed_;
};

}  // namespace rudder::exec
