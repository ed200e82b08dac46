// LocalClient: sends requests to an engine in this process and returns whole answers, for the
// commands that generate without HTTP. One thread calls it; events arrive on the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/engine.h"

namespace rudder::apps {

struct LocalAnswer {
  std::string text;
  std::vector<int32_t> tokens;
  engine::FinishReason finish = engine::FinishReason::kStop;
  engine::Usage usage;
  std::vector<float> logprobs;                       // as tokens, when they were asked for
  std::vector<engine::OutputToken> prompt_logprobs;  // of the prompt but its first token, likewise
  steer::capture::CaptureResults captures;           // when the request captures
  int64_t submit_us = 0;
  std::vector<int64_t> token_us;  // when each token's event arrived
  std::optional<Error> error;
};

class LocalClient {
 public:
  explicit LocalClient(engine::Engine& engine);
  ~LocalClient();  // waits for every open request
  LocalClient(const LocalClient&) = delete;
  LocalClient& operator=(const LocalClient&) = delete;

  // Waits while the engine's queue is full. `done` runs on the engine thread, once; `on_text`, when
  // given, for each piece of text.
  Result<engine::RequestId> submit(const engine::Request& request,
                                   std::function<void(LocalAnswer&&)> done,
                                   std::function<void(const std::string&)> on_text = {});
  // Validates the request first.
  Result<engine::RequestId> submit(engine::RequestParams params,
                                   std::function<void(LocalAnswer&&)> done,
                                   std::function<void(const std::string&)> on_text = {});
  // One request from start to end.
  Result<LocalAnswer> ask(engine::RequestParams params,
                          std::function<void(const std::string&)> on_text = {});
  void wait_all();

 private:
  struct State;
  engine::Engine& engine_;
  std::shared_ptr<State> state_;
};

}  // namespace rudder::apps
