// Mailbox: the commands of other threads to the engine thread. They post; the engine thread takes
// all commands at the next step boundary. When the engine drains, dies or stops it closes the
// mailbox with a reason: from then on submissions are refused, and none that was accepted is lost.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/constraint.h"
#include "rudder/engine/bounded_queue.h"
#include "rudder/engine/event.h"
#include "rudder/engine/request.h"
#include "rudder/engine/resolved_taps.h"
#include "rudder/engine/rest.h"
#include "rudder/steer/capture/result.h"
#include "rudder/steer/config.h"
#include "rudder/text/stop_strings.h"

namespace rudder::engine {

struct Submission {
  RequestId id;
  Request request;
  std::shared_ptr<const text::StopSet> stops;  // of the request's stop strings; null for none
  std::vector<std::shared_ptr<const constraint::Constraint>> constraints;  // one a spec
  ResolvedTaps taps;
  EventSink sink;
  BoundedQueue::Place place;
  int64_t arrival_us = 0;
  int64_t max_wait_us = 0;  // 0: for ever
};

// What the capture dispatcher says of a choice.
struct CaptureNews {
  RequestId id;
  int32_t choice = 0;
  std::optional<steer::capture::CaptureEvent> event;
  std::optional<steer::capture::CaptureResults> results;  // the last news of the choice
};

// In the order of posting, except that cancels come after submissions: an id is known to others
// only after its submission was posted.
struct Commands {
  std::vector<steer::KeyedProgram> pins;
  std::vector<tap::ContentKey> unpins;
  std::vector<Submission> submissions;
  std::vector<RequestId> displaced;
  std::vector<CaptureNews> captures;
  std::vector<RequestId> cancels;
  bool reset_prefix_cache = false;
  std::optional<RestOrder> rest;  // the last one posted

  bool empty() const {
    return pins.empty() && unpins.empty() && submissions.empty() && captures.empty() &&
           displaced.empty() && cancels.empty() && !reset_prefix_cache && !rest;
  }
};

class Mailbox {
 public:
  // Refused with the reason of close().
  Result<void> submit(Submission submission);
  void cancel(RequestId id);
  // They have lost their places in the queue.
  void displace(const std::vector<RequestId>& ids);
  void reset_prefix_cache();
  void pin(std::vector<steer::KeyedProgram> programs);
  void unpin(std::vector<tap::ContentKey> programs);
  void capture_news(CaptureNews news);

  // Submissions are refused with its `ask->refusal` from now on, where it has one, and taken
  // again where it has not. Gives the order's number.
  uint64_t rest(RestOrder order);

  // Refuses submissions from now on; the first reason stays.
  void close(Error reason);
  Result<void> open() const;  // the reason when closed

  // Swaps what is posted into `commands`, which must be empty; keeps both sides' memory.
  void take(Commands& commands);
  // Returns at once when something is posted, else after a post, a wake or the timeout.
  void wait(int64_t timeout_us);
  void wake();

 private:
  mutable std::mutex mutex_;
  std::condition_variable posted_;
  Commands commands_;
  bool woken_ = false;
  std::optional<Error> closed_;
  uint64_t num_rest_orders_ = 0;
  std::optional<Error> refused_;  // for as long as the engine is to rest
};

}  // namespace rudder::engine
