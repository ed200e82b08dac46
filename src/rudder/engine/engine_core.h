// EngineCore: the engine without its thread. Owns the scheduler, the executor, the table of open
// requests and the metrics; step() is one turn of the loop: take commands, launch the next step,
// collect the oldest iteration in flight when the pipeline is full, hand out what it gave. Engine
// runs it on a thread;
// the simulator and the tests call it directly. Normative text: docs/contracts/engine.md.
//
// step(), end_all() and scheduler() belong to one thread, the engine thread. Everything else may be
// called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rudder/engine/admission.h"
#include "rudder/engine/choice_output.h"
#include "rudder/engine/engine.h"
#include "rudder/engine/mailbox.h"
#include "rudder/engine/tap_tables.h"
#include "rudder/engine/token_masks.h"
#include "rudder/sched/scheduler.h"

namespace rudder::engine {

// What must not be guessed from outside: the key of the prefix hashes and of the seeds drawn for
// requests that bring none.
struct Entropy {
  std::array<uint64_t, 2> hash_key = {};
  uint64_t seed_key = 0;
  int32_t hash_bits = 128;  // kept of a prefix key; tests force collisions with few

  static Entropy from_system();
};

class EngineCore {
 public:
  static Result<std::unique_ptr<EngineCore>> create(Engine::Parts parts,
                                                    const EngineSettings& settings,
                                                    const Entropy& entropy);

  // As in Engine.
  Result<RequestId> submit(Request request, EventSink sink);
  Result<void> would_accept(int64_t prompt_tokens) const;
  void cancel(RequestId id) { mailbox_.cancel(id); }
  void reset_prefix_cache() { mailbox_.reset_prefix_cache(); }
  Result<void> pin(std::vector<steer::KeyedProgram> programs);
  void unpin(std::vector<tap::ContentKey> programs) { mailbox_.unpin(std::move(programs)); }
  steer::capture::Dispatcher* captures() { return captures_.get(); }
  const RequestLimits& limits() const { return limits_; }
  EngineStats stats() const;
  Result<void> health() const;

  // Refuses submissions from now on, with `reason`.
  void close(Error reason) { mailbox_.close(std::move(reason)); }
  // Requests that were accepted and have not had their last event.
  int64_t num_open() const { return num_open_.load(std::memory_order_acquire); }

  // What waits for its first step.
  Admission::Load queue_load() const { return admission_.load(); }

  // The engine thread's.
  // False when there is nothing to do until a command comes.
  bool step();
  // Waits for a command, at most this long.
  void wait(int64_t timeout_us) { mailbox_.wait(timeout_us); }
  void wake() { mailbox_.wake(); }
  // Ends every open request with kCancelled and collects what is in flight.
  void end_all();

  const sched::Scheduler& scheduler() const { return scheduler_; }
  const TapTables& tap_tables() const { return tables_; }
  size_t num_waiting_for_taps() const { return waiting_for_taps_.size(); }

 private:
  struct Choice {
    explicit Choice(ChoiceOutput made) : output(std::move(made)) {}

    ChoiceOutput output;
    bool open = true;
    bool has_sequence = true;           // its sequence has not ended
    steer::capture::CaptureId capture;  // value 0: none
    std::optional<Event> last_event;    // held back until the capture's results are there
    int32_t cached_tokens = 0;
    std::optional<int64_t> first_token_us;
    int64_t last_token_us = 0;
  };
  struct Open {
    RequestId id;
    EventSink sink;
    Admission::Place place;
    std::vector<sched::SequenceId> sequences;  // by choice
    std::vector<Choice> choices;
    int32_t num_open = 0;
    int32_t num_sequences = 0;  // not ended
    int32_t prompt_tokens = 0;
    int32_t max_tokens = 0;
    bool ignore_eos = false;
    bool tells_captures = false;
    int64_t arrival_us = 0;
    std::optional<int64_t> first_planned_us;  // absent: waits

    std::optional<Request> unscheduled;  // until the scheduler has its sequences
    int32_t priority = 0;
    uint64_t waiting_since = 0;  // steps launched before it came
    uint64_t seed = 0;
    std::optional<sched::TapLease> lease;  // while sequences with taps run
  };
  // Who waits for rows of the tap table or for a capture set: by priority, then by arrival.
  struct ByUrgency {
    bool operator()(const Open* a, const Open* b) const {
      return a->priority != b->priority ? a->priority < b->priority : a->id < b->id;
    }
  };
  struct Target {
    Open* request = nullptr;
    int32_t choice = 0;
  };

  EngineCore(Engine::Parts parts, const EngineSettings& settings, const Entropy& entropy,
             const step::Capacity& capacity);

  // engine_core.cpp: the loop.
  void take_commands();
  void admit(Submission submission);
  void schedule(Open& request);
  bool launch_next();
  void collect_oldest();
  void die(const Error& cause);
  void show_life(bool busy);
  void publish_stats();

  // engine_constraints.cpp: masks.
  void begin_constraints(const Open& request, const RequestParams& params);
  bool awaits_masks() const { return awaits_masks_ && !dead_; }
  void supply_masks();
  void advance_constraints();
  void end_failed();

  // engine_taps.cpp: steering and capture.
  void schedule_waiting();
  void promote_starved();
  void end_sequence(Open& request, Choice& choice);
  void begin_captures(Open& request);
  void hand_out_captures(const step::StepResult& result);
  void hold_last_event(const Open& request, Choice& choice, Event event);
  void take_capture_news(CaptureNews news);

  // engine_output.cpp: from outputs to events.
  void deliver(const sched::SequenceOutput& output, int64_t now_us);
  bool is_eos(const Open& request, int32_t token) const;
  bool push_tokens(const sched::SequenceOutput& output, Choice& choice, Event& event);
  void finish_choice(Open& request, int32_t index, Event event, FinishReason reason,
                     int64_t now_us);
  void send_last_event(Open& request, Choice& choice, Event event);
  void end_request(RequestId id, FinishReason reason, const std::optional<Error>& error);
  void end_every_request(FinishReason reason, const std::optional<Error>& error);
  void forget_if_finished(const Open& request);
  void note_first_planned(int64_t now_us);
  void note_tokens(const Open& request, Choice& choice, size_t count, int64_t now_us);
  void note_finish(const Open& request, const Choice& choice, FinishReason reason, int64_t now_us);
  Usage usage(const Open& request, const Choice& choice) const;

  const std::unique_ptr<step::Executor> executor_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const std::shared_ptr<const Clock> clock_;
  const EngineSettings settings_;
  const Entropy entropy_;
  const int32_t depth_;  // iterations in flight that fill the pipeline

  // Any thread.
  Admission admission_;  // before everything that may hold a place in it
  Mailbox mailbox_;
  std::atomic<uint64_t> next_request_{1};
  std::atomic<int64_t> num_open_{0};
  std::atomic<uint64_t> num_rejected_{0};
  std::atomic<bool> dead_{false};
  std::atomic<int64_t> sign_of_life_{0};  // twice the time, plus 1 when it went into work
  mutable std::mutex stats_mutex_;
  EngineStats published_;

  // Engine thread.
  sched::Scheduler scheduler_;
  const RequestLimits limits_;  // set before the first call, then read by any thread
  struct Launched {
    step::Ticket ticket;
    int32_t left = 1;  // iterations to collect
  };
  std::deque<Launched> in_flight_;
  std::unordered_map<RequestId, std::unique_ptr<Open>> requests_;
  std::unordered_map<sched::SequenceId, Target> targets_;  // of open choices
  uint64_t next_sequence_ = 1;
  std::unordered_map<sched::SequenceId, ChoiceConstraint> constraints_;  // of open choices
  MaskMaker mask_maker_;
  bool awaits_masks_ = false;                                // the step launched last
  std::vector<MaskMaker::Row> mask_rows_;                    // scratch
  std::vector<std::pair<sched::SequenceId, Error>> failed_;  // whose constraint has
  TapTables tables_;
  std::set<Open*, ByUrgency> waiting_for_taps_;
  std::vector<steer::capture::CaptureId> captures_by_row_;  // scratch
  Commands commands_;                                       // scratch
  std::vector<sched::SequenceOutput> outputs_;              // scratch
  EngineStats live_;

  std::unique_ptr<steer::capture::Dispatcher> captures_;  // first to go: it posts to the mailbox
};

}  // namespace rudder::engine
