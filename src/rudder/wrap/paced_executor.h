// PacedExecutor: an Executor that passes every call on to another and gives no result before its
// time: each iteration takes at least so long as on a slower device, or with a larger model. For
// whoever tries a client or a router without that device (--min-step-ms). Called by the engine
// thread, which waits in collect() as it waits for a device.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/step/executor.h"

namespace rudder::wrap {

class PacedExecutor final : public step::Executor {
 public:
  PacedExecutor(std::unique_ptr<step::Executor> executor, int64_t min_step_us);

  step::Capacity capacity() const override { return executor_->capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override;
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    return executor_->supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override;
  bool ready(step::Ticket ticket) override;
  bool wants_fresh_start() const override { return executor_->wants_fresh_start(); }
  std::vector<step::StoredRecord> take_stored() override { return executor_->take_stored(); }
  bool has_fresh_starts() const override { return executor_->has_fresh_starts(); }
  void start_afresh() override { executor_->start_afresh(); }
  void stop() override { executor_->stop(); }

 private:
  struct Launched {
    int64_t begin_us = 0;  // of its next iteration, if the step before it has ended by then
    int32_t num_left = 0;  // iterations
  };

  int64_t due_us() const;  // when the next iteration may end

  const std::unique_ptr<step::Executor> executor_;
  const int64_t min_step_us_;
  const SteadyClock clock_;
  std::deque<Launched> launched_;  // in order; the first has the next iteration
  int64_t last_end_us_ = 0;        // of the last iteration
};

}  // namespace rudder::wrap
