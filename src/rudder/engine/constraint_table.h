// ConstraintTable: the constraints of open choices by sequence, the masks of a step's constrained
// sequences, and the choices whose constraints have failed and that are still to be ended. Owned by
// EngineCore; the engine thread's alone.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/open_request.h"
#include "rudder/engine/token_masks.h"
#include "rudder/sched/sequence.h"

namespace rudder::engine {

class ConstraintTable {
 public:
  using Failed = std::pair<sched::SequenceId, Error>;

  // `num_threads` write the masks of a step; 0: by the cores of the machine.
  ConstraintTable(int32_t vocab_size, int32_t num_threads) : masks_(vocab_size, num_threads) {}

  // `constraints`: of each choice of the request, or none at all.
  void begin(const OpenRequest& request, std::vector<ChoiceConstraint> constraints);
  void forget(sched::SequenceId sequence) { choices_.erase(sequence); }

  // The masks of a step with these constrained sequences, one after another, until the next call.
  // Every step before it is committed and advanced by, so that a sequence whose choice is open has
  // a constraint that knows all of its tokens. The others are late: nobody will see their tokens.
  std::span<const uint32_t> masks(std::span<const sched::ConstrainedSequence> sequences);
  // Goes on by the tokens of a committed iteration. A token that ends its choice is not matched.
  void advance(std::span<const sched::SequenceOutput> outputs);

  // Of a sequence that has ended kNumerical in the last outputs: because a mask behind its drafts
  // had no token, or else because its logits were no numbers.
  Error numerical_error(sched::SequenceId sequence) const;

  // Choices that failed and were not taken out of here; some of them may have ended meanwhile.
  std::vector<Failed>& failed() { return failed_; }
  // Whose masks behind drafts take too long, of the last masks().
  std::span<const sched::SequenceId> dear() const { return dear_; }

 private:
  std::unordered_map<sched::SequenceId, ChoiceConstraint> choices_;
  MaskMaker masks_;
  std::vector<MaskMaker::Job> jobs_;  // scratch
  std::vector<Failed> failed_;
  std::vector<sched::SequenceId> dear_;
  std::vector<Failed> empty_masks_;  // behind drafts, of the last outputs
};

}  // namespace rudder::engine
