// Engine: takes requests, gives events. It owns its replicas, one or several: each has an engine
// thread, which alone uses its scheduler, its KV bookkeeping and its executor. A request goes to
// one replica, choices and captures and all. Any thread may call submit, cancel, stats and drain.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/base/result.h"
#include "rudder/cache/block_watcher.h"
#include "rudder/constraint/grammar_source.h"
#include "rudder/engine/bounded_queue.h"
#include "rudder/engine/event.h"
#include "rudder/engine/forms.h"
#include "rudder/engine/request.h"
#include "rudder/engine/rest.h"
#include "rudder/engine/settings.h"
#include "rudder/engine/stats.h"
#include "rudder/sched/proposer.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/steer/config.h"
#include "rudder/steer/program_table.h"
#include "rudder/step/executor.h"
#include "rudder/text/tokenizer.h"

namespace rudder::engine {

// What a replica of an engine has of its own.
struct ReplicaParts {
  std::unique_ptr<step::Executor> executor;
  // Null: every step decodes plainly. Not asked where the executor takes no drafts.
  std::unique_ptr<sched::DraftProposer> proposer = {};
  // Is told on the engine thread what the prefix cache holds; outlives the engine. Null: nobody.
  cache::BlockWatcher* block_watcher = nullptr;
};

struct ReplicaState {
  EngineStats stats;
  Result<void> health;       // as Engine::health, of this replica
  uint64_t num_crashes = 0;  // of processes that it was in (Engine::mends_itself)
};

class Engine {
 public:
  struct Parts {
    // These three of the first replica; ReplicaParts says what they are.
    std::unique_ptr<step::Executor> executor;
    std::shared_ptr<const text::Tokenizer> tokenizer;
    std::shared_ptr<const Clock> clock;
    std::string model_identity;    // part of every prefix-block key
    std::vector<int32_t> eos_ids;  // the model's end-of-sequence ids, all of them
    // What its chat template writes behind messages (text/turn_ends.h); none: its ids that end.
    std::vector<int32_t> turn_ends = {};
    // Null: requests that capture are refused.
    std::unique_ptr<steer::capture::Dispatcher> captures = {};
    // Null: requests with a grammar are refused.
    std::unique_ptr<constraint::GrammarSource> grammars = {};
    std::unique_ptr<sched::DraftProposer> proposer = {};
    cache::BlockWatcher* block_watcher = nullptr;
    // The other replicas. Their executors keep KV like the first one and take the same programs.
    std::vector<ReplicaParts> more = {};
    // Before the first request each executor runs steps that tell what it takes
    // (engine/run_trials.h).
    bool runs_trials = false;
  };

  // Starts the engine threads.
  static Result<std::unique_ptr<Engine>> start(Parts parts, const EngineSettings& settings);
  virtual ~Engine() = default;  // stops at once: every open request gets a kCancelled event

  // Reserves the request's place in the bounded queue (kOverloaded when it is full, kUnavailable
  // when draining or dead), then queues it. Events go to `sink` until every choice has finished.
  virtual Result<RequestId> submit(Request request, EventSink sink) = 0;
  // What submit() would say to a request that asks so much of the queue: asked before rendering.
  virtual Result<void> would_accept(const PlaceAsk& ask) const = 0;
  // Seconds after which a request that the queue refuses now may come again, as the queue was
  // served lately: 1 to kMaxRetryAfter.
  virtual int32_t retry_after_s() const = 0;
  // Compiles a grammar, so that a request that has it among its constraints may be submitted while
  // the lease lives. Calls `done` once, on the caller's thread (it is known) or on one of the
  // compiler's, which it must not hold up. kInvalidArgument: the grammar is at fault, Error.where
  // is a path in its text.
  // Tenants take turns.
  virtual void compile(const constraint::GrammarSpec& spec, int32_t tenant, FormCompiled done) = 0;
  virtual constraint::GrammarStats grammar_stats() const = 0;

  // Ends the request: its blocks are free or cached within two steps. Idempotent.
  virtual void cancel(RequestId id) = 0;

  virtual RequestLimits limits() const = 0;
  // A snapshot of all replicas together, cheap, never waits for a step.
  virtual EngineStats stats() const = 0;
  // Ok while a replica makes progress (heartbeat, young step). kInternal: all are dead, for good.
  virtual Result<void> health() const = 0;
  virtual std::vector<ReplicaState> replicas() const = 0;  // at least one
  // Replicas are processes that are started again where they end: what fails health() for less than
  // good needs no end of this process.
  virtual bool mends_itself() const { return false; }

  // Refuses new requests, finishes what runs; true when idle before the timeout: then stats() count
  // every request.
  virtual bool drain(int64_t timeout_us) = 0;
  virtual void reset_prefix_cache() = 0;

  // Brings every replica to rest (engine/rest.h): then nobody uses the executors until resume().
  // kTimeout: some had not come to it in time, and all go on as before. kInternal: one is dead. One
  // thread at a time calls the two.
  virtual Result<void> rest(const RestAsk& ask, int64_t timeout_us) = 0;
  // Goes on. With `identity` that is the name of the model in the keys of prefix blocks from now
  // on: what the executors compute with is not what it was.
  virtual void resume(const std::optional<std::string>& identity) = 0;

  // Keeps programs on the device from the next step on, so that a request's first use of them
  // uploads nothing. kInvalidArgument when they could never be there together. Pins are counted.
  virtual Result<void> pin(std::vector<steer::KeyedProgram> programs) = 0;
  virtual void unpin(std::vector<tap::ContentKey> programs) = 0;
  // The programs that requests name. Lives as long as the engine.
  virtual steer::ProgramTable& programs() = 0;
  // Where captures go; null: nowhere. Lives as long as the engine.
  virtual steer::capture::Dispatcher* captures() = 0;
};

}  // namespace rudder::engine
