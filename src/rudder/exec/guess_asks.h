// GuessAsk: what one sequence of a step asks of what guesses behind the step (draft_source.h). The
// executor lists the asks of a plan, and adds what the step has sampled before they are run. Its
// worker thread uses them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rudder/exec/slot_table.h"
#include "rudder/ops/sample_row.h"
#include "rudder/step/plan.h"

namespace rudder::exec {

struct GuessAsk {
  int32_t seq = 0;  // of the step
  step::SlotId id = {};
  const Slot* slot = nullptr;
  int32_t begin = 0;            // position of the first token
  std::vector<int32_t> tokens;  // to run; with num_guess, the last is the one just sampled
  int32_t num_guess = 0;
  int32_t num_draft = 0;            // that the step verifies
  int32_t logits_row = -1;          // of the step: the one that the last token was sampled from, or
                                    // the first one where the host does not know it
  std::vector<int32_t> guess = {};  // out

  int32_t end() const { return begin + static_cast<int32_t>(tokens.size()); }
};

// What the sequences of a plan ask, in their order, but for what the step samples.
void list_asks(const step::StepPlan& plan, const SlotTable& slots, std::vector<GuessAsk>& asks);
// Says in logits_row where the rows of each lie in the step's logits: the first of them.
void name_rows(std::span<const int32_t> sampled_seq, std::span<GuessAsk> asks);
// Appends what was sampled; row i is of sequence sampled_seq[i], which ascend. A sequence that has
// ended is neither run nor guessed for, and none is guessed for past its last draft.
void add_sampled(std::span<const int32_t> sampled_seq, const ops::SampledToken* sampled,
                 std::span<GuessAsk> asks);

}  // namespace rudder::exec
