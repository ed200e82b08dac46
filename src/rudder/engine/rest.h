// Rest: how an engine comes to stand still so that what its executors compute with may be changed:
// nothing is in flight, no prefix is cached, no sequence has a slot or a block, and no step is
// launched until it goes on. Requests that come meanwhile wait, or are refused. Owned by
// EngineCore; the engine thread's alone, but for is_at_rest().
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/request.h"

namespace rudder::sched {
class Scheduler;
}  // namespace rudder::sched

namespace rudder::engine {

class Delivery;
class RequestTable;
class TapQueue;

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
  // What comes to rest; all of it outlives the Rest.
  struct Parts {
    sched::Scheduler* scheduler;
    RequestTable* requests;
    TapQueue* taps;
    Delivery* delivery;
  };
  explicit Rest(const Parts& parts) : parts_(parts) {}

  // The requests that it has held back and that begin now, in order; none while it is to rest.
  std::vector<RequestId> follow(const RestOrder& order);
  // Requests that come are held back.
  bool is_coming() const { return mode_.has_value(); }
  void hold(RequestId id) { held_.push_back(id); }
  bool may_launch() const;
  // Once a turn, with no step in flight: whether it has come to rest.
  void settle();
  bool is_at_rest() const { return is_at_rest_.load(std::memory_order_acquire); }

 private:
  void end_those_that_run(const RestAsk& ask);

  const Parts parts_;
  std::optional<RestMode> mode_;
  std::atomic<bool> is_at_rest_{false};
  std::vector<RequestId> held_;
};

}  // namespace rudder::engine
