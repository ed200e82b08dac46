// FakeExecutor, what stands in for the objects of sequences: their copies, at once or some steps
// later, and which tokens they are of.
#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/philox.h"
#include "rudder/testing/fake_executor.h"

namespace rudder::testing {

void FakeExecutor::begin_slow_copies(const step::StepPlan& plan) {
  for (const step::ObjectCopy& copy : plan.copies_before) {
    const uint32_t drawn = philox4x32(options_.seed, static_cast<uint64_t>(++copies_begun_))[1];
    const auto later =
        static_cast<step::StepId>(drawn % static_cast<uint32_t>(options_.copy_steps + 1));
    const step::StepId before = slow_copies_.empty() ? 0 : slow_copies_.back().due;
    slow_copies_.push_back(
        {.copy = copy, .begun = plan.id, .due = std::max(before, plan.id + later)});
    for (const int64_t state : {copy.from.index, copy.to.index}) {
      state_uses_[static_cast<size_t>(state)].last_copy = copies_begun_;
    }
    state_uses_[static_cast<size_t>(copy.to.index)].last_copy_to = copies_begun_;
  }
}

// A step of nothing waits for one of those before it.
void FakeExecutor::end_slow_copies(const step::StepPlan& plan) {
  bool waits = plan.seqs.empty() && plan.copies_before.empty();
  while (!slow_copies_.empty() && slow_copies_.front().begun <= plan.id &&
         (waits || slow_copies_.front().due <= plan.id)) {
    copy_states({&slow_copies_.front().copy, 1});
    slow_copies_.pop_front();
    ++copies_done_;
    waits = false;
  }
}

void FakeExecutor::copy_states(std::span<const step::ObjectCopy> copies) {
  for (const step::ObjectCopy& copy : copies) {
    states_[static_cast<size_t>(copy.to.index)] = states_[static_cast<size_t>(copy.from.index)];
  }
}

// Its object stands before the sequence's part of the step, or before the part with drafts that
// came last. Behind a part with drafts it stays where it was: which of them are right is not known.
void FakeExecutor::advance_state(const step::StepPlan& plan, const step::SeqWork& work, Slot& slot,
                                 uint64_t context_hash) {
  if (slot.state == step::kNoState) return;
  State& state = states_[static_cast<size_t>(slot.state)];
  const State before = {.len = work.kv_len, .hash = context_hash};
  if (slot.replayed == state) state = before;
  if (state != before) {
    violation(fmt::format("step {}: the state of slot {} is of {} tokens{}, not of these {}",
                          plan.id, work.slot.value, state.len, state.poisoned ? " and a NaN" : "",
                          work.kv_len));
  }
  slot.replayed = work.num_draft > 0 ? std::optional(before) : std::nullopt;
  if (work.num_draft > 0) return;
  const int32_t end = work.kv_len + work.q_len;
  state = {.len = end, .hash = cell(slot, 0, end - 1).prefix_hash};
}

}  // namespace rudder::testing
