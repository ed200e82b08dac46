#include "rudder/remote/engine_host.h"

#include <boost/json.hpp>
#include <chrono>
#include <utility>
#include <variant>

#include "rudder/base/json.h"
#include "rudder/engine/request.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::remote {
namespace {

constexpr size_t kMaxLeases = 64;

tl::unexpected<Error> is_gone() {
  return fail(ErrorCode::kInternal, "the engine has failed");
}

// So that the table of programs takes them: what the positions are is not its matter.
tap::SequenceTaps taps_of(std::vector<ProgramText> programs) {
  tap::SequenceTaps taps;
  for (ProgramText& program : programs) {
    const auto begin = static_cast<int32_t>(taps.segments.size());
    const tap::ContentKey key = program.key;
    taps.segments.push_back(
        {.begin = begin, .content = key, .program = program_of(std::move(program))});
  }
  return taps;
}

}  // namespace

EngineHost::EngineHost(engine::Engine& engine, const std::string& dtype, Channel& channel)
    : engine_(engine), channel_(channel) {
  send(
      Ready{.limits = engine_.limits(), .captures = engine_.captures() != nullptr, .dtype = dtype});
  send_pulse(0);
}

// Events that come from now on, of an engine that stops, go nowhere.
EngineHost::~EngineHost() {
  channel_.shut();
}

bool EngineHost::is_dead() const {
  const Result<void> health = engine_.health();
  return !health && health.error().code == ErrorCode::kInternal;
}

Result<void> EngineHost::run(const std::function<Result<void>()>& watch) {
  auto next_pulse = std::chrono::steady_clock::now();
  while (true) {
    auto message = channel_.receive_as<ToEngine>(kPulseMs);
    if (!message) {
      if (message.error().code == ErrorCode::kUnavailable)
        return is_dead() ? is_gone() : Result<void>();
      return tl::unexpected<Error>(message.error());
    }
    if (*message) {
      std::visit([this](auto&& held) { handle(std::forward<decltype(held)>(held)); },
                 std::move(**message));
    }
    if (wrong_) return tl::unexpected<Error>(*wrong_);
    const auto now = std::chrono::steady_clock::now();
    if (now < next_pulse) continue;
    next_pulse = now + std::chrono::milliseconds(kPulseMs);
    if (is_dead()) return is_gone();
    send_pulse(0);
    RUDDER_TRY_VOID(watch());
  }
}

void EngineHost::refuse(uint64_t id, const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    open_.erase(id);
  }
  send(Refused{.id = id, .error = error});
}

void EngineHost::handle(Submit message) {
  auto open = std::make_shared<Open>();
  open->id = message.id;
  open->streams = message.params.capture_delivery.events;
  open->num_choices = message.params.n;
  {
    const std::lock_guard lock(mutex_);
    open_.emplace(message.id, std::move(open));
  }
  compile_then_submit(std::make_shared<Submit>(std::move(message)), 0);
}

// Grammars from `next` on are compiled, one after the other; at once where they are known. Then the
// request is submitted, while what was compiled last is held by who calls back.
void EngineHost::compile_then_submit(const std::shared_ptr<Submit>& message, size_t next) {
  const std::vector<constraint::ConstraintSpec>& constraints = message->params.constraints;
  while (next < constraints.size() &&
         !std::holds_alternative<constraint::GrammarSpec>(constraints[next])) {
    ++next;
  }
  if (next == constraints.size()) {
    const uint64_t id = message->id;
    if (const Result<void> taken = submit(*message); !taken) refuse(id, taken.error());
    return;
  }
  const auto& grammar = std::get<constraint::GrammarSpec>(constraints[next]);
  engine_.compile(grammar, message->params.tenant,
                  [this, message, next](const Result<engine::FormLease>& compiled) {
                    if (!compiled) return refuse(message->id, compiled.error());
                    compile_then_submit(message, next + 1);
                  });
}

Result<void> EngineHost::submit(Submit& message) {
  std::shared_ptr<Open> open;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(message.id);
    if (found == open_.end()) return {};
    open = found->second;
  }
  std::shared_ptr<const tap::SequenceTaps> programs;
  if (!message.programs.empty()) {
    RUDDER_TRY(programs, engine_.programs().keep(taps_of(std::move(message.programs))));
  }
  std::shared_ptr<const steer::capture::CaptureSpec> spec;
  if (message.capture) {
    RUDDER_TRY(spec, spec_of(*message.capture));
    if (spec != nullptr) message.params.capture = spec->id;
  }
  if (message.adapter) {
    const std::lock_guard lock(mutex_);
    RUDDER_TRY(message.params.adapter, adapters_.find(*message.adapter));
  }
  RUDDER_TRY(engine::Request request,
             engine::validate_request(std::move(message.params), engine_.limits()));
  RUDDER_TRY(const engine::RequestId id,
             engine_.submit(std::move(request),
                            [this, open](engine::Event&& event) { take(open, std::move(event)); }));
  bool is_cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    open->engine_id = id;
    is_cancelled = open->is_cancelled;
  }
  if (is_cancelled) engine_.cancel(id);
  return {};
}

// On the engine thread.
void EngineHost::take(const std::shared_ptr<Open>& open, engine::Event&& event) {
  // An engine that fails ends its requests. They are not told: another process has them next.
  if (event.error && event.error->code == ErrorCode::kInternal && is_dead()) return channel_.shut();
  const bool is_end = event.finish.has_value() && ++open->num_finished == open->num_choices;
  Events message{.id = open->id, .events = {}};
  if (open->streams) {
    message.events.push_back(std::move(event));
  } else {
    open->events.push_back(std::move(event));
    if (!is_end) return;
    message.events = std::move(open->events);
  }
  if (is_end) {
    const std::lock_guard lock(mutex_);
    open_.erase(open->id);
  }
  send(std::move(message));
}

void EngineHost::handle(const Cancel& message) {
  std::optional<engine::RequestId> id;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(message.id);
    if (found == open_.end()) return;
    found->second->is_cancelled = true;
    id = found->second->engine_id;
  }
  if (id) engine_.cancel(*id);
}

void EngineHost::handle(const Compile& message) {
  engine_.compile(message.spec, message.tenant,
                  [this, id = message.id](const Result<engine::FormLease>& compiled) {
                    Answer answer{.id = id, .error = {}};
                    if (!compiled) {
                      answer.error = compiled.error();
                    } else {
                      const std::lock_guard lock(mutex_);
                      leases_.push_back(*compiled);
                      if (leases_.size() > kMaxLeases) leases_.pop_front();
                    }
                    send(std::move(answer));
                  });
}

void EngineHost::handle(Pin message) {
  std::vector<steer::KeyedProgram> programs;
  for (ProgramText& text : message.programs) {
    const tap::ContentKey key = text.key;
    programs.push_back({.key = key, .program = program_of(std::move(text))});
  }
  Answer answer{.id = message.id, .error = {}};
  if (Result<void> pinned = engine_.pin(std::move(programs)); !pinned) {
    answer.error = pinned.error();
  }
  send(std::move(answer));
}

void EngineHost::handle(const Unpin& message) {
  engine_.unpin(message.programs);
}

Result<std::shared_ptr<const steer::capture::CaptureSpec>> EngineHost::spec_of(
    const CaptureText& text) {
  steer::capture::Dispatcher* const captures = engine_.captures();
  if (captures == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "this server was started without capture", "capture");
  }
  std::optional<steer::capture::StopWhen> stop;
  if (text.stop) stop = stop_of(*text.stop);
  if (text.field.empty()) return captures->spec(nullptr, std::move(stop));
  RUDDER_TRY(const boost::json::value field, parse_json(text.field, "capture"));
  return captures->spec(&field, std::move(stop));
}

void EngineHost::handle(AdapterText message) {
  const std::lock_guard lock(mutex_);
  if (Result<void> begun = adapters_.begin(std::move(message)); !begun) wrong_ = begun.error();
}

void EngineHost::handle(const AdapterBytes& message) {
  const std::lock_guard lock(mutex_);
  if (Result<void> taken = adapters_.append(message); !taken) wrong_ = taken.error();
}

void EngineHost::handle(const ForgetAdapter& message) {
  const std::lock_guard lock(mutex_);
  adapters_.forget(message.key);
}

void EngineHost::handle(const AskCapture& message) {
  CaptureMade made{.id = message.id, .error = {}, .spec = {}};
  if (const auto spec = spec_of(message.capture); !spec) {
    made.error = spec.error();
  } else if (*spec != nullptr) {
    made.spec = text_of(**spec);
  }
  send(std::move(made));
}

void EngineHost::send_pulse(uint64_t id) {
  const Result<void> health = engine_.health();
  Pulse pulse{.id = id,
              .stats = engine_.stats(),
              .illness = {},
              .retry_after_s = engine_.retry_after_s(),
              .grammars = engine_.grammar_stats(),
              .captures = {}};
  if (!health) pulse.illness = health.error();
  if (steer::capture::Dispatcher* const captures = engine_.captures()) {
    pulse.captures = captures->stats();
  }
  send(std::move(pulse));
}

}  // namespace rudder::remote
