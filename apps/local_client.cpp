#include "local_client.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "rudder/base/clock.h"

namespace rudder::apps {
namespace {

constexpr std::chrono::milliseconds kQueueFullWait{5};

int64_t now_us() {
  return SteadyClock().now_us();
}

}  // namespace

struct LocalClient::State {
  std::mutex mutex;
  std::condition_variable idle;
  int64_t open = 0;

  void begin() {
    std::lock_guard lock(mutex);
    ++open;
  }
  void end() {
    std::lock_guard lock(mutex);
    if (--open == 0) idle.notify_all();
  }
};

LocalClient::LocalClient(engine::Engine& engine)
    : engine_(engine), state_(std::make_shared<State>()) {}

LocalClient::~LocalClient() {
  wait_all();
}

void LocalClient::wait_all() {
  std::unique_lock lock(state_->mutex);
  state_->idle.wait(lock, [&] { return state_->open == 0; });
}

Result<engine::RequestId> LocalClient::submit(engine::RequestParams params,
                                              std::function<void(LocalAnswer&&)> done,
                                              std::function<void(const std::string&)> on_text) {
  RUDDER_TRY(engine::Request request,
             engine::validate_request(std::move(params), engine_.limits()));
  return submit(request, std::move(done), std::move(on_text));
}

Result<engine::RequestId> LocalClient::submit(const engine::Request& request,
                                              std::function<void(LocalAnswer&&)> done,
                                              std::function<void(const std::string&)> on_text) {
  auto answer = std::make_shared<LocalAnswer>();
  answer->submit_us = now_us();
  auto sink = [answer, state = state_, done = std::move(done),
               on_text = std::move(on_text)](engine::Event&& event) {
    const int64_t now = now_us();
    for (const engine::OutputToken& token : event.tokens) {
      answer->tokens.push_back(token.token);
      answer->token_us.push_back(now);
      if (token.has_logprobs) answer->logprobs.push_back(token.logprob);
    }
    std::ranges::move(event.prompt_logprobs, std::back_inserter(answer->prompt_logprobs));
    if (on_text && !event.text.empty()) on_text(event.text);
    answer->text += event.text;
    answer->usage = event.usage;
    if (!event.finish) return;
    answer->finish = *event.finish;
    answer->error = std::move(event.error);
    if (event.capture_results) answer->captures = std::move(*event.capture_results);
    done(std::move(*answer));
    state->end();
  };
  for (;;) {
    state_->begin();
    Result<engine::RequestId> id = engine_.submit(request, sink);
    if (id) return id;
    state_->end();
    if (id.error().code != ErrorCode::kOverloaded) return id;
    std::this_thread::sleep_for(kQueueFullWait);
  }
}

Result<LocalAnswer> LocalClient::ask(engine::RequestParams params,
                                     std::function<void(const std::string&)> on_text) {
  std::promise<LocalAnswer> promise;
  RUDDER_TRY_VOID(submit(
      std::move(params), [&](LocalAnswer&& answer) { promise.set_value(std::move(answer)); },
      std::move(on_text)));
  return promise.get_future().get();
}

}  // namespace rudder::apps
