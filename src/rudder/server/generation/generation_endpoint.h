// The steps that all generating endpoints share: from the connection to the pool, which parses and
// tokenises, back to the connection, and into the engine.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rudder/server/context.h"
#include "rudder/server/http/exchange.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {

using GenerationParser = std::function<tl::expected<GenerationRequest, ApiError>(
    const std::string& body, const GenerationScope& scope)>;

GenerationScope generation_scope(const ServerContext& context, int tenant, std::string request_id);

// Runs the request that `parser` makes of the exchange's body, and answers the exchange. Called on
// the connection's I/O thread; `parser` runs on the tokenise pool.
void run_generation(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                    GenerationParser parser);

}  // namespace rudder::server
