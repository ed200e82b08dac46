// StageLink: what the stages of a pipeline (model/stage.h) tell each other. Stages run the same
// iterations in the same order, and count them from 0. A stage hands each to the next one; the last
// one reports to all others what it sampled. Each stage's worker calls it with the stage's index;
// fail() is any thread's. Waiting ends when the pipeline has failed. Who waits for a result
// looks at it again and again; where nothing goes on in any stage, that look fails the pipeline.
//
// What is waited for here is that another stage has enqueued an iteration. That its device has
// computed it, the device waits for (Ops::await); a device that is the host itself has by then.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/base/starvation.h"
#include "rudder/ops/message.h"

namespace rudder::exec {

// The link owns the messages, one of each kind for a step in flight. A message is written again
// when a later step has the same index among those in flight: then the step before it with that
// index has been collected, and every receiver has read the message, or reads it before the step
// comes to the stage that writes it again.
class StageLink {
 public:
  using Messages = std::vector<std::unique_ptr<ops::Message>>;

  // What the state of slots became.
  struct Report {
    int64_t num_slots = 0;
    bool has_latches = false;
    ops::Message* message = nullptr;
  };

  static constexpr int32_t kLookMs = 20;
  static constexpr int32_t kPatienceMs = 2000;

  static constexpr int32_t kStarvedPatienceMs = 60'000;

  // `patience_ms` is for how long nothing may go on. It is counted in looks, so that time in which
  // the whole process stood still (suspended, stopped) does not count; nor does time in which a
  // thread of it wanted a core and got none, as far as kStarvedPatienceMs.
  StageLink(int32_t num_stages, int32_t max_in_flight, int32_t patience_ms = kPatienceMs);

  // Called before the stage's worker starts. `progress` says a number that changes while the stage
  // works (Ops::progress); it lives as long as look() is called.
  void watch(int32_t stage, std::function<uint64_t()> progress);
  // Called before the stage's worker starts: its messages, one for each step in flight.
  void add_messages(int32_t stage, Messages messages);

  // What the stage behind `stage` goes on with; layout: handover.cpp.
  ops::Message& hidden(int32_t stage, size_t flight) const;
  // Of the last stage.
  Report& report(size_t flight) { return reports_[flight]; }

  // The stage has what it waited for, and runs an iteration.
  void begin(int32_t stage);
  // The stage has handed over one more iteration, whose message is posted.
  void hand_over(int32_t stage);
  // Waits until `stage` has handed over `count` iterations.
  Result<void> await(int32_t stage, uint64_t count);
  // The last stage has sampled one more iteration, and its report is posted.
  void hand_back();
  // Waits until `count` iterations are reported; how many are, which may be more.
  Result<uint64_t> await_reports(uint64_t count);

  // The first failure counts.
  void fail(const Error& error);
  // Called about every kLookMs by the thread that waits for a result: how the pipeline is.
  Result<void> look();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Result<void> wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_over);
  uint64_t progress() const;
  std::vector<size_t> still_stages() const;
  Error stillness() const;

  const int32_t patience_;                           // in looks
  std::vector<std::function<uint64_t()>> progress_;  // by stage
  std::vector<bool> is_running_;                     // by stage: an iteration
  uint64_t last_progress_ = 0;
  int32_t num_still_ = 0;    // looks since it changed
  int32_t num_starved_ = 0;  // of those, in which threads got no core
  std::unique_ptr<Starvation> starvation_;
  std::vector<Messages> messages_;     // by stage and flight
  std::vector<Report> reports_;        // by flight
  std::vector<uint64_t> handed_over_;  // by stage
  uint64_t num_reports_ = 0;
  std::optional<Error> fault_;
};

}  // namespace rudder::exec
