#include "rudder/server/http/pool_answer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/server/http/amplification.h"
#include "rudder/server/http/api_error.h"
#include "rudder/server/http/io_thread.h"

namespace rudder::server {

void answer_on_pool(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                    std::function<HttpResponse(const std::string& body)> work,
                    std::string_view grows_by) {
  auto body = std::make_shared<HeldBody>(std::move(exchange->body));
  const size_t bytes = body->text.size();
  const bool queued = context.pool->run(bytes, [exchange, body, work = std::move(work),
                                                grows_by = std::string(grows_by)] {
    auto response = std::make_shared<HttpResponse>();
    if (const Result<void> done = contain([&] { *response = work(body->text); }); !done) {
      log_error("request {}: {}", exchange->request_id, done.error().to_string());
      *response = error_response(done.error());
    }
    const auto sent = static_cast<int64_t>(body->text.size());
    if (std::ssize(response->text()) > largest_answer_to(sent)) {
      ApiError error = http_error(
          400, fmt::format("the answer would have {} bytes or more, over {} times what was sent",
                           response->text().size(), kMaxAmplification));
      error.param = grows_by;
      *response = error_response(error);
    }
    *body = HeldBody();
    exchange->io->post([exchange, response] { exchange->respond(std::move(*response)); });
  });
  if (!queued) {
    exchange->respond(
        error_response(Error{ErrorCode::kOverloaded, "too many requests wait to be parsed", ""}));
  }
}

}  // namespace rudder::server
