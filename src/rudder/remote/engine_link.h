// EngineLink: one engine process as the front has it, and a thread that starts it, hears it, and
// starts another where it ends. Requests that had no event are told to the next process; the others
// end with a typed error. Any thread; sinks are called on the link's own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/base/result.h"
#include "rudder/engine/engine.h"
#include "rudder/remote/channel.h"
#include "rudder/remote/engine_process.h"
#include "rudder/remote/messages.h"
#include "rudder/remote/open_compiles.h"
#include "rudder/remote/open_requests.h"
#include "rudder/remote/questions.h"
#include "rudder/remote/restart_pace.h"
#include "rudder/remote/told_adapters.h"

namespace rudder::remote {

struct LinkSettings {
  EngineCommand command;
  int64_t max_requests = 0;  // that wait while there is no process
  int64_t max_tokens = 0;    // of their prompts
  int64_t stuck_us = 0;      // without a word of the process makes health() fail
};

class EngineLink {
 public:
  explicit EngineLink(LinkSettings settings);
  ~EngineLink();  // ends the process; what is open ends with kCancelled
  EngineLink(const EngineLink&) = delete;
  EngineLink& operator=(const EngineLink&) = delete;

  // What the first process says of itself, or why it does not serve.
  Result<Ready> wait_ready();

  // kOverloaded: there is no process, and as many requests wait as may. kUnavailable: there will be
  // none any more, or close() was called.
  Result<void> submit(OpenRequest request);
  Result<void> would_accept(int64_t tokens) const;
  void cancel(uint64_t id);
  // Calls `done` on the link's thread, or at once where there will be no process any more.
  void compile(const constraint::GrammarSpec& spec, int32_t tenant, engine::FormCompiled done);

  // Questions, each answered within a second or kUnavailable.
  Result<void> pin(const std::vector<ProgramText>& programs);
  Result<std::optional<SpecText>> capture(const CaptureText& text);
  // With `asks` a new one, where the process says more in time. Counters are of all processes.
  Pulse pulse(bool asks) const;

  void unpin(const std::vector<tap::ContentKey>& programs);
  void reset_prefix_cache();

  Result<void> health() const;
  uint64_t num_crashes() const { return num_crashes_.load(std::memory_order_relaxed); }
  int64_t open_work() const;         // that is left to do for its requests, in tokens
  void close(const Error& refusal);  // submit() refuses with it
  bool is_idle() const;

 private:
  enum class State : uint8_t { kDown, kUp, kDead };
  struct Said {
    Pulse pulse;                 // the latest
    engine::EngineStats before;  // counters of the processes that have ended
    int64_t heard_us = 0;        // when it said it
  };

  Questions::Reply ask(uint64_t id, const std::string& frame, int64_t patience_ms) const;
  void send(const std::string& frame);  // with the lock

  void supervise();
  Error serve_one(EngineProcess& process);
  std::optional<Error> handle(FromEngine message);
  bool note_pulse(Pulse pulse);
  void go_up(Ready ready);
  bool come_down(const Error& why, const EngineProcess::End& end, int64_t wait_ms);
  bool wait_to_start(int64_t wait_ms);
  bool end_overdue();
  void give_up();

  const LinkSettings settings_;
  const SteadyClock clock_;
  mutable std::atomic<uint64_t> next_number_{1};
  std::atomic<uint64_t> num_crashes_{0};

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;  // of the state
  State state_ = State::kDown;
  bool is_stopping_ = false;
  std::optional<Error> refusal_;  // of requests: there will be no process, or close() was called
  std::optional<Ready> ready_;    // of the first process
  std::shared_ptr<Channel> channel_;  // null: there is no process; used where it is up
  OpenRequests open_;
  OpenCompiles compiles_;
  mutable Questions questions_;
  std::vector<ProgramText> pinned_;
  ToldAdapters adapters_;
  Said said_;
  RestartPace pace_;    // the thread's
  std::thread thread_;  // last: it uses the others
};

}  // namespace rudder::remote
