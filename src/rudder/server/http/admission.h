// Decides from a request's header alone, before its body is read: the route, access, and the kind
// of body. A refusal is a whole answer.
#pragma once

#include <optional>

#include "rudder/server/context.h"
#include "rudder/server/http/exchange.h"

namespace rudder::server {

// Fills the exchange's route, tail and tenant. An answer means that the handler must not run.
std::optional<HttpResponse> judge_header(const ServerContext& context, Exchange& exchange);

}  // namespace rudder::server
