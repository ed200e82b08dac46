// GET /load: how many generation requests are in progress, as vLLM words it. POST
// /reset_prefix_cache: forgets every cached prefix that nobody uses.
#include <fmt/format.h>

#include "rudder/server/context.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/exchange.h"

namespace rudder::server {

void handle_load(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.body = fmt::format("{{\"server_load\":{}}}", context.activity.count());
  exchange->respond(std::move(response));
}

void handle_reset_prefix_cache(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  context.engine().reset_prefix_cache();
  HttpResponse response;
  response.body = "{\"status\":\"ok\"}";
  exchange->respond(std::move(response));
}

}  // namespace rudder::server
