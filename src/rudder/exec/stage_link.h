// StageLink: what the stages of a pipeline (model/stage.h) tell each other. Stages run the same
// iterations in the same order, and count them from 0. A stage hands each to the next one; the last
// one reports to all others what it sampled. Each stage's worker calls it with the stage's index;
// fail() is any thread's. Waiting ends when the pipeline has failed. Who waits for a result
// looks at it again and again; where nothing goes on in any stage, that look fails the pipeline.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/ops/args.h"

namespace rudder::exec {

// The memory of messages is the link's, of the host; there is one of each kind for a step in
// flight. It is written again when a later step has the same index among those in flight: then the
// step before it with that index has been collected, and every receiver has read it.
class StageLink {
 public:
  // What the state of slots became.
  struct Sampled {
    std::vector<int32_t> slots;
    bool has_latches = false;
    ops::View bytes;
  };

  static constexpr int32_t kLookMs = 20;
  static constexpr int32_t kPatienceMs = 2000;

  // `patience_ms` is for how long nothing may go on. It is counted in looks, so that time in which
  // the whole process stood still (suspended, stopped) does not count.
  StageLink(int32_t num_stages, int32_t max_in_flight, int32_t patience_ms = kPatienceMs);

  // Called before the stage's worker starts. `progress` says a number that changes while the stage
  // works (Ops::progress); it lives as long as look() is called.
  void watch(int32_t stage, std::function<uint64_t()> progress);
  // Called before the stage's worker starts: the bytes of each of its messages.
  void allocate_hidden(int32_t stage, int64_t bytes);
  void allocate_sampled(int64_t bytes);

  // What the stage behind `stage` goes on with; layout: handover.cpp.
  ops::View hidden(int32_t stage, size_t flight) const;
  Sampled& sampled(size_t flight) { return sampled_[flight]; }

  // The stage has what it waited for, and runs an iteration.
  void begin(int32_t stage);
  // The stage has handed over one more iteration.
  void hand_over(int32_t stage);
  // Waits until `stage` has handed over `count` iterations.
  Result<void> await(int32_t stage, uint64_t count);
  // The last stage has sampled one more iteration, and its report is in place.
  void report();
  // Waits until `count` iterations are reported; how many are, which may be more.
  Result<uint64_t> await_reports(uint64_t count);

  // The first failure counts.
  void fail(const Error& error);
  // Called about every kLookMs by the thread that waits for a result: how the pipeline is.
  Result<void> look();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ops::View allocate(int64_t bytes);
  uint64_t progress() const;
  Error stillness() const;

  const int32_t patience_;                           // in looks
  std::vector<std::function<uint64_t()>> progress_;  // by stage
  std::vector<bool> is_running_;                     // by stage: an iteration
  uint64_t last_progress_ = 0;
  int32_t num_still_ = 0;  // looks since it changed
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::vector<ops::View>> hidden_;  // by stage and flight
  std::vector<Sampled> sampled_;                // by flight
  std::vector<uint64_t> handed_over_;           // by stage
  uint64_t num_reports_ = 0;
  std::optional<Error> fault_;
};

}  // namespace rudder::exec
