// Reads the captured rows that the engine itself wants of a step: those of `stop_when`. Called on
// the engine thread between the commit of a step and the delivery of its outputs, so that what a
// row says is known before the token that was sampled behind it is handed out.
#pragma once

#include <vector>

#include "rudder/engine/request_table.h"
#include "rudder/sched/sequence.h"
#include "rudder/step/result.h"

namespace rudder::engine {

// `captured`: the rows of `result` that count. A choice whose row was lost, because the executor
// had no buffer for it, is marked. `row` is scratch.
void read_watched_rows(const step::StepResult& result,
                       const std::vector<sched::CapturedSequence>& captured,
                       const RequestTable& requests, std::vector<float>& row);

}  // namespace rudder::engine
