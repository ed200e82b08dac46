// Exchange: one request and its answer, shared by the connection (HttpSession), which reads the
// request and writes the answer, and the handler, which makes the answer: whole (respond) or as a
// stream (begin_stream, output, commit, end_stream). Only the connection's I/O thread may call its
// members. Session and handler share ownership; the last one to release it destroys it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "rudder/server/http/http_message.h"

namespace rudder::server {

class IoThread;
struct Route;

// Bytes that all requests hold together. Shared: an engine's sinks may let go of a request after
// the server has been destroyed.
using ByteTotal = std::shared_ptr<std::atomic<int64_t>>;

// Bytes that one request holds, counted against the bound on those of all until they are let go.
class ByteCharge {
 public:
  explicit ByteCharge(ByteTotal total) : total_(std::move(total)) {}
  ~ByteCharge() { total_->fetch_sub(bytes_, std::memory_order_relaxed); }
  ByteCharge(const ByteCharge&) = delete;
  ByteCharge& operator=(const ByteCharge&) = delete;

  // What it holds has grown to `bytes`. False when all together are then more than `limit`.
  bool grow_to(int64_t bytes, int64_t limit) {
    const int64_t more = bytes - bytes_;
    bytes_ = bytes;
    return total_->fetch_add(more, std::memory_order_relaxed) + more <= limit;
  }

 private:
  const ByteTotal total_;
  int64_t bytes_ = 0;
};

// A body on its way to whoever parses it.
struct HeldBody {
  std::string text;
  std::unique_ptr<ByteCharge> charge;
};

// Bytes of a stream that the client may leave unread.
struct PendingLimits {
  size_t output = 0;
  size_t captured = 0;  // captured values among them, on top
};

class Exchange {
 public:
  Exchange(HttpRequest http_request, std::shared_ptr<IoThread> thread, const PendingLimits& limits)
      : request(std::move(http_request)), io(std::move(thread)), limits_(limits) {}

  HttpRequest request;  // without its body
  HeldBody body;
  const std::shared_ptr<IoThread> io;
  std::string request_id;
  const Route* route = nullptr;
  std::string path_tail;    // what the route's "{id}" stands for, decoded
  int tenant = 0;           // whose key it came with
  int64_t received_us = 0;  // when the header was complete

  // The handler's side. After the session has abandoned the exchange all of this does nothing.
  void respond(HttpResponse response);
  void begin_stream(HttpResponse head);
  // Where the bytes of a stream are appended; commit hands them on. False: the reader is too slow,
  // the request is about to be abandoned.
  std::string& output() { return output_; }
  // So many of the bytes appended last are captured values, or the log-probabilities of an echoed
  // prompt: a step may have many of them, which are bounded apart.
  void count_apart(size_t bytes) { captured_ += bytes; }
  bool commit();
  void end_stream();
  // Called once if the client goes away before the answer is complete, or reads too slowly.
  void on_abandon(std::function<void()> callback) { on_abandon_ = std::move(callback); }
  bool abandoned() const { return abandoned_; }

  // The session's side.
  void set_wake(std::function<void()> wake) { wake_ = std::move(wake); }
  bool head_ready() const { return head_ready_; }
  bool streaming() const { return streaming_; }
  bool complete() const { return complete_; }
  bool too_slow() const { return too_slow_; }
  HttpResponse& head() { return head_; }
  void output_taken() {
    output_.clear();
    captured_ = 0;
  }
  void abandon();

 private:
  void wake() {
    if (wake_) wake_();
  }

  const PendingLimits limits_;
  size_t captured_ = 0;  // bytes of `output_`
  HttpResponse head_;
  std::string output_;
  std::function<void()> wake_;
  std::function<void()> on_abandon_;
  bool head_ready_ = false;
  bool streaming_ = false;
  bool complete_ = false;
  bool too_slow_ = false;
  bool abandoned_ = false;
};

}  // namespace rudder::server
