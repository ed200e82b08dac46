// POST /v1/steering/patch_sweep: from the connection to the pool that parses the body, and back to
// the connection's thread, where the sweep runs.
#include <memory>
#include <optional>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/server/generation/generation_endpoint.h"
#include "rudder/server/handlers.h"
#include "rudder/server/steering/patch_sweep.h"

namespace rudder::server {
namespace {

using ParsedSweep = tl::expected<PatchSweepRequest, ApiError>;

ParsedSweep parse_contained(const ServerContext& context, const Exchange& exchange,
                            const std::string& body) {
  ParsedSweep parsed;
  const Result<void> done = contain([&] {
    parsed =
        parse_patch_sweep(body, generation_scope(context, exchange.tenant, exchange.request_id));
  });
  if (done) return parsed;
  log_error("request {}: {}", exchange.request_id, done.error().to_string());
  return tl::unexpected(to_api_error(done.error()));
}

void start_sweep(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                 ParsedSweep parsed, std::shared_ptr<ActivityMark> mark) {
  if (exchange->abandoned()) return;
  if (context.ending.stopping) {
    return exchange->respond(
        error_response(Error{ErrorCode::kUnavailable, "the server is shutting down", ""}));
  }
  if (!parsed) return exchange->respond(error_response(parsed.error()));
  std::make_shared<PatchSweep>(context, exchange, std::move(*parsed), std::move(mark))->start();
}

}  // namespace

void handle_patch_sweep(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  if (context.ending.draining) {
    HttpResponse response = error_response(
        Error{ErrorCode::kUnavailable, "the server is draining and takes no new requests", ""});
    response.close = true;
    return exchange->respond(std::move(response));
  }
  auto body = std::make_shared<HeldBody>(std::move(exchange->body));
  auto mark = std::make_shared<ActivityMark>(context.activity);
  const bool queued = context.pool->run(body->text.size(), [&context, exchange, body, mark] {
    auto parsed = std::make_shared<ParsedSweep>(parse_contained(context, *exchange, body->text));
    *body = HeldBody();
    exchange->io->post([&context, exchange, parsed, mark] {
      start_sweep(context, exchange, std::move(*parsed), mark);
    });
  });
  if (queued) return;
  exchange->respond(
      error_response(Error{ErrorCode::kOverloaded, "too many requests wait to be parsed", ""}));
}

}  // namespace rudder::server
