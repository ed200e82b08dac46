// SpareRecords: records of steps that are over, to be used again, so that a step in the steady
// state takes no memory of its own. The scheduler owns it; one thread.
#pragma once

#include <cstddef>
#include <vector>

#include "rudder/sched/step_record.h"
#include "rudder/step/ids.h"

namespace rudder::sched {

class SpareRecords {
 public:
  // An empty record with an empty plan.
  StepRecord take();
  // Keeps the memory of the record's lists. Its plan is kept where nobody else holds it; executors
  // let go of it before they give its last result (step::Executor::launch).
  void give_back(StepRecord record);
  // Empty tables, one a KV group, for a sequence that gets blocks.
  std::vector<step::GroupTable> take_tables(size_t num_groups);
  // No spans, for a sequence that captures.
  std::vector<step::CaptureSpan> take_spans();

 private:
  std::vector<StepRecord> records_;
  std::vector<std::vector<step::GroupTable>> tables_;  // of sequences of those plans
  std::vector<std::vector<step::CaptureSpan>> spans_;  // likewise
};

}  // namespace rudder::sched
