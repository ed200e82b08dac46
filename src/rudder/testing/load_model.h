// LoadModel: a real Scheduler over a device that takes time by a law and samples any token. It
// keeps no KV and checks nothing, so minutes of serving take seconds: for tests of how long
// sequences wait. What they get is SchedLoop's subject.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/sched/scheduler.h"

namespace rudder::testing {

class LoadModel {
 public:
  using Law = std::function<double(const step::StepPlan&)>;  // microseconds of an iteration

  struct Served {
    int32_t num_tokens = 0;  // of output, asked for
    int64_t arrival_us = 0;
    std::vector<int64_t> token_us;  // when each came
    step::StepId first_step = 0;    // that ran any of it
    step::StepId token_step = 0;    // that gave its first token

    bool done() const { return std::ssize(token_us) == num_tokens; }
  };

  // Runs the scheduler's trials.
  LoadModel(const step::Capacity& capacity, const sched::SchedSettings& settings, Law law);

  // Arrives now. Its output is as long as it may be.
  void add(sched::NewSequence sequence);
  // As the engine does: launches while it may, then commits one iteration. False when nothing is
  // left.
  bool turn();
  void run() {
    while (turn()) {
    }
  }

  int64_t now_us() const { return now_us_; }
  // Nothing happens until then.
  void wait_until(int64_t us) { now_us_ = std::max(now_us_, us); }
  step::StepId last_step() const { return last_step_; }  // launched
  const Served& served(uint64_t id) const { return served_.at(sched::SequenceId(id)); }
  const std::map<sched::SequenceId, Served>& all() const { return served_; }
  sched::Scheduler& scheduler() { return *scheduler_; }

 private:
  struct Launched {
    std::shared_ptr<const step::StepPlan> plan;
    int64_t device_us = 0;
    int64_t end_us = 0;
  };

  bool launch();
  void collect();

  Law law_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::map<sched::SequenceId, Served> served_;
  std::map<int32_t, int32_t> max_len_;  // of the sequence in a slot
  std::deque<Launched> in_flight_;
  std::vector<sched::SequenceOutput> outputs_;
  int64_t now_us_ = 0;
  step::StepId last_step_ = 0;
};

// Clients of which each asks again once it is served; all begin at once.
struct ClosedLoop {
  int32_t clients = 1;
  int32_t prompt_len = 1;
  int32_t shared_len = 0;  // of the prompt: the same for all
  int32_t output_len = 1;
  int32_t requests = 1;  // 0: until the loops beside it are served
  int64_t pause_us = 0;  // that a client makes behind an answer
};

// Milliseconds, by token and by request.
struct LoadFigures {
  double itl_p50 = 0, itl_p99 = 0, ttft_p50 = 0, ttft_p99 = 0, ttft_mean = 0;
  double tokens_per_s = 0;  // of output
};

LoadFigures serve(LoadModel& model, const ClosedLoop& loop);
// Loops beside each other, and what each was served.
std::vector<LoadFigures> serve(LoadModel& model, std::span<const ClosedLoop> loops);

}  // namespace rudder::testing
