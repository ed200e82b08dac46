// PipelineExecutor: step::Executor over the stages of a pipeline (model/stage.h). Every stage runs
// the same plans in the same order, each as soon as the stage before hands it over; so steps in
// flight are on different stages at a time. The last stage's results are the result. A stage that
// fails is the failure of all: docs/contracts/exec.md, "Stages". The engine thread calls it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

class PipelineExecutor final : public step::Executor {
 public:
  // Executors in the order of their stages, more than one, of equal capacity but for the layers of
  // a KV block.
  explicit PipelineExecutor(std::vector<std::unique_ptr<step::Executor>> stages);

  step::Capacity capacity() const override { return stages_.back()->capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override;
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override;
  Result<step::StepResult> collect(step::Ticket ticket) override;
  bool ready(step::Ticket ticket) override;
  void stop() override;
  ~PipelineExecutor() override { stop(); }

 private:
  // Keeps the fault: nothing is asked of the stages after it.
  tl::unexpected<Error> fault(Error error);

  const std::vector<std::unique_ptr<step::Executor>> stages_;
  std::optional<Error> fault_;
};

}  // namespace rudder::exec
