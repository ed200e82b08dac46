// Engine: its replicas, and which of them a request goes to.
#include "rudder/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "rudder/engine/commons.h"
#include "rudder/engine/engine_core.h"
#include "rudder/engine/replica.h"
#include "rudder/engine/router.h"

namespace rudder::engine {
namespace {

using std::chrono::steady_clock;

constexpr auto kDrainPoll = std::chrono::milliseconds(2);

// What a replica says to a request, the best last.
enum class Verdict : uint8_t { kClosed, kFull, kTakes, kTakesAndLives };

class ReplicatedEngine final : public Engine {
 public:
  // `router`: null where there is one replica.
  ReplicatedEngine(std::shared_ptr<Commons> commons, std::unique_ptr<Router> router,
                   std::vector<std::unique_ptr<EngineCore>> cores)
      : commons_(std::move(commons)), router_(std::move(router)) {
    for (std::unique_ptr<EngineCore>& core : cores) {
      replicas_.push_back(std::make_unique<Replica>(std::move(core)));
    }
  }

  ~ReplicatedEngine() override {
    for (const auto& replica : replicas_) replica->stop();
    commons_->captures.reset();  // it reads the memory of any replica's executor
  }

  Result<RequestId> submit(Request request, EventSink sink) override {
    if (router_ == nullptr) return core(0).submit(std::move(request), std::move(sink));
    Router::Placement placement = router_->place(request.params(), candidates(place_ask(request)));
    return core(placement.replica)
        .submit(std::move(request), charged(std::move(sink), std::move(placement.charge)));
  }

  Result<void> would_accept(const PlaceAsk& ask) const override {
    std::optional<Error> refusal;
    for (const auto& replica : replicas_) {
      Result<void> verdict = replica->core().would_accept(ask);
      if (verdict) return {};
      if (!refusal || verdict.error().code == ErrorCode::kOverloaded) refusal = verdict.error();
    }
    return tl::unexpected<Error>(*refusal);
  }

  int32_t retry_after_s() const override {
    std::optional<int32_t> least;
    for (const auto& replica : replicas_) {
      if (replicas_.size() > 1 && !replica->core().health()) continue;
      const int32_t seconds = replica->core().retry_after_s();
      if (!least || seconds < *least) least = seconds;
    }
    return least.value_or(1);
  }

  void compile(const constraint::GrammarSpec& spec, int32_t tenant, FormCompiled done) override {
    commons_->forms.compile(spec, tenant, std::move(done));
  }
  constraint::GrammarStats grammar_stats() const override { return commons_->forms.stats(); }
  // Ids are those of one replica: the others pass it over.
  void cancel(RequestId id) override {
    for (const auto& replica : replicas_) replica->core().cancel(id);
  }
  RequestLimits limits() const override { return core(0).limits(); }

  EngineStats stats() const override {
    EngineStats all = core(0).stats();
    for (size_t i = 1; i < replicas_.size(); ++i) add_stats(all, core(i).stats());
    return all;
  }

  Result<void> health() const override {
    std::optional<Error> first;
    for (const auto& replica : replicas_) {
      const Result<void> health = replica->core().health();
      if (health) return {};
      if (!first || first->code == ErrorCode::kInternal) first = health.error();
    }
    return tl::unexpected<Error>(*first);
  }

  std::vector<ReplicaState> replicas() const override {
    std::vector<ReplicaState> states;
    states.reserve(replicas_.size());
    for (const auto& replica : replicas_) {
      states.push_back({.stats = replica->core().stats(), .health = replica->core().health()});
    }
    return states;
  }

  Result<void> rest(const RestAsk& ask, int64_t timeout_us) override {
    std::vector<uint64_t> orders;
    orders.reserve(replicas_.size());
    for (const auto& replica : replicas_) {
      orders.push_back(replica->core().rest({.ask = ask, .identity = {}}));
    }
    const auto deadline = steady_clock::now() + std::chrono::microseconds(timeout_us);
    const auto is_at_rest = [](const auto& replica, uint64_t order) {
      return replica->core().is_at_rest(order);
    };
    while (!std::ranges::equal(replicas_, orders, is_at_rest)) {
      for (const auto& replica : replicas_) {
        Result<void> health = replica->core().health();
        if (!health && health.error().code == ErrorCode::kInternal) return health;
      }
      if (steady_clock::now() >= deadline) {
        resume(std::nullopt);
        return fail(ErrorCode::kTimeout, "requests still ran when the time for it was over");
      }
      std::this_thread::sleep_for(kDrainPoll);
    }
    return {};
  }
  void resume(const std::optional<std::string>& identity) override {
    if (identity && router_ != nullptr) router_->rename_model(*identity);
    for (const auto& replica : replicas_) {
      replica->core().rest({.ask = std::nullopt, .identity = identity});
    }
  }

  void reset_prefix_cache() override {
    for (const auto& replica : replicas_) replica->core().reset_prefix_cache();
  }
  // Replicas have tables of one size: what fits one fits all.
  Result<void> pin(std::vector<steer::KeyedProgram> programs) override {
    for (const auto& replica : replicas_) RUDDER_TRY_VOID(replica->core().pin(programs));
    return {};
  }
  void unpin(std::vector<tap::ContentKey> programs) override {
    for (const auto& replica : replicas_) replica->core().unpin(programs);
  }
  steer::ProgramTable& programs() override { return commons_->programs; }
  steer::capture::Dispatcher* captures() override { return commons_->captures.get(); }

  bool drain(int64_t timeout_us) override {
    for (const auto& replica : replicas_) {
      replica->core().close(
          {ErrorCode::kUnavailable, "the engine is draining and takes no requests", ""});
    }
    const auto deadline = steady_clock::now() + std::chrono::microseconds(timeout_us);
    const auto is_idle = [](const auto& replica) { return replica->core().is_idle(); };
    while (!std::ranges::all_of(replicas_, is_idle)) {
      if (steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kDrainPoll);
    }
    return true;
  }

 private:
  EngineCore& core(size_t replica) const { return replicas_[replica]->core(); }

  static Verdict judge(const EngineCore& core, const PlaceAsk& ask) {
    const Result<void> verdict = core.would_accept(ask);
    if (verdict) return core.health() ? Verdict::kTakesAndLives : Verdict::kTakes;
    return verdict.error().code == ErrorCode::kUnavailable ? Verdict::kClosed : Verdict::kFull;
  }

  // Those with the best verdict. Where none takes the request, one of them refuses and counts it.
  std::vector<bool> candidates(const PlaceAsk& ask) const {
    std::vector<Verdict> verdicts;
    verdicts.reserve(replicas_.size());
    for (const auto& replica : replicas_) verdicts.push_back(judge(replica->core(), ask));
    const Verdict best = *std::ranges::max_element(verdicts);
    std::vector<bool> takes;
    takes.reserve(verdicts.size());
    for (const Verdict verdict : verdicts) takes.push_back(verdict == best);
    return takes;
  }

  const std::shared_ptr<Commons> commons_;
  const std::unique_ptr<Router> router_;  // outlives the replicas, whose caches tell it
  std::vector<std::unique_ptr<Replica>> replicas_;
};

Result<void> check_replicas(const step::Capacity& first, const std::vector<ReplicaParts>& all) {
  for (size_t i = 1; i < all.size(); ++i) {
    const step::Capacity other = all[i].executor->capacity();
    if (other.num_blocks == first.num_blocks && other.block_size == first.block_size &&
        other.max_seq_len == first.max_seq_len && other.kv_groups == first.kv_groups) {
      continue;
    }
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("replica {} has {} blocks and sequences of {} tokens, replica 0 {} and "
                    "{}",
                    i, other.num_blocks, other.max_seq_len, first.num_blocks, first.max_seq_len),
        "data-parallel-size");
  }
  return {};
}

// Of all replicas at once, each on its device.
void run_all_trials(std::span<const std::unique_ptr<EngineCore>> cores) {
  std::vector<std::jthread> threads;
  threads.reserve(cores.size());
  for (const auto& core : cores) threads.emplace_back([&core] { core->run_trials(); });
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(Parts parts, const EngineSettings& settings) {
  Entropy entropy = Entropy::from_system();
  if (settings.seed >= 0) entropy.seed_key = static_cast<uint64_t>(settings.seed);
  entropy.hash_key = Entropy::hash_key_of(settings.prefix_key_secret);
  RUDDER_TRY(const std::shared_ptr<Commons> commons, Commons::make(parts, entropy));
  std::vector<ReplicaParts> all = std::move(parts.more);
  all.insert(all.begin(), replica_parts(parts));
  const step::Capacity capacity = all.front().executor->capacity();
  RUDDER_TRY_VOID(check_replicas(capacity, all));
  std::unique_ptr<Router> router;
  if (all.size() > 1) {
    std::vector<cache::BlockWatcher*> watchers;
    watchers.reserve(all.size());
    for (const ReplicaParts& one : all) watchers.push_back(one.block_watcher);
    router = std::make_unique<Router>(cache::KeyOptions{.hash_key = entropy.hash_key,
                                                        .model_identity = commons->model_identity,
                                                        .hash_bits = entropy.hash_bits,
                                                        .block_size = capacity.block_size},
                                      capacity.kv_groups, watchers);
    for (size_t i = 0; i < all.size(); ++i) all[i].block_watcher = router->watcher(i);
  }
  std::vector<std::unique_ptr<EngineCore>> cores;
  cores.reserve(all.size());
  for (ReplicaParts& one : all) {
    cores.push_back(EngineCore::of_replica(std::move(one), commons, settings));
  }
  if (parts.runs_trials) run_all_trials(cores);
  return std::unique_ptr<Engine>(
      std::make_unique<ReplicatedEngine>(commons, std::move(router), std::move(cores)));
}

}  // namespace rudder::engine
