// Engine: EngineCore on a thread of its own.
#include "rudder/engine/engine.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "rudder/engine/engine_core.h"

namespace rudder::engine {
namespace {

constexpr int64_t kIdleWakeUs = 250'000;  // the heartbeat that health() listens for
constexpr auto kDrainPoll = std::chrono::milliseconds(2);

class ThreadedEngine final : public Engine {
 public:
  explicit ThreadedEngine(std::unique_ptr<EngineCore> core)
      : core_(std::move(core)), thread_([this] { run(); }) {}

  ~ThreadedEngine() override {
    core_->close({ErrorCode::kUnavailable, "the engine is stopping", ""});
    stopping_.store(true, std::memory_order_release);
    core_->wake();
    thread_.join();
  }

  Result<RequestId> submit(Request request, EventSink sink) override {
    return core_->submit(std::move(request), std::move(sink));
  }
  Result<void> would_accept(const PlaceAsk& ask) const override { return core_->would_accept(ask); }
  int32_t retry_after_s() const override { return core_->retry_after_s(); }
  void compile(const constraint::GrammarSpec& spec, int32_t tenant, FormCompiled done) override {
    core_->forms().compile(spec, tenant, std::move(done));
  }
  constraint::GrammarStats grammar_stats() const override { return core_->forms().stats(); }
  void cancel(RequestId id) override { core_->cancel(id); }
  RequestLimits limits() const override { return core_->limits(); }
  EngineStats stats() const override { return core_->stats(); }
  Result<void> health() const override { return core_->health(); }
  void reset_prefix_cache() override { core_->reset_prefix_cache(); }
  Result<void> pin(std::vector<steer::KeyedProgram> programs) override {
    return core_->pin(std::move(programs));
  }
  void unpin(std::vector<tap::ContentKey> programs) override { core_->unpin(std::move(programs)); }
  steer::ProgramTable& programs() override { return core_->programs(); }
  steer::capture::Dispatcher* captures() override { return core_->captures(); }

  bool drain(int64_t timeout_us) override {
    using std::chrono::steady_clock;
    core_->close({ErrorCode::kUnavailable, "the engine is draining and takes no requests", ""});
    const auto deadline = steady_clock::now() + std::chrono::microseconds(timeout_us);
    while (core_->num_open() > 0) {
      if (steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kDrainPoll);
    }
    return true;
  }

 private:
  void run() {
    while (!stopping_.load(std::memory_order_acquire)) {
      if (!core_->step()) core_->wait(kIdleWakeUs);
    }
    core_->end_all();
  }

  const std::unique_ptr<EngineCore> core_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(Parts parts, const EngineSettings& settings) {
  Entropy entropy = Entropy::from_system();
  if (settings.seed >= 0) entropy.seed_key = static_cast<uint64_t>(settings.seed);
  if (!settings.prefix_key_secret.empty()) {
    entropy.hash_key = Entropy::shared_hash_key(settings.prefix_key_secret);
  }
  RUDDER_TRY(auto core, EngineCore::create(std::move(parts), settings, entropy));
  return std::unique_ptr<Engine>(std::make_unique<ThreadedEngine>(std::move(core)));
}

}  // namespace rudder::engine
