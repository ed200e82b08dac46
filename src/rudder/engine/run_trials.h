// Runs the scheduler's trials (sched/trials.h) on a new executor, before anything else: less than
// half a second, after which the engine knows what decodes take.
#pragma once

#include "rudder/base/result.h"
#include "rudder/sched/scheduler.h"
#include "rudder/step/executor.h"

namespace rudder::engine {

// `depth` steps are in flight, as in service. An Error is the executor's.
Result<void> run_trials(sched::Scheduler& scheduler, step::Executor& executor, int32_t depth);

}  // namespace rudder::engine
