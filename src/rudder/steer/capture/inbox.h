// The messages of the engine thread and of the consumers to the dispatch thread, and the dispatch
// thread's record of a request. Private to the dispatcher.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/steer/capture/lane.h"

namespace rudder::steer::capture {

inline int64_t now_us() {
  return SteadyClock().now_us();
}

// A request from begin() to its results.
struct OpenRequest {
  CaptureId id;
  CaptureRequest asked;
  std::vector<std::shared_ptr<Seat>> seats;  // by ask
  std::vector<tap::PositionRange> captured;  // by any of them
  int64_t record_elements = 0;
  int32_t next_position = 0;  // rows before it were handed out
  int64_t num_lost = 0;       // tokens that the executor had no room for
  bool is_cancelled = false;
  int64_t deadline_us = 0;  // of its results; 0: it has not ended

  std::mutex mutex;
  std::vector<std::optional<ConsumerResult>> results;  // by ask
  bool is_reported = false;
};

struct BeginMessage {
  std::shared_ptr<OpenRequest> request;
};
struct RowsMessage {
  std::shared_ptr<const tap::CapturedRows> rows;
  std::vector<CaptureId> by_seq;
};
struct EndMessage {
  CaptureId id;
  bool cancelled = false;
};
struct ResultMessage {
  CaptureId id;
};
struct StopMessage {};
using Message = std::variant<BeginMessage, RowsMessage, EndMessage, ResultMessage, StopMessage>;

// To the dispatch thread. Kept alive by whoever may still post: a consumer's thread that comes
// late.
class Inbox {
 public:
  void post(Message message) {
    std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    posted_.notify_one();
  }
  // Waits for messages, at most until `until_us`.
  void take(std::deque<Message>& out, int64_t until_us) {
    std::unique_lock lock(mutex_);
    const int64_t wait_us = std::max<int64_t>(until_us - now_us(), 0);
    posted_.wait_for(lock, std::chrono::microseconds(wait_us), [&] { return !messages_.empty(); });
    std::swap(out, messages_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Message> messages_;
};

}  // namespace rudder::steer::capture
