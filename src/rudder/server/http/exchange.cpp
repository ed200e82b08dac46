#include "rudder/server/http/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/server/http/api_error.h"

namespace rudder::server {

// Counts what the answer holds now. False: there is no room for that.
bool Exchange::count(int64_t bytes) {
  return charge_.set(std::max<int64_t>(0, bytes - kUncounted), limits_.total);
}

void Exchange::respond(HttpResponse response) {
  if (abandoned_) return;
  RUDDER_CHECK(!head_ready_, "two answers to one request");
  const auto size = static_cast<int64_t>(response.text().size());
  if (size > kUncounted) {
    // A shared body is counted where it was made, but each reader keeps it there for longer.
    const bool fits = response.shared_body
                          ? limits_.held->load(std::memory_order_relaxed) <= limits_.total
                          : count(size);
    if (!fits || size > limits_.answer) {
      count(0);
      response = error_response(http_error(
          503, size > limits_.answer
                   ? fmt::format("the answer has {} bytes, more than the {} that are held for one",
                                 size, limits_.answer)
                   : "too much output waits for its clients"));
    }
  }
  head_ = std::move(response);
  head_ready_ = true;
  complete_ = true;
  wake();
}

void Exchange::begin_stream(HttpResponse head) {
  if (abandoned_) return;
  RUDDER_CHECK(!head_ready_, "two answers to one request");
  head_ = std::move(head);
  head_ready_ = true;
  streaming_ = true;
}

bool Exchange::commit() {
  if (abandoned_) return false;
  const int64_t captured = std::min(captured_, limits_.captured);
  const auto pending = static_cast<int64_t>(output_.size());
  if (pending > limits_.stream + captured || !count(being_written_ + pending)) too_slow_ = true;
  wake();
  return !too_slow_;
}

void Exchange::output_written() {
  being_written_ = 0;
  count(static_cast<int64_t>(output_.size()));
}

void Exchange::end_stream() {
  if (abandoned_) return;
  complete_ = true;
  wake();
}

void Exchange::abandon() {
  if (abandoned_ || (complete_ && !streaming_)) return;
  abandoned_ = true;
  wake_ = nullptr;
  output_ = std::string();
  charge_.release();
  if (on_abandon_) std::exchange(on_abandon_, nullptr)();
}

}  // namespace rudder::server
