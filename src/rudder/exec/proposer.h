// Proposer: what guesses behind a step in the executor (DraftCaps::guesses): a smaller model or a
// draft head with KV of its own (model_proposer.h), Medusa heads (medusa_proposer.h), or an
// assistant that reads the model's KV (assistant_proposer.h). What is looked up needs none. The
// executor's worker thread uses it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/slot_table.h"
#include "rudder/model/stage.h"
#include "rudder/ops/ops.h"
#include "rudder/ops/sample_row.h"
#include "rudder/step/plan.h"

namespace rudder::exec {

// What one sequence of a step needs.
struct GuessAsk {
  int32_t seq = 0;  // of the step
  step::SlotId id = {};
  const Slot* slot = nullptr;
  int32_t begin = 0;            // position of the first token
  std::vector<int32_t> tokens;  // to run; with num_guess, the last is the one just sampled
  int32_t num_guess = 0;
  int32_t logits_row = -1;          // of the step: the one that the last token was sampled from
  std::vector<int32_t> guess = {};  // out

  int32_t end() const { return begin + static_cast<int32_t>(tokens.size()); }
};

// What of the model's steps a proposer that guesses from rows reads, on the device.
struct StepRows {
  ops::View final_rows = {};   // [max_logits_rows, hidden] act: Decoder::make
  ops::View block_table = {};  // SlotState.block_table
  int32_t group_rows = 0;      // of it: AttentionBatch.group_rows
  int32_t num_groups = 1;
};

// What a run of a proposer made that later runs find made.
struct Setup {
  bool captured = false;  // graphs
  // Its time has something that is paid once: a graph was captured, or a pass ran op by op, and
  // with it kernels were loaded, that runs from a graph when it comes again.
  bool is_paid_once = false;
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  // Waits for the device. An Error is the device's.
  virtual Result<Setup> run(std::span<GuessAsk> asks) = 0;
};

// Whether an executor of this capacity can look its guesses up (DraftCaps::look_up), as a part of
// its steps and with no Proposer. Not on a stage that others are behind or before: the first one
// would have to know what the last one guesses.
bool may_look_up(const step::Capacity& capacity, ops::Ops& ops, const model::Stage& stage);

// What the sequences of a plan need, in their order, but for what the step samples.
void list_asks(const step::StepPlan& plan, const SlotTable& slots, std::vector<GuessAsk>& asks);
// Appends what was sampled; row i is of sequence sampled_seq[i], which ascend. A sequence that has
// ended is neither run nor guessed for, and none is guessed for past its last draft.
void add_sampled(std::span<const int32_t> sampled_seq, const ops::SampledToken* sampled,
                 std::span<GuessAsk> asks);

}  // namespace rudder::exec
