// replay(): runs the plans and masks of a recording on an executor and compares what it gives with
// what was recorded. Called by one thread, which is the executor's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rudder/base/result.h"
#include "rudder/record/recording.h"
#include "rudder/step/executor.h"

namespace rudder::record {

// The first result that came out differently.
struct Difference {
  step::StepId step = 0;
  int32_t iteration = 0;
  int32_t seq = 0;   // index into StepPlan.seqs
  std::string what;  // in words: recorded and replayed tokens, or ends
};

struct ReplayReport {
  int64_t num_steps = 0;       // launched
  int64_t num_iterations = 0;  // collected and compared
  int64_t num_tokens = 0;      // compared
  int64_t num_different = 0;   // sequences
  std::optional<Difference> first = {};
};

// The executor has run no step yet. It may have more room than the recorded one; kInvalidArgument,
// its `where` the name of the capacity, where it has less or is of another kind. Compared are each
// result's tokens, its end and whether it was masked. kCorruptFile: the calls of the recording are
// in an order that no engine makes, or an Error of the reader; what ran before has been added to
// `report`. A recording that ends with steps in flight is one of a process that ended so.
Result<void> replay(RecordingReader& recording, step::Executor& executor, ReplayReport* report);

}  // namespace rudder::record
