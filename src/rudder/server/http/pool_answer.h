// For endpoints whose answer is computed from the request's body on the tokenise pool and sent as a
// whole.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rudder/server/context.h"
#include "rudder/server/http/exchange.h"
#include "rudder/server/http/http_message.h"

namespace rudder::server {

// An answer that is too large for its body (amplification.h) becomes a 400, which names `grows_by`:
// the field that makes answers large, where it is one. `work` runs on the pool; what it throws (out
// of memory) is this request's misfortune alone.
void answer_on_pool(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                    std::function<HttpResponse(const std::string& body)> work,
                    std::string_view grows_by = {});

}  // namespace rudder::server
