// GET /v1/models and /v1/models/{id}.
#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/json.h"
#include "rudder/server/context.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/exchange.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {
namespace {

void append_model(std::string& out, const ServerModel& model, std::string_view id) {
  out += "{\"id\":";
  append_json_string(out, id);
  out += fmt::format(",\"object\":\"model\",\"created\":{},\"owned_by\":\"rudder\",\"root\":",
                     model.created);
  append_json_string(out, model.root.empty() ? id : std::string_view(model.root));
  out += fmt::format(",\"parent\":null,\"max_model_len\":{}}}", model.max_model_len);
}

}  // namespace

void handle_models(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.body = "{\"object\":\"list\",\"data\":[";
  for (const std::string& id : context.model().ids) {
    if (&id != &context.model().ids.front()) response.body.push_back(',');
    append_model(response.body, context.model(), id);
  }
  response.body += "]}";
  exchange->respond(std::move(response));
}

void handle_model(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const std::vector<std::string>& ids = context.model().ids;
  if (std::find(ids.begin(), ids.end(), exchange->path_tail) == ids.end()) {
    return exchange->respond(error_response(model_not_found(exchange->path_tail)));
  }
  HttpResponse response;
  append_model(response.body, context.model(), exchange->path_tail);
  exchange->respond(std::move(response));
}

}  // namespace rudder::server
