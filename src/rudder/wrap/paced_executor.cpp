#include "rudder/wrap/paced_executor.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::wrap {

PacedExecutor::PacedExecutor(std::unique_ptr<step::Executor> executor, int64_t min_step_us)
    : executor_(std::move(executor)), min_step_us_(min_step_us) {}

// One after the other, as a device runs them: a step begins where the one before it has ended.
int64_t PacedExecutor::due_us() const {
  return std::max(launched_.front().begin_us, last_end_us_) + min_step_us_;
}

Result<step::Ticket> PacedExecutor::launch(std::shared_ptr<const step::StepPlan> plan) {
  launched_.push_back({.begin_us = clock_.now_us(), .num_left = plan->repeat});
  return executor_->launch(std::move(plan));
}

Result<step::StepResult> PacedExecutor::collect(step::Ticket ticket) {
  RUDDER_CHECK(!launched_.empty());
  Result<step::StepResult> result = executor_->collect(ticket);
  const int64_t wait_us = due_us() - clock_.now_us();
  if (wait_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
  last_end_us_ = clock_.now_us();
  if (--launched_.front().num_left == 0) launched_.pop_front();
  return result;
}

bool PacedExecutor::ready(step::Ticket ticket) {
  return clock_.now_us() >= due_us() && executor_->ready(ticket);
}

}  // namespace rudder::wrap
