// EngineHost: what an engine process runs: an engine, told by the front over a channel what to do.
// Made and run by the process's main thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "rudder/base/result.h"
#include "rudder/engine/engine.h"
#include "rudder/remote/channel.h"
#include "rudder/remote/messages.h"
#include "rudder/remote/told_adapters.h"

namespace rudder::remote {

class EngineHost {
 public:
  static constexpr int64_t kPulseMs = 250;

  // The engine has one replica. All outlive it.
  EngineHost(engine::Engine& engine, const std::string& dtype, Channel& channel);
  ~EngineHost();
  EngineHost(const EngineHost&) = delete;
  EngineHost& operator=(const EngineHost&) = delete;

  // Serves until the front ends (no Error), or until this process is to end without it: the engine
  // is dead, what came is no message, or `watch`, which is called four times a second, says so.
  Result<void> run(const std::function<Result<void>()>& watch);

 private:
  // A request between its Submit and its last event.
  struct Open {
    uint64_t id = 0;
    bool streams = false;
    int32_t num_choices = 0;
    int32_t num_finished = 0;           // the sink's
    std::vector<engine::Event> events;  // held until all are there, of one that does not stream
    std::optional<engine::RequestId> engine_id;
    bool is_cancelled = false;
  };

  void handle(Submit message);
  void handle(const Cancel& message);
  void handle(const Compile& message);
  void handle(Pin message);
  void handle(const Unpin& message);
  void handle(const AskCapture& message);
  void handle(const AskPulse& message) { send_pulse(message.id); }
  void handle(const ResetPrefixCache& /*message*/) { engine_.reset_prefix_cache(); }
  void handle(AdapterText message);
  void handle(const AdapterBytes& message);
  void handle(const ForgetAdapter& message);

  void compile_then_submit(const std::shared_ptr<Submit>& message, size_t next);
  Result<void> submit(Submit& message);
  void take(const std::shared_ptr<Open>& open, engine::Event&& event);
  void refuse(uint64_t id, const Error& error);
  Result<std::shared_ptr<const steer::capture::CaptureSpec>> spec_of(const CaptureText& text);
  void send_pulse(uint64_t id);
  bool is_dead() const;
  void send(const FromEngine& message) { channel_.send(Channel::frame(message)); }

  engine::Engine& engine_;
  Channel& channel_;
  std::optional<Error> wrong_;  // what came is no message
  std::mutex mutex_;
  HeldAdapters adapters_;
  std::unordered_map<uint64_t, std::shared_ptr<Open>> open_;
  std::deque<engine::FormLease> leases_;  // of grammars that were compiled lately
};

}  // namespace rudder::remote
