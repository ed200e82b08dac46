// Rest: how an engine comes to stand still so that what its executors compute with may be changed:
// nothing is in flight, no prefix is cached, no sequence has a slot or a block, and no step is
// launched until it resumes. Requests that come meanwhile wait, or are refused. Owned by
// EngineCore; the engine thread's alone, but for is_at_rest().
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/request.h"

namespace rudder::engine {

// What becomes of the requests that are open.
enum class RestMode : uint8_t {
  kAbort,  // those that have begun to run end with an error; the others wait, or end if they are
           // to be refused
  kWait,   // those that came before go on to their ends; later ones wait
  kKeep,   // they wait where they are, and are computed anew from their tokens
};

struct RestAsk {
  RestMode mode = RestMode::kWait;
  // What requests that come meanwhile are told; absent: they wait.
  std::optional<Error> refusal = {};
  // What those that kAbort ends are told.
  Error ended = {ErrorCode::kUnavailable, "the request was ended: the engine was stopped", ""};
};

// To rest as asked, or (absent) to go on; with `identity`, under that name of the model in the keys
// of prefix blocks.
struct RestOrder {
  std::optional<RestAsk> ask = {};
  std::optional<std::string> identity = {};
};

class Rest {
 public:
  void begin(RestMode mode) { mode_ = mode; }
  void settle() { is_at_rest_.store(true, std::memory_order_release); }
  // The requests that it has held back, in order.
  std::vector<RequestId> end();

  bool is_coming() const { return mode_.has_value(); }  // or is there
  bool is_at_rest() const { return is_at_rest_.load(std::memory_order_acquire); }
  // Requests that came before have an end to reach.
  bool finishes() const { return mode_ == RestMode::kWait; }
  void hold(RequestId id) { held_.push_back(id); }

 private:
  std::optional<RestMode> mode_;
  std::atomic<bool> is_at_rest_{false};
  std::vector<RequestId> held_;
};

}  // namespace rudder::engine
