// POST /v1/chat/completions and /v1/completions: from the connection to the pool that parses and
// tokenises, back to the connection, and into the engine.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/server/generation/generation.h"
#include "rudder/server/generation/generation_endpoint.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/request_id.h"
#include "rudder/server/openai/responses_background.h"

namespace rudder::server {
namespace {

// No tokenizer in use spells more bytes a token on average over a whole body: a floor of what the
// prompt will cost, known before anything is spent on it.
constexpr int64_t kMaxBytesPerToken = 16;

using Parsed = tl::expected<GenerationRequest, ApiError>;

// One body on its way to a Generation. Parsed on the pool; where it has a grammar it goes on when
// the engine has compiled that: no thread waits. A body whose grammar is at fault is parsed again,
// for the path of the field.
class GenerationTask : public std::enable_shared_from_this<GenerationTask> {
 public:
  GenerationTask(ServerContext& context, std::shared_ptr<Exchange> exchange,
                 GenerationParser parser)
      : context_(context),
        exchange_(std::move(exchange)),
        parser_(std::move(parser)),
        body_(std::move(exchange_->body)),
        sent_bytes_(std::ssize(body_.text)),
        is_named_(is_request_id(exchange_->request.field("x-request-id"))),
        mark_(std::make_shared<ActivityMark>(context.activity)) {}

  // Any thread. One of them at a time has the task.
  void queue() {
    if (context_.pool->run(body_.text.size(), [self = shared_from_this()] { self->run(); })) return;
    answer(tl::unexpected(
        to_api_error(Error{ErrorCode::kOverloaded, "too many requests wait to be tokenised", ""})));
  }

 private:
  void run();
  Parsed parse();
  void on_compiled(const Result<engine::FormLease>& compiled);
  void answer(Parsed parsed);
  void start(Parsed parsed);

  ServerContext& context_;
  const std::shared_ptr<Exchange> exchange_;
  const GenerationParser parser_;
  HeldBody body_;
  const int64_t sent_bytes_;
  const bool is_named_;
  std::shared_ptr<ActivityMark> mark_;
  std::optional<GenerationRequest> parsed_;  // while its grammar is compiled
  std::optional<Error> grammar_error_;
  engine::FormLease lease_;  // until it is submitted
};

Parsed GenerationTask::parse() {
  const std::string& id = exchange_->request_id;
  Parsed parsed;
  const Result<void> done = contain([&] {
    GenerationScope scope = generation_scope(context_, exchange_->tenant, id);
    scope.is_named = is_named_;
    scope.grammar_error = grammar_error_;
    parsed = parser_(body_.text, scope);
  });
  if (done) return parsed;
  log_error("request {}: {}", id, done.error().to_string());
  return tl::unexpected(to_api_error(done.error()));
}

void GenerationTask::run() {
  Parsed parsed = parse();
  if (!parsed || !parsed->grammar) return answer(std::move(parsed));
  const constraint::GrammarSpec spec = *parsed->grammar;
  parsed_ = std::move(*parsed);
  context_.compiles->compile(
      context_.engine(), spec, exchange_->tenant,
      [self = shared_from_this()](const Result<engine::FormLease>& compiled) {
        self->on_compiled(compiled);
      });
}

void GenerationTask::on_compiled(const Result<engine::FormLease>& compiled) {
  if (compiled) {
    lease_ = *compiled;
    return answer(std::move(*parsed_));
  }
  grammar_error_ = compiled.error();
  parsed_.reset();
  queue();
}

void GenerationTask::answer(Parsed parsed) {
  body_ = HeldBody();
  auto held = std::make_shared<Parsed>(std::move(parsed));
  exchange_->io->post([self = shared_from_this(), held] { self->start(std::move(*held)); });
}

void GenerationTask::start(Parsed parsed) {
  if (exchange_->abandoned()) return;
  if (context_.ending.stopping) {
    return exchange_->respond(
        error_response(Error{ErrorCode::kUnavailable, "the server is shutting down", ""}));
  }
  if (!parsed) return exchange_->respond(error_response(parsed.error()));
  if (context_.settings.enable_log_requests) log_request_start(exchange_->request_id, *parsed);
  parsed->sent_bytes = sent_bytes_;
  const bool stays = !runs_in_background(parsed->answer);
  const std::shared_ptr<Exchange> exchange =
      stays ? exchange_ : leave_connection(exchange_, parsed->answer);
  std::shared_ptr<Generation> generation;
  const Result<void> made = contain([&] {
    generation =
        std::make_shared<Generation>(context_, exchange, std::move(*parsed), std::move(mark_));
  });
  if (made) return generation->start();
  log_error("request {}: {}", exchange->request_id, made.error().to_string());
  exchange->respond(error_response(made.error()));
}

GenerationParser parser_of(Api api) {
  return [api](const std::string& body, const GenerationScope& scope) {
    return parse_generation(api, body, scope);
  };
}

}  // namespace

GenerationScope generation_scope(const ServerContext& context, int tenant, std::string request_id) {
  const engine::RequestLimits limits = context.engine().limits();
  // What captures are kept for embeddings alone is not for clients.
  auto* captures = limits.taps.captures_prompts_only ? nullptr : context.engine().captures();
  return {.model = context.model(),
          .limits = limits,
          .keys = context.keys,
          .tenant = tenant,
          .max_prompts = context.settings.max_prompts,
          .request_id = std::move(request_id),
          .version = context.parts.version,
          .taps = {.steering = context.parts.steering,
                   .captures = captures,
                   .programs = &context.engine().programs(),
                   .tenant = tenant},
          .tokens = context.tokens.get()};
}

void run_generation(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                    GenerationParser parser) {
  if (context.ending.draining) {
    HttpResponse response = error_response(
        Error{ErrorCode::kUnavailable, "the server is draining and takes no new requests", ""});
    response.close = true;
    return exchange->respond(std::move(response));
  }
  const auto least_tokens = static_cast<int64_t>(exchange->body.text.size()) / kMaxBytesPerToken;
  // A request with a priority may displace others: what it says is not known yet.
  const bool may_displace = exchange->body.text.find("\"priority\"") != std::string::npos;
  const engine::PlaceAsk ask = {.tokens = least_tokens, .tenant = exchange->tenant};
  if (const Result<void> room = context.engine().would_accept(ask); !room && !may_displace) {
    return exchange->respond(error_response(context.engine_error(room.error())));
  }
  std::make_shared<GenerationTask>(context, exchange, std::move(parser))->queue();
}

void handle_chat_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  run_generation(context, exchange, parser_of(Api::kChat));
}

void handle_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  run_generation(context, exchange, parser_of(Api::kCompletions));
}

}  // namespace rudder::server
