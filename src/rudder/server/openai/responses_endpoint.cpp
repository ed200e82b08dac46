// POST /v1/responses, /v1/responses/input_tokens and /v1/responses/compact, and what is remembered:
// GET and DELETE /v1/responses/{id}, GET /v1/responses/{id}/input_items, POST
// /v1/responses/{id}/cancel of one that runs in the background.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "rudder/base/contain.h"
#include "rudder/base/json.h"
#include "rudder/base/utf8.h"
#include "rudder/server/generation/generation_endpoint.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/ignored_fields.h"
#include "rudder/server/http/io_thread.h"
#include "rudder/server/http/pool_answer.h"
#include "rudder/server/openai/input_items.h"
#include "rudder/server/openai/responses_replay.h"
#include "rudder/server/openai/responses_request.h"
#include "rudder/server/request/field_reader.h"

namespace rudder::server {
namespace {

// Events tell a text five times, and a short item in a kilobyte.
constexpr int64_t kMaxReplay = 24;

HttpResponse not_found(std::string_view id) {
  ApiError error = http_error(
      404, fmt::format("there is no response '{}' here, or no longer", to_valid_utf8(id)));
  error.param = "response_id";
  return error_response(error);
}

// Answers with what `make` makes on the pool of a remembered text. `times` as many bytes as that
// has are the most it makes: there has to be room for them among what is held for clients.
void answer_remembered(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                       const SharedText& text, int64_t times,
                       std::function<Result<HttpResponse>()> make) {
  const auto& limits = exchange->limits();
  const int64_t most = std::max<int64_t>(times * std::ssize(*text) - Exchange::kUncounted, 0);
  auto charge = std::make_shared<ByteCharge>(limits.held);
  const bool has_room = charge->set(most, limits.total) &&
                        context.pool->run(text->size(), [exchange, charge, make = std::move(make)] {
                          auto response = std::make_shared<HttpResponse>();
                          const Result<void> done = contain([&] {
                            Result<HttpResponse> made = make();
                            *response = made ? *std::move(made) : error_response(made.error());
                          });
                          if (!done) *response = error_response(done.error());
                          exchange->io->post([exchange, charge, response] {
                            response->shared_body =
                                share_text(std::move(response->body), exchange->limits().held);
                            exchange->respond(std::move(*response));
                            charge->release();
                          });
                        });
  if (has_room) return;
  exchange->respond(
      error_response(Error{ErrorCode::kOverloaded, "too much output is held for clients", ""}));
}

HttpResponse json_answer(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

// The response again as a stream, from behind the event `starting_after`.
Result<HttpResponse> replayed(const StoredResponse& stored, std::string_view query) {
  if (stored.cancel) {
    return field_error(ErrorCode::kUnsupported, "of a response that still runs is not supported",
                       "stream");
  }
  int64_t after = -1;
  if (const std::string_view given = query_parameter(query, "starting_after"); !given.empty()) {
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), after);
    if (error != std::errc() || end != given.data() + given.size()) {
      return invalid_field("must be a number", "starting_after");
    }
  }
  HttpResponse response;
  response.content_type = "text/event-stream";
  RUDDER_TRY(response.body, replayed_events(*stored.document, after));
  return response;
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
  const std::string& query = exchange->request.query;
  if (query_parameter(query, "stream") == "true") {
    return answer_remembered(context, exchange, stored->document, kMaxReplay,
                             [stored = *stored, query] { return replayed(stored, query); });
  }
  HttpResponse response;
  response.shared_body = stored->document;
  exchange->respond(std::move(response));
}

void handle_response_input_items(ServerContext& context,
                                 const std::shared_ptr<Exchange>& exchange) {
  const auto stored = context.responses->find(exchange->path_tail, exchange->tenant);
  if (!stored) return exchange->respond(not_found(exchange->path_tail));
  constexpr int64_t kMaxPage = 2;  // times all items
  answer_remembered(
      context, exchange, stored->input, kMaxPage,
      [input = stored->input, query = exchange->request.query]() -> Result<HttpResponse> {
        RUDDER_TRY(std::string page, page_of_items(*input, query));
        return json_answer(std::move(page));
      });
}

void handle_response_tokens(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_on_pool(
      context, exchange,
      [&context, tenant = exchange->tenant, id = exchange->request_id](const std::string& body) {
        const GenerationScope scope = generation_scope(context, tenant, id);
        const auto count = count_response_tokens(body, scope, context.responses);
        if (!count) return error_response(count.error());
        HttpResponse response = json_answer(fmt::format(
            R"({{"object":"response.input_tokens","input_tokens":{}}})", count->tokens));
        name_ignored_fields(count->ignored_fields, &response);
        return response;
      });
}

void handle_response_compact(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  run_generation(context, exchange,
                 [&context](const std::string& body, const GenerationScope& scope) {
                   return parse_compaction(body, scope, context.responses);
                 });
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
  const auto ignored = unread_fields(exchange->body.text);
  if (!ignored) return exchange->respond(error_response(ignored.error()));
  if (SharedText cancelled = context.responses->cancel(id, exchange->tenant)) {
    HttpResponse response;
    name_ignored_fields(*ignored, &response);
    response.shared_body = std::move(cancelled);
    return exchange->respond(std::move(response));
  }
  ApiError error = http_error(400, "only a response that runs in the background can be cancelled");
  error.param = "response_id";
  error.code = "invalid_value";
  exchange->respond(error_response(error));
}

}  // namespace rudder::server
