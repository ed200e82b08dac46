// What the scheduler is given of a request: a sequence for each of its choices. EngineCore calls it
// when the request is scheduled, on the engine thread.
#pragma once

#include <vector>

#include "rudder/engine/open_request.h"
#include "rudder/engine/request.h"
#include "rudder/sched/sequence.h"

namespace rudder::engine {

// One a choice; choice i samples with the request's seed + i. `accepted` is the request as it was
// submitted.
std::vector<sched::NewSequence> make_sequences(const OpenRequest& request, const Request& accepted);

}  // namespace rudder::engine
