#include "rudder/server/testing/scripted_engine.h"

#include <algorithm>
#include <chrono>

#include "rudder/base/clock.h"

namespace rudder::server {
namespace {

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace

Script say(std::vector<std::string> pieces, engine::FinishReason finish) {
  Script script;
  for (size_t i = 0; i < pieces.size(); ++i) {
    engine::Event event;
    event.text = pieces[i];
    engine::OutputToken token;
    token.token = pieces[i].empty() ? 0 : static_cast<unsigned char>(pieces[i][0]);
    event.tokens.push_back(token);
    if (i + 1 == pieces.size()) event.finish = finish;
    script.events.push_back(std::move(event));
  }
  return script;
}

Script say_endlessly(std::string piece, int64_t tick_us) {
  Script script = say({std::move(piece)});
  script.events[0].finish.reset();
  script.tick_us = tick_us;
  script.endless = true;
  return script;
}

ScriptedEngine::ScriptedEngine(Author author, int32_t max_seq_len)
    : author_(std::move(author)), max_seq_len_(max_seq_len), thread_([this] { loop(); }) {}

ScriptedEngine::~ScriptedEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    stir();
  }
  thread_.join();
}

Result<engine::RequestId> ScriptedEngine::submit(engine::Request request, engine::EventSink sink) {
  if (full_) return fail(ErrorCode::kOverloaded, "the queue is full");
  RUDDER_TRY(engine::ResolvedTaps taps,
             engine::resolve_taps(request.params(), *programs_, captures_.get(), limits()));
  Script script = author_(request.params());
  std::lock_guard lock(mutex_);
  const uint64_t id = next_id_++;
  submitted_.push_back(request.params());
  submitted_taps_.push_back(std::move(taps));
  Running running{std::move(sink), std::move(script), request.params(), 0, 0, false};
  // The sink alone is interesting of what a long-running stream holds.
  running.params.prompt.shrink_to_fit();
  running_.emplace(id, std::move(running));
  stir();
  return engine::RequestId(id);
}

Result<void> ScriptedEngine::would_accept(const engine::PlaceAsk&) const {
  if (full_) return fail(ErrorCode::kOverloaded, "the queue is full");
  std::lock_guard lock(mutex_);
  if (rest_refusal_) return tl::unexpected<Error>(*rest_refusal_);
  return {};
}

Result<void> ScriptedEngine::rest(const engine::RestAsk& ask, int64_t) {
  if (never_rests_) return fail(ErrorCode::kTimeout, "requests still ran");
  std::lock_guard lock(mutex_);
  rests_.push_back(std::to_string(static_cast<int>(ask.mode)) +
                   (ask.keeps_cache ? " with its cache" : ""));
  rest_refusal_ = ask.refusal;
  return {};
}

void ScriptedEngine::resume(const std::optional<std::string>& identity) {
  std::lock_guard lock(mutex_);
  rests_.push_back(identity.value_or("goes on"));
  rest_refusal_.reset();
}

std::vector<std::string> ScriptedEngine::rests() const {
  std::lock_guard lock(mutex_);
  return rests_;
}

void ScriptedEngine::cancel(engine::RequestId id) {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(id.value);
  if (it == running_.end() || it->second.cancelled) return;
  it->second.cancelled = true;
  num_cancelled_ += 1;
  last_cancel_us_ = SteadyClock().now_us();
  stir();
}

engine::RequestLimits ScriptedEngine::limits() const {
  engine::RequestLimits limits;
  limits.max_seq_len = max_seq_len_;
  limits.vocab_size = 320;
  limits.eos_ids = {257};
  limits.geometry = geometry_;
  limits.taps = taps_;
  return limits;
}

void ScriptedEngine::set_taps(const tap::Geometry& geometry, const tap::Limits& limits,
                              std::unique_ptr<steer::capture::Dispatcher> captures) {
  geometry_ = geometry;
  taps_ = limits;
  programs_ = std::make_unique<steer::ProgramTable>(limits);
  captures_ = std::move(captures);
}

void ScriptedEngine::set_grammars(std::unique_ptr<constraint::GrammarSource> grammars) {
  forms_ = std::make_unique<engine::Forms>(std::move(grammars), limits().vocab_size, clock_);
}

engine::EngineStats ScriptedEngine::stats() const {
  engine::EngineStats stats;
  stats.num_running = static_cast<int32_t>(num_active());
  stats.num_blocks = 100;
  stats.block_size = 16;
  stats.blocks_in_use = 25;
  stats.blocks_cached = 5;
  stats.blocks_free = 70;
  stats.generation_tokens = events_sent_;
  stats.drafts = 3;
  stats.draft_tokens = 9;
  stats.accepted_tokens = 5;
  stats.accepted_by_position = {3, 2, 0};
  stats.time_to_first_token.bounds = {0.001, 0.01, 0.1};
  stats.time_to_first_token.counts = {1, 2, 3, 4};
  stats.time_to_first_token.sum = 2.5;
  stats.time_to_first_token.count = 10;
  return stats;
}

Result<void> ScriptedEngine::health() const {
  if (dead_) return fail(ErrorCode::kInternal, "the engine has failed");
  if (stuck_) return fail(ErrorCode::kUnavailable, "the step in flight is 7 s old");
  return {};
}

std::vector<engine::ReplicaState> ScriptedEngine::replicas() const {
  std::vector<engine::ReplicaState> states(num_replicas_, {stats(), health()});
  if (last_stuck_) {
    states.back().health = Result<void>(fail(ErrorCode::kUnavailable, "the engine has failed"));
  }
  return states;
}

void ScriptedEngine::release() {
  std::lock_guard lock(mutex_);
  for (auto& [id, running] : running_) running.script.hold = false;
  stir();
}

size_t ScriptedEngine::num_active() const {
  std::lock_guard lock(mutex_);
  return running_.size();
}

std::vector<engine::RequestParams> ScriptedEngine::submitted() const {
  std::lock_guard lock(mutex_);
  return submitted_;
}

std::vector<engine::ResolvedTaps> ScriptedEngine::submitted_taps() const {
  std::lock_guard lock(mutex_);
  return submitted_taps_;
}

void ScriptedEngine::send(uint64_t id, Running& running, int32_t choice, engine::Event event) {
  event.id = engine::RequestId(id);
  event.choice = choice;
  if (choice > 0) event.prompt_logprobs.clear();
  event.usage.prompt_tokens = static_cast<int32_t>(running.params.prompt.size());
  event.usage.cached_tokens = running.script.cached_tokens;
  event.usage.completion_tokens =
      running.params.counts_output ? static_cast<int32_t>(running.num_said + 1) : 0;
  const int64_t start = now_ns();
  running.sink(std::move(event));
  sink_ns_ += now_ns() - start;
  events_sent_ += 1;
}

bool ScriptedEngine::advance(std::unique_lock<std::mutex>& lock, uint64_t id, Running& running) {
  const int64_t now = SteadyClock().now_us();
  const bool cancelled = running.cancelled;
  if (!cancelled && (running.script.hold || now < running.due_us)) return true;
  lock.unlock();
  const auto num_events = static_cast<int64_t>(running.script.events.size());
  engine::Event event;
  if (cancelled) {
    event.finish = engine::FinishReason::kCancelled;
  } else {
    event = running.script.events[static_cast<size_t>(running.num_said % num_events)];
  }
  for (int32_t choice = 0; choice < running.params.n; ++choice) send(id, running, choice, event);
  running.due_us = now + running.script.tick_us;
  running.num_said += 1;
  lock.lock();
  return !cancelled && (running.script.endless || running.num_said < num_events);
}

void ScriptedEngine::stir() {
  stirred_ = true;
  changed_.notify_all();
}

void ScriptedEngine::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    stirred_ = false;
    bool all_wait = true;
    int64_t next_due = INT64_MAX;
    for (auto it = running_.begin(); it != running_.end();) {
      if (!advance(lock, it->first, it->second)) {
        if (it->second.script.keep_sink) kept_.push_back(std::move(it->second.sink));
        it = running_.erase(it);
        continue;
      }
      if (!it->second.script.hold) {
        next_due = std::min(next_due, it->second.due_us);
        all_wait = false;
      }
      ++it;
    }
    const auto stirred = [this] { return stirred_; };
    if (all_wait) {
      changed_.wait(lock, stirred);
    } else {
      const int64_t wait_us = std::max<int64_t>(0, next_due - SteadyClock().now_us());
      changed_.wait_for(lock, std::chrono::microseconds(wait_us), stirred);
    }
  }
  for (auto& [id, running] : running_) {
    running.cancelled = true;
    advance(lock, id, running);
  }
}

}  // namespace rudder::server
