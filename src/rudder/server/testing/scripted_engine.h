// ScriptedEngine: an engine::Engine for the tests of this room. It sends what a script says, one
// token a tick, from a thread of its own. It has no model and no scheduler.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rudder/engine/engine.h"
#include "rudder/engine/resolved_taps.h"

namespace rudder::server {

struct Script {
  std::vector<engine::Event> events;  // of each choice; id, choice and usage are filled in
  int64_t tick_us = 0;                // between events
  bool hold = false;                  // says nothing until release()
  bool endless = false;               // begins again after its last event
  bool keep_sink = false;             // until the engine is destroyed
  int32_t cached_tokens = 0;
};

// Events that say `pieces`, one token each, and end with `finish`.
Script say(std::vector<std::string> pieces,
           engine::FinishReason finish = engine::FinishReason::kStop);

// Says `piece` every `tick_us`, and never ends by itself.
Script say_endlessly(std::string piece, int64_t tick_us);

class ScriptedEngine final : public engine::Engine {
 public:
  using Author = std::function<Script(const engine::RequestParams& params)>;

  explicit ScriptedEngine(Author author, int32_t max_seq_len = 4096);
  ~ScriptedEngine() override;

  Result<engine::RequestId> submit(engine::Request request, engine::EventSink sink) override;
  Result<void> would_accept(const engine::PlaceAsk& ask) const override;
  int32_t retry_after_s() const override { return retry_after_s_; }
  void compile(const constraint::GrammarSpec& spec, int32_t tenant,
               engine::FormCompiled done) override {
    forms_->compile(spec, tenant, std::move(done));
  }
  constraint::GrammarStats grammar_stats() const override { return forms_->stats(); }
  // Before a server is started on it; without it no output can have a grammar.
  void set_grammars(std::unique_ptr<constraint::GrammarSource> grammars);
  void cancel(engine::RequestId id) override;
  engine::RequestLimits limits() const override;
  engine::EngineStats stats() const override;
  Result<void> health() const override;
  // As many as set_replicas() said, all alike; the last of them is stuck where that says so.
  std::vector<engine::ReplicaState> replicas() const override;
  bool drain(int64_t) override { return true; }
  void reset_prefix_cache() override {}
  Result<void> rest(const engine::RestAsk& ask, int64_t timeout_us) override;
  void resume(const std::optional<std::string>& identity) override;
  Result<void> pin(std::vector<steer::KeyedProgram>) override { return {}; }
  void unpin(std::vector<tap::ContentKey>) override {}
  steer::ProgramTable& programs() override { return *programs_; }
  steer::capture::Dispatcher* captures() override { return captures_.get(); }
  // Before a server is started on it: it steers and captures, for all that a server sees.
  void set_taps(const tap::Geometry& geometry, const tap::Limits& limits,
                std::unique_ptr<steer::capture::Dispatcher> captures);

  // What it was told of rests, in order: the mode's number, or the identity to go on under.
  std::vector<std::string> rests() const;
  void set_never_rests(bool never) { never_rests_ = never; }  // rest() runs out of time

  void release();  // held scripts go on
  void set_full(bool full) { full_ = full; }
  void set_retry_after(int32_t seconds) { retry_after_s_ = seconds; }
  void set_stuck(bool stuck) { stuck_ = stuck; }
  void set_dead(bool dead) { dead_ = dead; }                  // all replicas
  void set_replicas(size_t count) { num_replicas_ = count; }  // before a server is started on it
  void set_last_stuck(bool stuck) { last_stuck_ = stuck; }

  size_t num_active() const;
  size_t num_cancelled() const { return num_cancelled_; }
  int64_t last_cancel_us() const { return last_cancel_us_; }
  std::vector<engine::RequestParams> submitted() const;      // all submitted, in order
  std::vector<engine::ResolvedTaps> submitted_taps() const;  // what they name, likewise
  uint64_t events_sent() const { return events_sent_; }
  int64_t sink_ns() const { return sink_ns_; }  // spent in sinks

 private:
  struct Running {
    engine::EventSink sink;
    Script script;
    engine::RequestParams params;
    int64_t num_said = 0;
    int64_t due_us = 0;
    bool cancelled = false;
  };

  void stir();  // with the lock held
  void loop();
  // Sends what is due of one request; false when it has ended. The lock is not held in sinks:
  // cancel() does not wait for a request that sends without pause.
  bool advance(std::unique_lock<std::mutex>& lock, uint64_t id, Running& running);
  void send(uint64_t id, Running& running, int32_t choice, engine::Event event);

  tap::Geometry geometry_;
  tap::Limits taps_;
  const SteadyClock clock_;
  std::unique_ptr<engine::Forms> forms_ = std::make_unique<engine::Forms>(nullptr, 320, clock_);
  std::unique_ptr<steer::ProgramTable> programs_ =
      std::make_unique<steer::ProgramTable>(tap::Limits());
  std::unique_ptr<steer::capture::Dispatcher> captures_;
  const Author author_;
  const int32_t max_seq_len_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Running> running_;
  std::vector<engine::EventSink> kept_;
  std::vector<engine::RequestParams> submitted_;
  std::vector<engine::ResolvedTaps> submitted_taps_;
  std::vector<std::string> rests_;
  std::optional<Error> rest_refusal_;
  std::atomic<bool> never_rests_{false};
  uint64_t next_id_ = 1;
  bool stirred_ = false;  // something was asked for since the loop looked
  bool stopping_ = false;
  std::atomic<bool> full_{false};
  std::atomic<int32_t> retry_after_s_{1};
  std::atomic<bool> stuck_{false};
  std::atomic<bool> dead_{false};
  size_t num_replicas_ = 1;
  std::atomic<bool> last_stuck_{false};
  std::atomic<size_t> num_cancelled_{0};
  std::atomic<int64_t> last_cancel_us_{0};
  std::atomic<uint64_t> events_sent_{0};
  std::atomic<int64_t> sink_ns_{0};
  std::thread thread_;
};

}  // namespace rudder::server
