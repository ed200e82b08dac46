// EngineCore: the engine without its thread. step() is one turn of the loop: take commands, launch
// the next step, collect the oldest iteration in flight when the pipeline is full, hand out what it
// gave. The core owns the scheduler and the executor, and what runs beside them: open requests
// (RequestTable), their constraints (ConstraintTable), the tap table and who waits for it
// (TapQueue), captures (CaptureBridge), events (Delivery) and counts (EngineMetrics). Replica runs
// it on a thread; the simulator and the tests call it directly. Normative text:
// docs/contracts/engine.md.
//
// step(), end_all() and scheduler() belong to one thread, the engine thread. Everything else may be
// called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "rudder/engine/bounded_queue.h"
#include "rudder/engine/capture_bridge.h"
#include "rudder/engine/commons.h"
#include "rudder/engine/constraint_table.h"
#include "rudder/engine/deadlines.h"
#include "rudder/engine/delivery.h"
#include "rudder/engine/engine.h"
#include "rudder/engine/entropy.h"
#include "rudder/engine/forms.h"
#include "rudder/engine/mailbox.h"
#include "rudder/engine/metrics.h"
#include "rudder/engine/request_starter.h"
#include "rudder/engine/request_table.h"
#include "rudder/engine/step_watch.h"
#include "rudder/engine/tap_queue.h"
#include "rudder/sched/scheduler.h"

namespace rudder::engine {

ReplicaParts replica_parts(Engine::Parts& parts);  // of the first replica, taken out

class EngineCore {
 public:
  // Of an engine with one replica.
  static Result<std::unique_ptr<EngineCore>> create(Engine::Parts parts,
                                                    const EngineSettings& settings,
                                                    const Entropy& entropy);
  static std::unique_ptr<EngineCore> of_replica(ReplicaParts parts,
                                                std::shared_ptr<Commons> commons,
                                                const EngineSettings& settings);

  // As in Engine.
  Result<RequestId> submit(Request request, EventSink sink);
  Result<void> would_accept(const PlaceAsk& ask) const;
  int32_t retry_after_s() const;
  void cancel(RequestId id) { mailbox_.cancel(id); }
  void reset_prefix_cache() { mailbox_.reset_prefix_cache(); }
  Result<void> pin(std::vector<steer::KeyedProgram> programs);
  void unpin(std::vector<tap::ContentKey> programs) { mailbox_.unpin(std::move(programs)); }
  Forms& forms() { return commons_->forms; }
  steer::ProgramTable& programs() { return commons_->programs; }
  steer::capture::Dispatcher* captures() { return captures_.dispatcher(); }
  const RequestLimits& limits() const { return limits_; }
  EngineStats stats() const;
  Result<void> health() const;
  // Posts the order and gives its number; is_at_rest() says when it rests by that, or by any.
  uint64_t rest(RestOrder order) { return mailbox_.rest(std::move(order)); }
  bool is_at_rest(std::optional<uint64_t> order = {}) const {
    return starter_.rest().is_at_rest(order);
  }

  // Refuses submissions from now on, with `reason`.
  void close(Error reason) { mailbox_.close(std::move(reason)); }
  // Requests that were accepted and have not had their last event.
  int64_t num_open() const { return requests_.num_open(); }
  // None is open, and stats() count all that were.
  bool is_idle() const {
    return num_open() == 0 &&
           num_published_.load(std::memory_order_acquire) == requests_.num_finished();
  }

  // What waits for its first step.
  QueueLoad queue_load() const { return queue_.load(); }

  // The engine thread's.
  // Measures the executor (engine/run_trials.h); if at all, before the first step().
  void run_trials();
  // False when there is nothing to do until a command comes.
  bool step();
  // Waits for a command, at most this long.
  void wait(int64_t timeout_us) { mailbox_.wait(timeout_us); }
  void wake() { mailbox_.wake(); }
  // Ends every open request with kCancelled and collects what is in flight.
  void end_all();

  const sched::Scheduler& scheduler() const { return scheduler_; }
  const TapTables& tap_tables() const { return taps_.tables(); }
  size_t num_waiting_for_taps() const { return taps_.size(); }

 private:
  struct Launched {
    step::Ticket ticket;
    StepFacts facts;
    int32_t left = 1;  // iterations to collect
  };

  EngineCore(ReplicaParts parts, std::shared_ptr<Commons> commons, const EngineSettings& settings,
             const step::Capacity& capacity);

  bool turn();
  void take_commands();
  void admit(Submission& submission);
  void refuse(Submission& submission, const Error& error);
  PlaceAsk within_deadline(PlaceAsk ask) const;
  void end_displaced(RequestId id);
  void end_late();
  bool launch_next();
  bool start_afresh();
  // The step launched last has constrained sequences whose masks it still waits for.
  bool awaits_masks() const { return awaits_masks_ && !dead_; }
  void supply_masks();
  void collect_oldest();
  void note_first_planned(int64_t now_us);
  void die(const Error& cause);
  void give_up(const Error& cause);
  void publish_stats() {
    metrics_.publish(scheduler_.stats(), taps_.size(), taps_.tables().rows().stats());
    num_published_.store(requests_.num_finished(), std::memory_order_release);
  }

  const std::unique_ptr<step::Executor> executor_;
  const std::unique_ptr<sched::DraftProposer> proposer_;  // before the scheduler, which calls it
  const std::shared_ptr<const Clock> clock_;
  cache::BlockWatcher* const block_watcher_;  // null: none
  const EngineSettings settings_;
  const int32_t depth_;  // iterations in flight that fill the pipeline

  // Any thread.
  BoundedQueue queue_;  // before everything that may hold a place in it
  Mailbox mailbox_;
  const std::shared_ptr<Commons> commons_;  // its captures are posted to the mailbox
  std::atomic<bool> dead_{false};
  StepWatch watch_;
  std::atomic<int64_t> num_published_{0};  // finished requests that the published stats count

  // Engine thread.
  sched::Scheduler scheduler_;
  const RequestLimits limits_;  // set before the first call, then read by any thread
  EngineMetrics metrics_;
  RequestTable requests_;
  ConstraintTable constraints_;
  TapQueue taps_;
  Deadlines deadlines_;
  CaptureBridge captures_;
  Delivery delivery_;                // of what the members above hold
  RequestStarter starter_;           // likewise
  std::vector<Launched> in_flight_;  // oldest first; a handful
  bool awaits_masks_ = false;
  int64_t collected_us_ = 0;                    // when the last iteration was
  Commands commands_;                           // scratch
  std::vector<sched::SequenceOutput> outputs_;  // scratch
  std::vector<float> watched_row_;              // scratch
};

}  // namespace rudder::engine
