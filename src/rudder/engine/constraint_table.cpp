#include "rudder/engine/constraint_table.h"

#include <algorithm>

#include "rudder/base/contain.h"
#include "rudder/base/mutants.h"

namespace rudder::engine {

void ConstraintTable::begin(const OpenRequest& request, std::vector<ChoiceConstraint> constraints) {
  for (size_t i = 0; i < constraints.size(); ++i) {
    choices_.try_emplace(request.sequences[i], std::move(constraints[i]));
  }
}

std::span<const uint32_t> ConstraintTable::masks(
    std::span<const sched::ConstrainedSequence> sequences) {
  jobs_.assign(sequences.size(), {});
  for (size_t i = 0; i < sequences.size(); ++i) {
    const size_t of = RUDDER_MUTANT(kMaskOfNeighbour) ? (i + 1) % sequences.size() : i;
    const auto found = choices_.find(sequences[of].id);
    if (found != choices_.end()) jobs_[i].constraint = &found->second;
    jobs_[i].drafts = {sequences[i].draft, sequences[i].tree};
  }
  const std::span<const uint32_t> masks = masks_.make(jobs_);
  dear_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    MaskMaker::Job& job = jobs_[i];
    if (job.constraint != nullptr && job.constraint->is_dear()) dear_.push_back(sequences[i].id);
    if (!job.written) failed_.emplace_back(sequences[i].id, std::move(job.written.error()));
  }
  return masks;
}

void ConstraintTable::advance(std::span<const sched::SequenceOutput> outputs) {
  empty_masks_.clear();
  if (choices_.empty() || RUDDER_MUTANT(kConstraintNotAdvanced)) return;
  for (const sched::SequenceOutput& output : outputs) {
    const auto found = choices_.find(output.id);
    if (found == choices_.end()) continue;
    if (output.end == step::SeqEnd::kNumerical) {
      const Error* error = found->second.failed_behind(output.tokens);
      if (error != nullptr) empty_masks_.emplace_back(output.id, *error);
    }
    if (output.end != step::SeqEnd::kNone) continue;
    for (const int32_t token : output.tokens) {
      Result<void> advanced = contain([&] { return found->second.advance(token); });
      if (advanced) continue;
      failed_.emplace_back(output.id, std::move(advanced.error()));
      choices_.erase(found);
      break;
    }
  }
}

Error ConstraintTable::numerical_error(sched::SequenceId sequence) const {
  const auto found = std::ranges::find(empty_masks_, sequence, &Failed::first);
  if (found != empty_masks_.end()) return found->second;
  return {ErrorCode::kNumerical, "the model gave NaN or Inf for this request", ""};
}

}  // namespace rudder::engine
