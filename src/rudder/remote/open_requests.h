// OpenRequests: the requests that the front has taken for one engine process, until their last
// events. What an engine process was told of a request is kept until its first event comes, so that
// another process can be told it again. Not safe by itself: EngineLink locks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/bounded_queue.h"
#include "rudder/engine/event.h"
#include "rudder/engine/open_work.h"

namespace rudder::remote {

// Times that a process may end before its first event comes: of processes that failed by
// themselves, which it may be the cause of, and of all.
inline constexpr int32_t kMaxFaults = 3;
inline constexpr int32_t kMaxTries = 50;

struct OpenRequest {
  uint64_t id = 0;
  engine::EventSink sink;
  std::string frame;                // of its Submit; empty once it has begun
  int64_t tokens = 0;               // of its prompts
  engine::OpenWork work = {};       // that is left to do for it
  int64_t max_wait_us = 0;          // 0: it may wait for ever
  std::vector<bool> finished = {};  // by choice
  std::shared_ptr<const lora::NamedAdapter> adapter = {};
  std::shared_ptr<const void> holds = {};

  int64_t since_us = 0;  // it was taken
  int32_t num_finished = 0;
  int32_t tries = 0;
  int32_t faults = 0;
  bool is_cancelled = false;

  bool has_begun() const { return frame.empty(); }
};

// Events that are due; sent by deliver() when nobody holds the lock.
struct DueEvents {
  std::shared_ptr<OpenRequest> request;
  std::vector<engine::Event> events;
};
void deliver(std::vector<DueEvents> due);

class OpenRequests {
 public:
  void add(std::shared_ptr<OpenRequest> request);
  // False: nobody is open by this number.
  bool cancel(uint64_t id);

  // Of events that came: those that are of an open choice.
  DueEvents take(uint64_t id, std::vector<engine::Event> events);
  // An end of every choice that is open, for the request, and for all of which `is_due`.
  DueEvents end(uint64_t id, engine::FinishReason reason, const Error& error);
  std::vector<DueEvents> end_those(const std::function<const Error*(const OpenRequest&)>& is_due,
                                   engine::FinishReason reason);

  void each(const std::function<void(OpenRequest&)>& visit);  // in the order in which they came
  bool empty() const { return requests_.empty(); }
  int64_t work() const { return work_; }                      // left to do, in tokens
  int64_t num_waiting() const { return num_waiting_; }        // have had no event
  int64_t waiting_tokens() const { return waiting_tokens_; }  // of those

 private:
  void note_begin(OpenRequest& request);
  DueEvents end(const std::shared_ptr<OpenRequest>& request, engine::FinishReason reason,
                const Error& error);

  std::map<uint64_t, std::shared_ptr<OpenRequest>> requests_;
  int64_t work_ = 0;
  int64_t num_waiting_ = 0;
  int64_t waiting_tokens_ = 0;
};

}  // namespace rudder::remote
