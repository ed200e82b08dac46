// What Scheduler::check_integrity() is made of: what one sequence must hold, by
// docs/contracts/kv.md. Called for every sequence, by tests and the
// simulator. Internal to the room; engine thread.
#pragma once

#include <span>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/sched/blocks.h"
#include "rudder/sched/state.h"
#include "rudder/sched/step_record.h"
#include "rudder/step/kv_groups.h"

namespace rudder::sched {

Result<void> broken(const Sequence& sequence, std::string_view what);

// That a sequence of the scheduler holds what steps in flight and its own tokens ask for.
Result<void> check_sequence(const Sequence& sequence, std::span<const StepRecord> in_flight,
                            const step::KvGroups& groups, const Blocks& blocks);

// That what sequences count of steps in flight is what these have.
Result<void> check_counts(std::span<const StepRecord> in_flight,
                          std::span<const Sequence* const> sequences);

}  // namespace rudder::sched
