// Responses that run in the background: the connection is answered at once, and the result of the
// generation goes into the store. Runs on the connection's I/O thread.
#pragma once

#include <memory>

#include "rudder/server/http/exchange.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {

bool runs_in_background(const AnswerOptions& answer);

// Answers `exchange` with the response as it begins and puts it into the store. What comes back is
// the exchange that the generation is to answer, which no connection waits for.
std::shared_ptr<Exchange> leave_connection(const std::shared_ptr<Exchange>& exchange,
                                           const AnswerOptions& answer);

}  // namespace rudder::server
