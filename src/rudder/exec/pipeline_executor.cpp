#include "rudder/exec/pipeline_executor.h"

#include <utility>

#include "rudder/base/check.h"

namespace rudder::exec {

PipelineExecutor::PipelineExecutor(std::vector<std::unique_ptr<step::Executor>> stages)
    : stages_(std::move(stages)) {
  RUDDER_CHECK(stages_.size() > 1);
  const step::Capacity first = stages_.front()->capacity();
  for (const auto& stage : stages_) {
    const step::Capacity capacity = stage->capacity();
    RUDDER_CHECK(capacity.num_blocks == first.num_blocks &&
                 capacity.max_seq_len == first.max_seq_len &&
                 capacity.max_in_flight == first.max_in_flight &&
                 capacity.kv_groups.size() == first.kv_groups.size() &&
                 capacity.states.count == first.states.count);
  }
}

tl::unexpected<Error> PipelineExecutor::fault(Error error) {
  fault_ = std::move(error);
  return tl::unexpected<Error>(*fault_);
}

Result<step::Ticket> PipelineExecutor::launch(std::shared_ptr<const step::StepPlan> plan) {
  if (fault_) return tl::unexpected<Error>(*fault_);
  const step::Ticket ticket{plan->id};
  for (const auto& stage : stages_) {
    if (auto launched = stage->launch(plan); !launched) return fault(launched.error());
  }
  return ticket;
}

// Only where it samples does a step wait for masks.
Result<void> PipelineExecutor::supply(step::Ticket ticket, std::span<const uint32_t> masks) {
  if (fault_) return tl::unexpected<Error>(*fault_);
  if (auto supplied = stages_.back()->supply(ticket, masks); !supplied) {
    return fault(supplied.error());
  }
  return {};
}

// A stage before the last has handed the iteration over by then, or has failed and said so.
Result<step::StepResult> PipelineExecutor::collect(step::Ticket ticket) {
  if (fault_) return tl::unexpected<Error>(*fault_);
  Result<step::StepResult> last = stages_.back()->collect(ticket);
  if (!last) return fault(last.error());
  for (size_t i = 0; i + 1 < stages_.size(); ++i) {
    if (auto other = stages_[i]->collect(ticket); !other) return fault(other.error());
  }
  return last;
}

bool PipelineExecutor::ready(step::Ticket ticket) {
  if (fault_) return true;
  for (const auto& stage : stages_) {
    if (!stage->ready(ticket)) return false;
  }
  return true;
}

void PipelineExecutor::stop() {
  for (const auto& stage : stages_) stage->stop();
}

}  // namespace rudder::exec
