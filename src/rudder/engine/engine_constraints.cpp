// The part of EngineCore that keeps choices within their constraints: a step is launched with its
// constrained rows, and their masks follow while the device runs its forward pass.
#include <utility>

#include "rudder/base/mutants.h"
#include "rudder/engine/engine_core.h"

namespace rudder::engine {

void EngineCore::begin_constraints(const Open& request, const RequestParams& params) {
  if (params.constraints.empty()) return;
  for (const sched::SequenceId sequence : request.sequences) {
    constraints_.try_emplace(sequence, params);
  }
}

// Every step before the one launched last is committed, so that a row whose choice is open has a
// constraint that knows all of its tokens. The others are late: nobody will see their tokens.
void EngineCore::supply_masks() {
  const std::vector<sched::SequenceId>& sequences = scheduler_.constrained();
  awaits_masks_ = false;
  if (RUDDER_MUTANT(kMasksForgotten)) return;
  const int64_t start_us = clock_->now_us();
  mask_rows_.assign(sequences.size(), {});
  for (size_t i = 0; i < sequences.size(); ++i) {
    const size_t of = RUDDER_MUTANT(kMaskOfNeighbour) ? (i + 1) % sequences.size() : i;
    const auto found = constraints_.find(sequences[of]);
    if (found != constraints_.end()) mask_rows_[i].constraint = &found->second;
  }
  const std::span<const uint32_t> masks = mask_maker_.make(mask_rows_);
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (mask_rows_[i].written) continue;
    failed_.emplace_back(sequences[i], std::move(mask_rows_[i].written.error()));
  }
  live_.constrained_steps += 1;
  live_.constrained_rows += sequences.size();
  live_.mask_time.observe(static_cast<double>(clock_->now_us() - start_us) * 1e-6);
  const Result<void> supplied = executor_->supply(in_flight_.back().ticket, masks);
  if (!supplied) die(supplied.error());
}

// By the tokens of a committed iteration. One that ends its choice is no part of what is matched.
void EngineCore::advance_constraints() {
  if (constraints_.empty() || RUDDER_MUTANT(kConstraintNotAdvanced)) return;
  for (const sched::SequenceOutput& output : outputs_) {
    const auto found = constraints_.find(output.id);
    if (found == constraints_.end() || output.end != step::RowEnd::kNone) continue;
    for (const int32_t token : output.tokens) {
      Result<void> advanced = found->second.advance(token);
      if (advanced) continue;
      failed_.emplace_back(output.id, std::move(advanced.error()));
      constraints_.erase(found);
      break;
    }
  }
}

// Behind the events of the tokens that they have got. What is in flight for them is dropped.
void EngineCore::end_failed() {
  for (auto& [sequence, error] : failed_) {
    const auto target = targets_.find(sequence);
    if (target == targets_.end() || RUDDER_MUTANT(kFailedConstraintGoesOn)) continue;
    const auto [request, choice] = target->second;
    scheduler_.finish(sequence);
    Event event;
    event.error = std::move(error);
    finish_choice(*request, choice, std::move(event), FinishReason::kError, clock_->now_us());
    forget_if_finished(*request);
  }
  failed_.clear();
}

}  // namespace rudder::engine
