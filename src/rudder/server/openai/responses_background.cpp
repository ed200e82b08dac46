#include "rudder/server/openai/responses_background.h"

#include <utility>

#include "rudder/server/http/io_thread.h"
#include "rudder/server/openai/response_store.h"
#include "rudder/server/openai/responses_answer.h"

namespace rudder::server {

bool runs_in_background(const AnswerOptions& answer) {
  return answer.response.turn != nullptr && answer.response.turn->is_background;
}

std::shared_ptr<Exchange> leave_connection(const std::shared_ptr<Exchange>& exchange,
                                           const AnswerOptions& answer) {
  HttpRequest request;
  request.method = exchange->request.method;
  request.path = exchange->request.path;
  auto alone = std::make_shared<Exchange>(std::move(request), exchange->io, exchange->limits());
  alone->request_id = exchange->request_id;
  alone->tenant = exchange->tenant;
  alone->received_us = exchange->received_us;

  const auto options = std::make_shared<const AnswerOptions>(answer);
  const std::weak_ptr<Exchange> weak = alone;
  // An answer goes into the store by itself; an error comes here.
  alone->set_wake([weak, options] {
    const std::shared_ptr<Exchange> ended = weak.lock();
    if (ended == nullptr || ended->head().error == nullptr) return;
    const ResponseTurn& turn = *options->response.turn;
    const ApiError* error = ended->head().error.get();
    turn.store->finish(
        options->id, {turn.tenant, turn.store->share(response_document(*options, "failed", error)),
                      nullptr, turn.input});
  });
  auto cancel = [weak, options, io = exchange->io] {
    io->post([weak] {
      if (const std::shared_ptr<Exchange> running = weak.lock()) running->abandon();
    });
    return options->response.turn->store->share(response_document(*options, "cancelled"));
  };
  HttpResponse begun;
  const ResponseTurn& turn = *options->response.turn;
  begun.shared_body = turn.store->share(response_document(*options, "in_progress"));
  turn.store->put(options->id, {turn.tenant, begun.shared_body, nullptr, turn.input, turn.asking,
                                std::move(cancel)});
  exchange->respond(std::move(begun));
  return alone;
}

}  // namespace rudder::server
