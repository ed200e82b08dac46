// GET /livez: the process answers. GET /readyz and /health: it also takes requests and the engine
// makes progress. Neither generates anything nor waits for a step.
#include "rudder/base/log.h"
#include "rudder/server/context.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/api_error.h"
#include "rudder/server/http/exchange.h"

namespace rudder::server {

void handle_livez(ServerContext&, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.body = "{\"status\":\"alive\"}";
  exchange->respond(std::move(response));
}

void handle_readyz(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  if (context.draining) {
    response = error_response(Error{ErrorCode::kUnavailable, "the server is draining", ""});
  } else if (const Result<void> health = context.engine().health(); !health) {
    log_warn("not ready: {}", health.error().to_string());
    response = error_response(Error{ErrorCode::kUnavailable, "the engine makes no progress", ""});
  } else {
    response.body = "{\"status\":\"ready\"}";
  }
  exchange->respond(std::move(response));
}

}  // namespace rudder::server
