#include "rudder/server/http/pool_answer.h"

#include <fmt/format.h>

#include <exception>
#include <iterator>
#include <utility>

#include "rudder/base/log.h"
#include "rudder/server/http/amplification.h"
#include "rudder/server/http/api_error.h"
#include "rudder/server/http/io_thread.h"

namespace rudder::server {

void answer_on_pool(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                    std::function<HttpResponse(const std::string& body)> work) {
  auto body = std::make_shared<HeldBody>(std::move(exchange->body));
  const size_t bytes = body->text.size();
  const bool queued = context.pool->run(bytes, [exchange, body, work = std::move(work)] {
    auto response = std::make_shared<HttpResponse>();
    try {
      *response = work(body->text);
    } catch (const std::exception& exception) {
      log_error("request dropped: {}", exception.what());
      *response = error_response(Error{ErrorCode::kInternal, "", ""});
    }
    const auto sent = static_cast<int64_t>(body->text.size());
    if (std::ssize(response->text()) > largest_answer_to(sent)) {
      *response = error_response(http_error(
          400, fmt::format("the answer would have {} bytes, more than {} times what was sent",
                           response->text().size(), kMaxAmplification)));
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
