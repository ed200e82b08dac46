#include "rudder/remote/engine_link.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/remote/counters.h"

namespace rudder::remote {
namespace {

constexpr int64_t kTickMs = 100;
// A process that is stopped, or whose threads all hang, says nothing: after so many ticks it is
// ended. Ticks, since a front that was suspended has had none.
constexpr int32_t kMaxSilentTicks = 600;
constexpr int64_t kQuestionMs = 1'000;
constexpr int64_t kPulseMs = 100;
constexpr int64_t kFreshUs = 1'000'000;
constexpr int64_t kEndMs = 5'000;

tl::unexpected<Error> no_process() {
  return fail(ErrorCode::kUnavailable, "the engine process is being started again");
}

template <typename T>
Result<T> as(Result<FromEngine> reply) {
  if (!reply) return tl::unexpected<Error>(reply.error());
  if (T* const held = std::get_if<T>(&*reply)) return std::move(*held);
  return fail(ErrorCode::kUnavailable, "the engine process answers something else");
}

// What the request names goes in front.
void send_request(Channel& channel, ToldAdapters& adapters, const OpenRequest& request) {
  const auto send = [&](const ToEngine& message) { channel.send(Channel::frame(message)); };
  if (request.adapter != nullptr) adapters.tell(request.adapter, send);
  channel.send(request.frame);
}

}  // namespace

EngineLink::EngineLink(LinkSettings settings)
    : settings_(std::move(settings)), thread_([this] { supervise(); }) {}

EngineLink::~EngineLink() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    if (channel_ != nullptr) channel_->shut();
  }
  changed_.notify_all();
  thread_.join();
}

Result<Ready> EngineLink::wait_ready() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ready_ || state_ == State::kDead; });
  if (!ready_) return tl::unexpected<Error>(*refusal_);
  return *ready_;
}

Result<void> EngineLink::would_accept(int64_t tokens) const {
  const std::lock_guard lock(mutex_);
  if (refusal_) return tl::unexpected<Error>(*refusal_);
  if (state_ == State::kUp) return {};  // the process itself refuses
  if (open_.num_waiting() + 1 > settings_.max_requests ||
      open_.waiting_tokens() + tokens > settings_.max_tokens) {
    return fail(ErrorCode::kOverloaded,
                "as many requests wait for the engine process to be started as may");
  }
  return {};
}

Result<void> EngineLink::submit(OpenRequest request) {
  RUDDER_TRY_VOID(would_accept(request.tokens));
  const std::lock_guard lock(mutex_);
  request.since_us = clock_.now_us();
  if (state_ == State::kUp) send_request(*channel_, adapters_, request);
  open_.add(std::make_shared<OpenRequest>(std::move(request)));
  return {};
}

void EngineLink::send(const std::string& frame) {
  if (state_ == State::kUp) channel_->send(frame);
}

void EngineLink::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (open_.cancel(id)) send(Channel::frame(ToEngine(Cancel{id})));
}

void EngineLink::compile(const constraint::GrammarSpec& spec, int32_t tenant,
                         engine::FormCompiled done) {
  const uint64_t id = next_number_++;
  std::string frame = Channel::frame(ToEngine(Compile{.id = id, .spec = spec, .tenant = tenant}));
  std::unique_lock lock(mutex_);
  if (state_ == State::kDead) {
    const Error error = *refusal_;
    lock.unlock();
    return done(tl::unexpected<Error>(error));
  }
  send(frame);
  compiles_.add(id, std::move(frame), std::move(done));
}

Questions::Reply EngineLink::ask(uint64_t id, const std::string& frame, int64_t patience_ms) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  std::unique_lock lock(mutex_);
  const auto is_decided = [this] { return state_ == State::kUp || state_ == State::kDead; };
  if (!changed_.wait_until(lock, deadline, is_decided) || state_ == State::kDead) {
    return no_process();
  }
  std::future<Questions::Reply> reply = questions_.open(id);
  channel_->send(frame);
  lock.unlock();
  if (reply.wait_until(deadline) != std::future_status::ready && questions_.forget(id)) {
    return fail(ErrorCode::kUnavailable, "the engine process does not answer");
  }
  return reply.get();
}

Result<void> EngineLink::pin(const std::vector<ProgramText>& programs) {
  const uint64_t id = next_number_++;
  RUDDER_TRY(const Answer answered,
             as<Answer>(ask(id, Channel::frame(ToEngine(Pin{id, programs})), kQuestionMs)));
  if (answered.error) return tl::unexpected<Error>(*answered.error);
  const std::lock_guard lock(mutex_);
  pinned_.insert(pinned_.end(), programs.begin(), programs.end());
  return {};
}

void EngineLink::unpin(const std::vector<tap::ContentKey>& programs) {
  const std::lock_guard lock(mutex_);
  for (const tap::ContentKey& key : programs) {
    const auto is_it = [&](const ProgramText& program) { return program.key == key; };
    const auto found = std::ranges::find_if(pinned_, is_it);
    if (found != pinned_.end()) pinned_.erase(found);
  }
  send(Channel::frame(ToEngine(Unpin{programs})));
}

Result<std::optional<SpecText>> EngineLink::capture(const CaptureText& text) {
  const uint64_t id = next_number_++;
  RUDDER_TRY(CaptureMade made,
             as<CaptureMade>(ask(id, Channel::frame(ToEngine(AskCapture{id, text})), kQuestionMs)));
  if (made.error) return tl::unexpected<Error>(*made.error);
  return std::move(made.spec);
}

void EngineLink::reset_prefix_cache() {
  const std::lock_guard lock(mutex_);
  send(Channel::frame(ToEngine(ResetPrefixCache{})));
}

Pulse EngineLink::pulse(bool asks) const {
  std::unique_lock lock(mutex_);
  if (asks && state_ == State::kUp && clock_.now_us() - said_.heard_us < kFreshUs) {
    lock.unlock();
    const uint64_t id = next_number_++;
    const Questions::Reply reply = ask(id, Channel::frame(ToEngine(AskPulse{id})), kPulseMs);
    lock.lock();
  }
  Pulse pulse = said_.pulse;
  add_counters(pulse.stats, said_.before);
  return pulse;
}

Result<void> EngineLink::health() const {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kDead) {
    return fail(ErrorCode::kInternal, "no engine process becomes ready any more");
  }
  if (state_ != State::kUp) return no_process();
  if (said_.pulse.illness) return tl::unexpected<Error>(*said_.pulse.illness);
  const int64_t silence_us = clock_.now_us() - said_.heard_us;
  if (silence_us < settings_.stuck_us) return {};
  return fail(ErrorCode::kUnavailable,
              fmt::format("the engine process has said nothing for {} ms", silence_us / 1000));
}

int64_t EngineLink::open_work() const {
  const std::lock_guard lock(mutex_);
  return open_.work();
}

void EngineLink::close(const Error& refusal) {
  const std::lock_guard lock(mutex_);
  if (!refusal_) refusal_ = refusal;
}

bool EngineLink::is_idle() const {
  const std::lock_guard lock(mutex_);
  return open_.empty();
}

// The link's thread from here on.

void EngineLink::supervise() {
  pthread_setname_np(pthread_self(), "rudder-link");
  while (true) {
    Error why{ErrorCode::kIo, "", ""};
    EngineProcess::End end{.how = "it was not started"};
    if (Result<EngineProcess> process = EngineProcess::start(settings_.command)) {
      why = serve_one(*process);
      // One that hangs, or sends what is no message, is ended at once.
      const bool ends_itself = why.code == ErrorCode::kUnavailable;
      end = process->end(ends_itself ? kEndMs : 0);
    } else {
      why = process.error();
    }
    const int64_t wait_ms = pace_.note_end();
    if (!come_down(why, end, wait_ms) || !wait_to_start(wait_ms)) break;
  }
  give_up();
}

// Until it ends: why. kUnavailable: its side of the socket is closed.
Error EngineLink::serve_one(EngineProcess& process) {
  const auto channel = std::make_shared<Channel>(process.take_descriptor());
  {
    const std::lock_guard lock(mutex_);
    channel_ = channel;
    if (is_stopping_) channel->shut();
  }
  int64_t ticked_us = clock_.now_us();
  int32_t silent_ticks = 0;
  while (true) {
    auto message = channel->receive_as<FromEngine>(kTickMs);
    if (!message) return message.error();
    if (*message) {
      silent_ticks = 0;
      if (std::optional<Error> wrong = handle(std::move(**message))) return *wrong;
    }
    const int64_t now_us = clock_.now_us();
    if (now_us - ticked_us < kTickMs * 1000) continue;
    ticked_us = now_us;
    if (end_overdue()) {  // it is up
      if (++silent_ticks > kMaxSilentTicks) {
        return {ErrorCode::kTimeout, "the engine process says nothing", ""};
      }
    }
  }
}

// An Error: the process is of no use.
std::optional<Error> EngineLink::handle(FromEngine message) {
  if (auto* events = std::get_if<Events>(&message)) {
    std::vector<DueEvents> due(1);
    {
      const std::lock_guard lock(mutex_);
      due[0] = open_.take(events->id, std::move(events->events));
    }
    pace_.note_progress();
    deliver(std::move(due));
  } else if (auto* pulse = std::get_if<Pulse>(&message)) {
    if (!note_pulse(std::move(*pulse))) {
      return Error{ErrorCode::kIo, "the engine process counts what this one does not", ""};
    }
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    std::vector<DueEvents> due(1);
    {
      const std::lock_guard lock(mutex_);
      due[0] = open_.end(refused->id, engine::FinishReason::kError, refused->error);
    }
    deliver(std::move(due));
  } else if (const auto* answered = std::get_if<Answer>(&message)) {
    std::unique_lock lock(mutex_);
    const std::optional<engine::FormCompiled> compiled = compiles_.take(answered->id);
    lock.unlock();
    if (compiled) {
      (*compiled)(OpenCompiles::told(*answered));
    } else {
      questions_.answer(answered->id, std::move(message));
    }
  } else if (const auto* made = std::get_if<CaptureMade>(&message)) {
    questions_.answer(made->id, std::move(message));
  } else if (auto* ready = std::get_if<Ready>(&message)) {
    go_up(std::move(*ready));
  } else {
    return std::get<NotReady>(message).error;
  }
  return std::nullopt;
}

bool EngineLink::note_pulse(Pulse pulse) {
  const uint64_t id = pulse.id;
  const std::lock_guard lock(mutex_);
  if (!ready_ || !have_same_buckets(pulse.stats, said_.before)) return false;
  said_.pulse = std::move(pulse);
  said_.heard_us = clock_.now_us();
  adapters_.forget_unused([this](const ToEngine& told) { channel_->send(Channel::frame(told)); });
  questions_.answer(id, FromEngine(Pulse{}));
  return true;
}

// Everything that the process is to know, in the order in which it came.
void EngineLink::go_up(Ready ready) {
  pace_.note_ready();
  const Error cancelled{ErrorCode::kCancelled, "the request was cancelled", ""};
  std::vector<DueEvents> due;
  {
    const std::lock_guard lock(mutex_);
    due = open_.end_those(
        [&](const OpenRequest& request) { return request.is_cancelled ? &cancelled : nullptr; },
        engine::FinishReason::kCancelled);
    if (num_crashes_ > 0) {
      log_info("the engine process is there again; {} requests are served again",
               open_.num_waiting());
    }
    if (!ready_) {
      said_.before = engine::make_engine_stats(ready.limits.max_seq_len);
      said_.pulse.stats = said_.before;
      ready_ = std::move(ready);
    }
    state_ = State::kUp;
    said_.heard_us = clock_.now_us();
    said_.pulse.illness.reset();
    for (const ProgramText& program : pinned_) send(Channel::frame(ToEngine(Pin{0, {program}})));
    compiles_.each_frame([this](const std::string& frame) { send(frame); });
    adapters_.clear();
    open_.each([this](OpenRequest& request) { send_request(*channel_, adapters_, request); });
  }
  changed_.notify_all();
  deliver(std::move(due));
}

// What is open and had an event ends; the rest waits for the next process. False: there is none.
bool EngineLink::come_down(const Error& why, const EngineProcess::End& end, int64_t wait_ms) {
  const bool was_cut = why.code == ErrorCode::kUnavailable;
  const std::string how = was_cut ? end.how : why.message;
  const Error in_answer{
      ErrorCode::kUnavailable,
      fmt::format("the engine process ended in the middle of the answer: {}", how), ""};
  const Error too_often{ErrorCode::kInternal,
                        fmt::format("the engine process ended each time that it had the request: "
                                    "{}",
                                    how),
                        ""};
  std::vector<DueEvents> due;
  bool goes_on = false;
  {
    const std::lock_guard lock(mutex_);
    const bool was_up = state_ == State::kUp;
    channel_ = nullptr;
    questions_.fail_all(no_process().value());
    if (is_stopping_) return false;
    goes_on = ready_.has_value() && wait_ms >= 0;
    if (!goes_on) {
      refusal_ = was_cut ? Error{ErrorCode::kInternal,
                                 fmt::format("the engine process ended as it started: {}", how),
                                 "engine-process"}
                         : why;
      return false;
    }
    state_ = State::kDown;
    num_crashes_.fetch_add(1, std::memory_order_relaxed);
    add_counters(said_.before, said_.pulse.stats);
    said_.pulse = {};
    said_.pulse.stats = engine::make_engine_stats(ready_->limits.max_seq_len);
    open_.each([&](OpenRequest& request) {
      if (was_up && ++request.tries > 0 && end.by_itself) ++request.faults;
    });
    due = open_.end_those(
        [&](const OpenRequest& request) -> const Error* {
          if (request.has_begun()) return &in_answer;
          const bool is_suspect = request.faults >= kMaxFaults || request.tries >= kMaxTries;
          return is_suspect ? &too_often : nullptr;
        },
        engine::FinishReason::kError);
    log_error(
        "the engine process has ended: {}. {} answers ended with it, {} requests wait for the next "
        "one, in {} ms",
        how, due.size(), open_.num_waiting(), wait_ms);
  }
  deliver(std::move(due));
  return true;
}

// False: it is to stop.
bool EngineLink::wait_to_start(int64_t wait_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
  while (std::chrono::steady_clock::now() < until) {
    end_overdue();
    std::unique_lock lock(mutex_);
    const auto tick = std::chrono::steady_clock::now() + std::chrono::milliseconds(kTickMs);
    if (changed_.wait_until(lock, std::min(until, tick), [this] { return is_stopping_; })) break;
  }
  const std::lock_guard lock(mutex_);
  return !is_stopping_;
}

// Where no process has them: requests that nobody wants any more, and those that have waited for as
// long as they may. True: there is a process, whose matter that is.
bool EngineLink::end_overdue() {
  const Error cancelled{ErrorCode::kCancelled, "the request was cancelled", ""};
  const Error expired{ErrorCode::kOverloaded,
                      "the request waited for the engine process for as long as it may", ""};
  const int64_t now_us = clock_.now_us();
  std::vector<DueEvents> due;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kUp) return true;
    due = open_.end_those(
        [&](const OpenRequest& request) { return request.is_cancelled ? &cancelled : nullptr; },
        engine::FinishReason::kCancelled);
    std::vector<DueEvents> late = open_.end_those(
        [&](const OpenRequest& request) -> const Error* {
          const int64_t waited_us = now_us - request.since_us;
          return request.max_wait_us > 0 && waited_us > request.max_wait_us ? &expired : nullptr;
        },
        engine::FinishReason::kError);
    std::ranges::move(late, std::back_inserter(due));
  }
  deliver(std::move(due));
  return false;
}

// For good: as a dead engine does (engine.E6), or as one that has stopped.
void EngineLink::give_up() {
  std::vector<DueEvents> due;
  OpenCompiles compiles;
  Error error{ErrorCode::kCancelled, "the engine has stopped", ""};
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kDead;
    if (!is_stopping_ && ready_) {
      error = {ErrorCode::kInternal, "the engine failed while the request ran", ""};
      log_error("the engine is dead: {}", refusal_->to_string());
      refusal_ = Error{ErrorCode::kUnavailable, "the engine has failed and takes no requests", ""};
    }
    if (!refusal_) refusal_ = error;
    compiles = std::exchange(compiles_, {});
    due = open_.end_those(
        [&](const OpenRequest& /*any*/) { return &error; },
        is_stopping_ ? engine::FinishReason::kCancelled : engine::FinishReason::kError);
  }
  changed_.notify_all();
  deliver(std::move(due));
  compiles.fail_all(error);
}

}  // namespace rudder::remote
