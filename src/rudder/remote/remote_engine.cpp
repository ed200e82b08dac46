#include "rudder/remote/remote_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "rudder/base/philox.h"
#include "rudder/engine/entropy.h"
#include "rudder/remote/engine_link.h"
#include "rudder/remote/remote_captures.h"

namespace rudder::remote {
namespace {

using std::chrono::steady_clock;

constexpr auto kDrainPoll = std::chrono::milliseconds(2);

// Counts a request among those that its adapter has, as the engine that runs it would.
std::shared_ptr<const void> running_mark(const std::shared_ptr<const lora::NamedAdapter>& adapter) {
  if (adapter == nullptr) return nullptr;
  ++adapter->running;
  return {adapter.get(), [adapter](const void*) { --adapter->running; }};
}

void add_grammars(constraint::GrammarStats& all, const constraint::GrammarStats& other) {
  all.hits += other.hits;
  all.misses += other.misses;
  all.failures += other.failures;
  all.timeouts += other.timeouts;
  all.compile_seconds += other.compile_seconds;
  all.cache_bytes += other.cache_bytes;
  all.cache_entries += other.cache_entries;
  all.masks.lookups += other.masks.lookups;
  all.masks.hits += other.masks.hits;
  all.masks.bytes += other.masks.bytes;
}

class RemoteEngine final : public engine::Engine {
 public:
  RemoteEngine(RemoteCaptures::Links links, const Ready& ready,
               const engine::EngineSettings& settings)
      : links_(std::move(links)),
        limits_(ready.limits),
        max_queue_us_(static_cast<int64_t>(settings.max_queue_seconds * 1e6)),
        seed_key_(settings.seed >= 0 ? static_cast<uint64_t>(settings.seed)
                                     : engine::Entropy::from_system().seed_key),
        programs_(limits_.taps),
        captures_(ready.captures ? std::make_unique<RemoteCaptures>(links_) : nullptr) {}

  Result<engine::RequestId> submit(engine::Request request, engine::EventSink sink) override {
    const engine::PlaceAsk ask = engine::place_ask(request);
    const int32_t num_choices = request.params().n;
    const engine::RequestId id(next_request_.fetch_add(1, std::memory_order_relaxed));
    std::shared_ptr<const void> mark = running_mark(request.params().adapter);
    RUDDER_TRY(const Submit message, message_of(id, request.params()));
    EngineLink& link = choose(ask.tokens);
    OpenRequest open{.id = id.value,
                     .sink = std::move(sink),
                     .frame = Channel::frame(ToEngine(message)),
                     .tokens = ask.tokens,
                     .work = engine::OpenWork(message.params),
                     .max_wait_us = longest_wait(ask),
                     .finished = std::vector<bool>(static_cast<size_t>(num_choices)),
                     .adapter = request.params().adapter,
                     .holds = std::move(mark)};
    RUDDER_TRY_VOID(link.submit(std::move(open)));
    return id;
  }

  Result<void> would_accept(const engine::PlaceAsk& ask) const override {
    Result<void> verdict;
    for (const auto& link : links_) {
      verdict = link->would_accept(ask.tokens);
      if (verdict) break;
    }
    return verdict;
  }

  int32_t retry_after_s() const override {
    int32_t least = 600;
    for (const auto& link : links_) least = std::min(least, link->pulse(false).retry_after_s);
    return std::max(1, least);
  }

  void compile(const constraint::GrammarSpec& spec, int32_t tenant,
               engine::FormCompiled done) override {
    choose(0).compile(spec, tenant, std::move(done));
  }
  constraint::GrammarStats grammar_stats() const override {
    constraint::GrammarStats all;
    for (const auto& link : links_) add_grammars(all, link->pulse(true).grammars);
    return all;
  }
  void cancel(engine::RequestId id) override {
    for (const auto& link : links_) link->cancel(id.value);
  }
  engine::RequestLimits limits() const override { return limits_; }

  engine::EngineStats stats() const override {
    engine::EngineStats all = links_.front()->pulse(true).stats;
    for (size_t i = 1; i < links_.size(); ++i) {
      engine::add_stats(all, links_[i]->pulse(true).stats);
    }
    return all;
  }

  Result<void> health() const override {
    std::optional<Error> first;
    for (const auto& link : links_) {
      const Result<void> health = link->health();
      if (health) return {};
      // Dead are all only where none is to come again.
      if (!first || first->code == ErrorCode::kInternal) first = health.error();
    }
    return tl::unexpected<Error>(*first);
  }

  std::vector<engine::ReplicaState> replicas() const override {
    std::vector<engine::ReplicaState> states;
    for (const auto& link : links_) {
      states.push_back({.stats = link->pulse(true).stats,
                        .health = link->health(),
                        .num_crashes = link->num_crashes()});
    }
    return states;
  }
  bool mends_itself() const override { return true; }

  bool drain(int64_t timeout_us) override {
    for (const auto& link : links_) {
      link->close({ErrorCode::kUnavailable, "the engine is draining and takes no requests", ""});
    }
    const auto deadline = steady_clock::now() + std::chrono::microseconds(timeout_us);
    while (!std::ranges::all_of(links_, [](const auto& link) { return link->is_idle(); })) {
      if (steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kDrainPoll);
    }
    return true;
  }
  void reset_prefix_cache() override {
    for (const auto& link : links_) link->reset_prefix_cache();
  }

  // Nothing that asks for it goes together with engine processes.
  Result<void> rest(const engine::RestAsk& /*ask*/, int64_t /*timeout_us*/) override {
    return fail(ErrorCode::kUnsupported, "engine processes do not rest", "engine-process");
  }
  void resume(const std::optional<std::string>& /*identity*/) override {}

  Result<void> pin(std::vector<steer::KeyedProgram> programs) override {
    std::vector<ProgramText> texts;
    for (const steer::KeyedProgram& one : programs) {
      if (one.program == nullptr) continue;
      RUDDER_TRY(ProgramText text, text_of(one.key, *one.program));
      texts.push_back(std::move(text));
    }
    for (const auto& link : links_) RUDDER_TRY_VOID(link->pin(texts));
    return {};
  }
  void unpin(std::vector<tap::ContentKey> programs) override {
    for (const auto& link : links_) link->unpin(programs);
  }
  steer::ProgramTable& programs() override { return programs_; }
  steer::capture::Dispatcher* captures() override { return captures_.get(); }

 private:
  // Seeds follow the order of arrival, whichever process has the request, and however often.
  Result<Submit> message_of(engine::RequestId id, const engine::RequestParams& params) const {
    Submit message{.id = id.value, .params = params, .programs = {}, .capture = {}, .adapter = {}};
    engine::RequestParams& sent = message.params;
    sent.seed = params.seed.value_or(philox_u64(seed_key_, id.value));
    if (!params.taps.segments.empty()) {
      RUDDER_TRY(const tap::SequenceTaps taps, programs_.resolve(params.taps));
      RUDDER_TRY(message.programs, texts_of(taps.leased()));
    }
    if (params.capture.value != 0 && captures_ != nullptr) {
      message.capture = captures_->text(params.capture);
      if (!message.capture) {
        return fail(ErrorCode::kUnavailable, "the request's capture is not known", "capture");
      }
    }
    sent.capture = {};
    if (params.adapter != nullptr) {
      message.adapter = params.adapter->adapter->key;
    }
    return message;
  }

  int64_t longest_wait(const engine::PlaceAsk& ask) const {
    if (ask.max_wait_us == 0 || max_queue_us_ == 0) return std::max(ask.max_wait_us, max_queue_us_);
    return std::min(ask.max_wait_us, max_queue_us_);
  }

  // The one with the least to do of those that take a request and make progress; of equals in turn.
  EngineLink& choose(int64_t tokens) {
    if (links_.size() == 1) return *links_.front();
    const size_t turn = turn_.fetch_add(1, std::memory_order_relaxed);
    EngineLink* best = nullptr;
    std::pair<int, int64_t> least;
    for (size_t i = 0; i < links_.size(); ++i) {
      EngineLink& link = *links_[(turn + i) % links_.size()];
      const int trouble = link.health() ? 0 : link.would_accept(tokens) ? 1 : 2;
      const std::pair<int, int64_t> cost{trouble, link.open_work()};
      if (best != nullptr && least <= cost) continue;
      best = &link;
      least = cost;
    }
    return *best;
  }

  const RemoteCaptures::Links links_;
  const engine::RequestLimits limits_;
  const int64_t max_queue_us_;
  const uint64_t seed_key_;
  std::atomic<uint64_t> next_request_{1};
  std::atomic<size_t> turn_{0};
  steer::ProgramTable programs_;
  const std::unique_ptr<RemoteCaptures> captures_;
};

}  // namespace

Result<StartedEngine> start_engine(const std::vector<EngineCommand>& commands,
                                   const engine::EngineSettings& settings) {
  RemoteCaptures::Links links;
  for (const EngineCommand& command : commands) {
    links.push_back(
        std::make_unique<EngineLink>(LinkSettings{.command = command,
                                                  .max_requests = settings.max_num_queued_reqs,
                                                  .max_tokens = settings.max_num_queued_tokens,
                                                  .stuck_us = settings.stuck_step_us}));
  }
  std::optional<Ready> ready;
  for (const auto& link : links) {
    RUDDER_TRY(ready, link->wait_ready());
  }
  auto engine = std::make_unique<RemoteEngine>(std::move(links), *ready, settings);
  return StartedEngine{.engine = std::move(engine), .dtype = ready->dtype};
}

}  // namespace rudder::remote
