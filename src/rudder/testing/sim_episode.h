// One episode of the simulator: one small machine from its first request to its last block freed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rudder/base/contain.h"
#include "rudder/testing/fake_captures.h"
#include "rudder/testing/random_proposer.h"
#include "rudder/testing/sim.h"
#include "rudder/testing/sim_config.h"
#include "rudder/testing/sim_reference.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::testing {

// Thrown where an invariant does not hold; the engine lets it pass.
struct SimViolation : Uncontained {
  explicit SimViolation(std::string what) : text(std::move(what)) {}
  std::string text;
};

class SimEpisode {
 public:
  SimEpisode(uint64_t seed, SimCoverage* coverage);

  // To its end; throws SimViolation, after which the episode must not be destroyed.
  void run();

  uint64_t steps() const { return step_; }
  uint64_t planned_steps() const { return core_->scheduler().stats().steps; }
  uint64_t trace_hash() const { return trace_hash_; }
  std::vector<std::string> last_notes() const;

 private:
  struct Choice {
    std::vector<int32_t> tokens;
    std::vector<engine::OutputToken> scores;
    std::string text;
    bool finished = false;
  };
  struct Client {
    engine::RequestId id;
    engine::RequestParams params;                   // as validated
    std::shared_ptr<const tap::SequenceTaps> taps;  // as drawn
    int32_t max_len = 0;
    bool fresh_salt = false;
    std::vector<uint64_t> constraint_seeds;
    bool started = false;    // a sequence of it has been planned
    bool cancelled = false;  // asked for
    bool outranked = false;  // while it waited one of higher priority came
    int64_t arrival_us = 0;
    int64_t deadline_us = 0;  // to begin; 0: none
    uint64_t first_sequence = 0;
    int32_t num_open = 0;
    uint64_t times_overtaken = 0;            // by requests that came later, of its own tenant
    uint64_t times_overtaken_by_others = 0;  // as the first of its tenant
    uint64_t last_progress = 0;              // planned steps then
    std::vector<Choice> choices;
  };
  enum class NoteKind : uint8_t {
    kSubmit,
    kRefused,
    kCancel,
    kTokens,
    kFinish,
    kReset,
    kRest,
    kEnding
  };
  struct Note {
    uint64_t step = 0;
    NoteKind kind = NoteKind::kSubmit;
    uint64_t request = 0;
    int64_t a = 0;
    int64_t b = 0;
  };

  // sim_episode.cpp: what clients do.
  void turn();
  void arrive();
  void cancel_one();
  bool advance();
  void pin_some();
  void rest_now_and_then();
  void go_on();
  void end_by_drain();
  void end_by_stop();
  void note(NoteKind kind, engine::RequestId id, int64_t a, int64_t b);

  // sim_check.cpp: what must hold.
  void on_event(Client& client, engine::Event&& event);
  void check_finish(const Client& client, const engine::Event& event);
  void check_captures(const Client& client, const engine::Event& event,
                      const SimExpected& expected);
  void continue_later(const Client& client, const Choice& choice);
  void check_scores(const Client& client, const engine::Event& event,
                    const SimExpected& expected) const;
  bool waits_for_captures() const;
  void check_tokens(const Client& client, const engine::Event& event) const;
  void note_started();
  void note_overtaken(const Client& started);
  bool is_first_of_tenant(const Client& client) const;
  void check_step(bool more);
  void check_devices(const sched::SchedStats& sched);
  void check_gauges(const sched::SchedStats& sched) const;
  void check_clients();
  void check_deadlines(int64_t since_us) const;
  bool is_turned_away(const Client& client, const engine::Event& event) const;
  void check_refused_when_closed();
  void check_all_freed();
  void require(bool holds, const char* what) const;

  // sim_check.cpp: its prompt and all that it will be given, as far as that is known.
  std::span<const int32_t> whole_of(sched::SequenceId id);

  SimRandom random_;
  SimConfig config_;  // its families alone change
  SimCoverage* const coverage_;
  std::shared_ptr<VirtualClock> clock_ = std::make_shared<VirtualClock>();
  FakeOptions fake_;  // with the clock
  std::unique_ptr<step::Executor> make_executor();

  std::vector<FakeExecutor*> ranks_;
  FakeExecutor* executor_ = nullptr;  // the first of them
  int64_t num_running_ = 0;           // before the turn
  FakeCaptures* captures_ = nullptr;
  std::vector<tap::ContentKey> pinned_;
  std::unique_ptr<engine::EngineCore> core_;

  std::vector<std::unique_ptr<Client>> clients_;  // open, any order
  std::vector<Client*> by_sequence_;              // null when its request has ended
  std::unordered_map<sched::SequenceId, std::vector<int32_t>> wholes_;
  bool dead_ = false;
  bool closing_ = false;
  SimRandom rest_random_;  // of its own: what else is drawn does not depend on rests
  bool rests_ = false;     // it is to rest, or does
  int32_t num_rests_ = 0;
  bool rest_keeps_ = false;  // what is cached
  uint64_t step_ = 0;
  uint64_t serial_ = 0;
  engine::RequestId last_ended_;
  int32_t idle_lag_ = 0;  // turns since the last open choice, while blocks are still held
  uint64_t trace_hash_ = 0;
  std::deque<Note> notes_;
};

}  // namespace rudder::testing
