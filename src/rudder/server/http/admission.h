// What is decided from a request's header alone, before its body is read: the route, access, the
// kind of body. Refusals are whole answers.
#pragma once

#include <optional>

#include "rudder/server/context.h"
#include "rudder/server/http/exchange.h"

namespace rudder::server {

// Fills the exchange's route, tail and tenant. An answer means that the handler must not run.
std::optional<HttpResponse> judge_header(const ServerContext& context, Exchange& exchange);

}  // namespace rudder::server
