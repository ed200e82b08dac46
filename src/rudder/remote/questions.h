// Questions: what was asked of the engine process and not answered yet, by number. Any thread.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <utility>

#include "rudder/base/result.h"
#include "rudder/remote/messages.h"

namespace rudder::remote {

class Questions {
 public:
  using Reply = Result<FromEngine>;

  // From now on answer() may come.
  std::future<Reply> open(uint64_t id) {
    const std::lock_guard lock(mutex_);
    return open_[id].get_future();
  }
  // Nobody waits for what is not open.
  void answer(uint64_t id, FromEngine reply) {
    const std::lock_guard lock(mutex_);
    auto question = open_.extract(id);
    if (!question.empty()) question.mapped().set_value(std::move(reply));
  }
  // False: its answer has come.
  bool forget(uint64_t id) {
    const std::lock_guard lock(mutex_);
    return open_.erase(id) != 0;
  }
  void fail_all(const Error& error) {
    const std::lock_guard lock(mutex_);
    for (auto& [id, question] : open_) question.set_value(tl::unexpected<Error>(error));
    open_.clear();
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::promise<Reply>> open_;
};

}  // namespace rudder::remote
