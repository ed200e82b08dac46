// Exchange: one request and its answer, shared by the connection (HttpSession), which reads the
// request and writes the answer, and the handler, which makes the answer: whole (respond) or as a
// stream (begin_stream, output, commit, end_stream). Only the connection's I/O thread may call its
// members. Session and handler share ownership; the last one to release it destroys it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "rudder/server/http/byte_charge.h"
#include "rudder/server/http/http_message.h"

namespace rudder::server {

class IoThread;
struct Route;

// A body on its way to whoever parses it.
struct HeldBody {
  std::string text;
  std::unique_ptr<ByteCharge> charge;
};

// Bounds on the bytes of answers that wait for their clients.
struct OutputLimits {
  int64_t stream = 0;    // of one stream
  int64_t captured = 0;  // captured values among them, on top
  int64_t answer = 0;    // of one answer that is sent whole
  int64_t total = 0;     // of all answers together, as far as they are counted in `held`
  ByteTotal held;        // never null
};

class Exchange {
 public:
  Exchange(HttpRequest http_request, std::shared_ptr<IoThread> thread, OutputLimits limits)
      : request(std::move(http_request)),
        io(std::move(thread)),
        limits_(std::move(limits)),
        charge_(limits_.held) {}

  // What a connection may hold without being counted: --max-connections bounds that already, and no
  // client is refused or cancelled for less, however much the others hold.
  static constexpr int64_t kUncounted = int64_t{64} << 10;

  HttpRequest request;  // without its body
  HeldBody body;
  const std::shared_ptr<IoThread> io;
  std::string request_id;
  const Route* route = nullptr;
  std::string path_tail;    // what the route's "{id}" stands for, decoded
  int tenant = 0;           // whose key it came with
  int64_t received_us = 0;  // when the header was complete

  const OutputLimits& limits() const { return limits_; }

  // The handler's side. After the session has abandoned the exchange all of this does nothing.
  // An answer that has no room becomes a 503.
  void respond(HttpResponse response);
  void begin_stream(HttpResponse head);
  // Where the bytes of a stream are appended; commit hands them on. False: the reader is too slow,
  // the request is about to be abandoned.
  std::string& output() { return output_; }
  // So many of the bytes appended last are captured values, or repeat the request or what was said:
  // a step may have many of them, which are bounded apart.
  void count_apart(size_t bytes) { captured_ += static_cast<int64_t>(bytes); }
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
  // The stream's bytes so far, for `bytes`, which is empty: they count until output_written().
  void take_output(std::string& bytes) {
    output_.swap(bytes);
    being_written_ = static_cast<int64_t>(bytes.size());
    captured_ = 0;
  }
  void output_written();  // nothing of what the session took is left
  void abandon();

 private:
  void wake() {
    if (wake_) wake_();
  }
  bool count(int64_t bytes);

  const OutputLimits limits_;
  ByteCharge charge_;
  int64_t being_written_ = 0;  // bytes of the stream that the session has taken
  int64_t captured_ = 0;       // bytes of `output_`
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
