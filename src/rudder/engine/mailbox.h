// Mailbox: what other threads ask of the engine thread. They post, it takes everything at once at
// the next step boundary. Closed with a reason when the engine drains, dies or stops: from then on
// a submission is refused, and none that was accepted is lost.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/admission.h"
#include "rudder/engine/event.h"
#include "rudder/engine/request.h"
#include "rudder/text/stop_strings.h"

namespace rudder::engine {

struct Submission {
  RequestId id;
  Request request;
  std::shared_ptr<const text::StopSet> stops;  // of the request's stop strings; null for none
  EventSink sink;
  Admission::Place place;
  int64_t arrival_us = 0;
};

// In the order of posting, except that cancels come after submissions: an id is known to others
// only after its submission was posted.
struct Commands {
  std::vector<Submission> submissions;
  std::vector<RequestId> cancels;
  bool reset_prefix_cache = false;

  bool empty() const { return submissions.empty() && cancels.empty() && !reset_prefix_cache; }
};

class Mailbox {
 public:
  // Refused with the reason of close().
  Result<void> submit(Submission submission);
  void cancel(RequestId id);
  void reset_prefix_cache();

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
};

}  // namespace rudder::engine
