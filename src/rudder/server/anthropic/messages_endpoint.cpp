// POST /v1/messages and /v1/messages/count_tokens: Anthropic's API.
#include <fmt/format.h>

#include "rudder/server/anthropic/messages_request.h"
#include "rudder/server/generation/generation_endpoint.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/ignored_fields.h"
#include "rudder/server/http/pool_answer.h"

namespace rudder::server {

void handle_messages(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  run_generation(context, exchange, [](const std::string& body, const GenerationScope& scope) {
    return parse_messages(body, scope);
  });
}

void handle_count_tokens(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_on_pool(
      context, exchange,
      [&context, tenant = exchange->tenant, id = exchange->request_id](const std::string& body) {
        const auto count = count_message_tokens(body, generation_scope(context, tenant, id));
        if (!count) return error_response(count.error());
        HttpResponse response;
        response.body = fmt::format("{{\"input_tokens\":{}}}", count->tokens);
        name_ignored_fields(count->ignored_fields, &response);
        return response;
      });
}

}  // namespace rudder::server
