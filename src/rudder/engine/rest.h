// Rest: how an engine comes to stand still so that what its executors compute with may be changed:
// nothing is in flight, no prefix is cached, no sequence has a slot or a block (unless it is asked
// to keep them), and no step is launched until it goes on. Requests that come meanwhile wait, or
// are refused. Owned by EngineCore; the engine thread's alone, but for is_at_rest().
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
  // What is cached and what sequences have stays as it is, as far as it goes on under no other
  // name.
  bool keeps_cache = false;
};

// To rest as asked, or (absent) to go on; with `identity`, under that name of the model in the keys
// of prefix blocks.
struct RestOrder {
  std::optional<RestAsk> ask = {};
  std::optional<std::string> identity = {};
  uint64_t number = 0;  // of the order; the mailbox gives it
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
  // By the order of this number, where one is given. Any thread.
  bool is_at_rest(std::optional<uint64_t> order = {}) const {
    const uint64_t by = resting_by_.load(std::memory_order_acquire);
    return order ? by == *order : by != 0;
  }

 private:
  void end_those_that_run(const RestAsk& ask);
  void come_to_rest();

  const Parts parts_;
  std::optional<RestMode> mode_;
  bool keeps_cache_ = false;
  uint64_t order_ = 0;                   // the last one followed
  std::atomic<uint64_t> resting_by_{0};  // the order that it rests by; 0: it does not rest
  std::vector<RequestId> held_;
};

}  // namespace rudder::engine
