// GroupExecutor: an Executor over the ranks of a group (ops/comm.h). Every rank runs the same
// plans with the same masks, and so samples the same tokens; results are those of rank 0. Failures:
// docs/contracts/exec.md, "Ranks". The engine thread calls it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/step/executor.h"

namespace rudder::wrap {

class GroupExecutor final : public step::Executor {
 public:
  // Executors of equal capacity, in the order of their ranks. One that is alone is returned itself.
  static std::unique_ptr<step::Executor> of(std::vector<std::unique_ptr<step::Executor>> ranks);

  step::Capacity capacity() const override { return ranks_.front()->capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override;
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override;
  Result<step::StepResult> collect(step::Ticket ticket) override;
  bool ready(step::Ticket ticket) override;
  void stop() override;
  ~GroupExecutor() override { stop(); }

 private:
  explicit GroupExecutor(std::vector<std::unique_ptr<step::Executor>> ranks)
      : ranks_(std::move(ranks)) {}

  // Keeps the fault: nothing is asked of the ranks after it.
  tl::unexpected<Error> fault(Error error);

  const std::vector<std::unique_ptr<step::Executor>> ranks_;
  std::optional<Error> fault_;
};

}  // namespace rudder::wrap
