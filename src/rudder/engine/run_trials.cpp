#include "rudder/engine/run_trials.h"

#include <deque>
#include <memory>
#include <utility>

namespace rudder::engine {

Result<void> run_trials(sched::Scheduler& scheduler, step::Executor& executor, int32_t depth) {
  std::deque<step::Ticket> in_flight;
  while (true) {
    std::shared_ptr<const step::StepPlan> plan = scheduler.plan_trial();
    if (plan == nullptr && in_flight.empty()) return {};
    const bool is_last = plan == nullptr;
    if (!is_last) {
      RUDDER_TRY(const step::Ticket ticket, executor.launch(std::move(plan)));
      in_flight.push_back(ticket);
      if (std::ssize(in_flight) < depth) continue;
    }
    RUDDER_TRY(const step::StepResult result, executor.collect(in_flight.front()));
    in_flight.pop_front();
    scheduler.commit_trial(result);
  }
}

}  // namespace rudder::engine
