#include "rudder/engine/constraint_table.h"

#include "rudder/base/contain.h"
#include "rudder/base/mutants.h"

namespace rudder::engine {

void ConstraintTable::begin(const OpenRequest& request, std::vector<ChoiceConstraint> constraints) {
  for (size_t i = 0; i < constraints.size(); ++i) {
    choices_.try_emplace(request.sequences[i], std::move(constraints[i]));
  }
}

std::span<const uint32_t> ConstraintTable::masks(std::span<const sched::SequenceId> rows) {
  rows_.assign(rows.size(), {});
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t of = RUDDER_MUTANT(kMaskOfNeighbour) ? (i + 1) % rows.size() : i;
    const auto found = choices_.find(rows[of]);
    if (found != choices_.end()) rows_[i].constraint = &found->second;
  }
  const std::span<const uint32_t> masks = masks_.make(rows_);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows_[i].written) continue;
    failed_.emplace_back(rows[i], std::move(rows_[i].written.error()));
  }
  return masks;
}

void ConstraintTable::advance(std::span<const sched::SequenceOutput> outputs) {
  if (choices_.empty() || RUDDER_MUTANT(kConstraintNotAdvanced)) return;
  for (const sched::SequenceOutput& output : outputs) {
    const auto found = choices_.find(output.id);
    if (found == choices_.end() || output.end != step::RowEnd::kNone) continue;
    for (const int32_t token : output.tokens) {
      Result<void> advanced = contain([&] { return found->second.advance(token); });
      if (advanced) continue;
      failed_.emplace_back(output.id, std::move(advanced.error()));
      choices_.erase(found);
      break;
    }
  }
}

}  // namespace rudder::engine
