// GET /livez: the process answers, and may serve again if it does not now. GET /readyz and /health:
// it also takes requests and the engine makes progress. Neither generates anything nor waits for a
// step.
#include <fmt/format.h>

#include <vector>

#include "rudder/base/log.h"
#include "rudder/server/context.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/api_error.h"
#include "rudder/server/http/exchange.h"

namespace rudder::server {

void handle_livez(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.body = "{\"status\":\"alive\"}";
  const Result<void> health = context.engine().health();
  if (context.ending.failed || (!health && health.error().code == ErrorCode::kInternal)) {
    response = error_response(
        Error{ErrorCode::kUnavailable, "the server has failed and will not serve again", ""});
  }
  exchange->respond(std::move(response));
}

namespace {

// The numbers of replicas that make no progress; what is wrong is logged.
std::vector<size_t> failed_replicas(const std::vector<engine::ReplicaState>& replicas) {
  std::vector<size_t> failed;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i].health) continue;
    log_warn("engine {} of {} is not ready: {}", i, replicas.size(),
             replicas[i].health.error().to_string());
    failed.push_back(i);
  }
  return failed;
}

}  // namespace

// Requests go to the replicas that are left: the server is ready while there is one, and says which
// are not.
void handle_readyz(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  if (context.ending.draining) {
    response = error_response(Error{ErrorCode::kUnavailable, "the server is draining", ""});
    return exchange->respond(std::move(response));
  }
  if (context.rest.state() == ModelRest::State::kAsleep) {
    const std::string message = fmt::format("the model is asleep (level {})", context.rest.level());
    return exchange->respond(error_response(Error{ErrorCode::kUnavailable, message, ""}));
  }
  const std::vector<engine::ReplicaState> replicas = context.engine().replicas();
  const std::vector<size_t> failed = failed_replicas(replicas);
  if (failed.size() == replicas.size()) {
    const Error& first = replicas.front().health.error();
    const bool is_told = first.code == ErrorCode::kUnavailable;
    const std::string message = is_told ? first.message : "the engine makes no progress";
    response = error_response(Error{ErrorCode::kUnavailable, message, ""});
  } else if (failed.empty()) {
    const bool pauses = context.rest.state() == ModelRest::State::kPaused;
    response.body = fmt::format("{{\"status\":\"{}\"}}", pauses ? "paused" : "ready");
  } else {
    response.body =
        fmt::format("{{\"status\":\"degraded\",\"engines\":{},\"failed_engines\":[{}]}}",
                    replicas.size(), fmt::join(failed, ","));
  }
  exchange->respond(std::move(response));
}

}  // namespace rudder::server
