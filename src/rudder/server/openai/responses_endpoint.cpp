// POST /v1/responses, and what it remembers: GET and DELETE /v1/responses/{id}, POST
// /v1/responses/{id}/cancel of one that runs in the background.
#include <fmt/format.h>

#include "rudder/base/json.h"
#include "rudder/base/utf8.h"
#include "rudder/server/generation/generation_endpoint.h"
#include "rudder/server/handlers.h"
#include "rudder/server/openai/responses_request.h"

namespace rudder::server {
namespace {

HttpResponse not_found(std::string_view id) {
  ApiError error = http_error(
      404, fmt::format("there is no response '{}' here, or no longer", to_valid_utf8(id)));
  error.param = "response_id";
  return error_response(error);
}

}  // namespace

void handle_responses(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  run_generation(context, exchange,
                 [&context](const std::string& body, const GenerationScope& scope) {
                   return parse_responses(body, scope, context.responses);
                 });
}

void handle_response(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const auto stored = context.responses->find(exchange->path_tail, exchange->tenant);
  if (!stored) return exchange->respond(not_found(exchange->path_tail));
  HttpResponse response;
  response.shared_body = stored->document;
  exchange->respond(std::move(response));
}

void handle_response_delete(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const std::string& id = exchange->path_tail;
  context.responses->cancel(id, exchange->tenant);
  if (!context.responses->remove(id, exchange->tenant)) return exchange->respond(not_found(id));
  HttpResponse response;
  response.body = "{\"id\":";
  append_json_string(response.body, id);
  response.body += ",\"object\":\"response.deleted\",\"deleted\":true}";
  exchange->respond(std::move(response));
}

void handle_response_cancel(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const std::string& id = exchange->path_tail;
  if (!context.responses->find(id, exchange->tenant)) return exchange->respond(not_found(id));
  if (SharedText cancelled = context.responses->cancel(id, exchange->tenant)) {
    HttpResponse response;
    response.shared_body = std::move(cancelled);
    return exchange->respond(std::move(response));
  }
  ApiError error = http_error(400, "only a response that runs in the background can be cancelled");
  error.param = "response_id";
  error.code = "invalid_value";
  exchange->respond(error_response(error));
}

}  // namespace rudder::server
