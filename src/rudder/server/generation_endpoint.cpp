// POST /v1/chat/completions and /v1/completions: from the connection to the pool that parses and
// tokenises, back to the connection, and into the engine.
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "rudder/base/log.h"
#include "rudder/server/generation.h"
#include "rudder/server/generation_endpoint.h"
#include "rudder/server/handlers.h"
#include "rudder/server/request_id.h"

namespace rudder::server {
namespace {

// No tokenizer in use spells more bytes a token on average over a whole body: a floor of what the
// prompt will cost, known before anything is spent on it.
constexpr int64_t kMaxBytesPerToken = 16;

using Parsed = tl::expected<GenerationRequest, ApiError>;

Parsed parse(const ServerContext& context, const GenerationParser& parser, const std::string& body,
             int tenant, const std::string& request_id, bool is_named) {
  try {
    GenerationScope scope = generation_scope(context, tenant, request_id);
    scope.is_named = is_named;
    return parser(body, scope);
  } catch (const std::exception& exception) {  // out of memory: this request's misfortune alone
    log_error("request {}: {}", request_id, exception.what());
    return tl::unexpected(to_api_error(Error{ErrorCode::kInternal, "", ""}));
  }
}

void start_generation(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                      Parsed parsed, std::shared_ptr<ActivityMark> mark) {
  if (exchange->abandoned()) return;
  if (context.stopping) {
    return exchange->respond(
        error_response(Error{ErrorCode::kUnavailable, "the server is shutting down", ""}));
  }
  if (!parsed) return exchange->respond(error_response(parsed.error()));
  if (context.settings.enable_log_requests) log_request_start(exchange->request_id, *parsed);
  std::make_shared<Generation>(context, exchange, std::move(*parsed), std::move(mark))->start();
}

GenerationParser parser_of(Api api) {
  return [api](const std::string& body, const GenerationScope& scope) {
    return parse_generation(api, body, scope);
  };
}

}  // namespace

GenerationScope generation_scope(const ServerContext& context, int tenant, std::string request_id) {
  return {.model = context.model(),
          .limits = context.engine().limits(),
          .keys = context.keys,
          .tenant = tenant,
          .max_prompts = context.settings.max_prompts,
          .request_id = std::move(request_id),
          .taps = {.steering = context.parts.steering, .captures = context.engine().captures()}};
}

void run_generation(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                    GenerationParser parser) {
  if (context.draining) {
    HttpResponse response = error_response(
        Error{ErrorCode::kUnavailable, "the server is draining and takes no new requests", ""});
    response.close = true;
    return exchange->respond(std::move(response));
  }
  const auto least_tokens = static_cast<int64_t>(exchange->body.text.size()) / kMaxBytesPerToken;
  if (const Result<void> room = context.engine().would_accept(least_tokens); !room) {
    return exchange->respond(error_response(room.error()));
  }
  auto mark = std::make_shared<ActivityMark>(context.activity);
  auto body = std::make_shared<HeldBody>(std::move(exchange->body));
  const bool is_named = is_request_id(exchange->request.field("x-request-id"));
  const bool queued =
      context.pool->run([&context, exchange, parser = std::move(parser), body, mark, is_named,
                         tenant = exchange->tenant, id = exchange->request_id] {
        auto parsed =
            std::make_shared<Parsed>(parse(context, parser, body->text, tenant, id, is_named));
        *body = HeldBody();
        exchange->io->post([&context, exchange, parsed, mark] {
          start_generation(context, exchange, std::move(*parsed), mark);
        });
      });
  if (!queued) {
    exchange->respond(error_response(
        Error{ErrorCode::kOverloaded, "too many requests wait to be tokenised", ""}));
  }
}

void handle_chat_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  run_generation(context, exchange, parser_of(Api::kChat));
}

void handle_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  run_generation(context, exchange, parser_of(Api::kCompletions));
}

}  // namespace rudder::server
