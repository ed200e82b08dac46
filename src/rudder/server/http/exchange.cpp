#include "rudder/server/http/exchange.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::server {

void Exchange::respond(HttpResponse response) {
  if (abandoned_) return;
  RUDDER_CHECK(!head_ready_, "two answers to one request");
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
  const size_t captured = std::min(captured_, limits_.captured);
  if (output_.size() > limits_.output + captured) too_slow_ = true;
  wake();
  return !too_slow_;
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
  if (on_abandon_) std::exchange(on_abandon_, nullptr)();
}

}  // namespace rudder::server
