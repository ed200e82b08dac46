// ServerContext: the objects that every handler may use. Server owns it; it outlives every
// connection. Immutable after start except for the atomics; any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/server/admin/model_rest.h"
#include "rudder/server/admin/token_rate.h"
#include "rudder/server/generation/pending_compiles.h"
#include "rudder/server/http/api_error.h"
#include "rudder/server/http/auth.h"
#include "rudder/server/http/connection_table.h"
#include "rudder/server/http/exchange.h"
#include "rudder/server/http/http_counters.h"
#include "rudder/server/http/origin_check.h"
#include "rudder/server/http/tls.h"
#include "rudder/server/http/work_pool.h"
#include "rudder/server/openai/response_store.h"
#include "rudder/server/request/token_cache.h"
#include "rudder/server/server.h"

namespace rudder::server {

// How many generation requests are in progress, and a way to wait until none is.
class Activity {
 public:
  void begin();
  void end();
  int64_t count() const;
  // True when none is left before the deadline; false then, or as soon as hurry() has been called.
  bool wait_until_idle(int64_t timeout_us);
  void hurry();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t count_ = 0;
  bool hurried_ = false;
};

// Marks one generation request as in progress for as long as it lives.
class ActivityMark {
 public:
  explicit ActivityMark(Activity& activity) : activity_(activity) { activity_.begin(); }
  ~ActivityMark() { activity_.end(); }
  ActivityMark(const ActivityMark&) = delete;
  ActivityMark& operator=(const ActivityMark&) = delete;

 private:
  Activity& activity_;
};

// How far the server has come to its end.
struct Ending {
  std::atomic<bool> draining{false};  // no new generation requests
  std::atomic<bool> stopping{false};  // nor those that are still being tokenised
  std::atomic<bool> failed{false};    // it will never serve again: Server::watch
};

struct ServerContext {
  ServerContext(ServerParts server_parts, const ServerSettings& server_settings)
      : parts(std::move(server_parts)),
        settings(server_settings),
        keys(settings.api_key),
        admin_keys(settings.steering_api_key) {}

  const ServerParts parts;
  const ServerSettings settings;
  const ApiKeys keys;
  const ApiKeys admin_keys;  // of routes that change steering
  const SteadyClock clock;
  HttpCounters counters;
  OriginRules origin_rules;                      // likewise
  std::unique_ptr<ConnectionTable> connections;  // set before the first one
  std::unique_ptr<TlsCertificate> certificate;   // null: no TLS
  Ending ending;
  const ByteTotal body_bytes = std::make_shared<std::atomic<int64_t>>(0);
  const ByteTotal output_bytes = std::make_shared<std::atomic<int64_t>>(0);
  SharedText openapi;  // the document; set before the first connection
  std::unique_ptr<WorkPool> pool;
  const std::unique_ptr<TokenCache> tokens =
      std::make_unique<TokenCache>(settings.token_cache_bytes);
  std::vector<TokenRate> generation_rates{parts.engine->replicas().size()};  // of replicas
  const std::shared_ptr<PendingCompiles> compiles = std::make_shared<PendingCompiles>();
  const std::shared_ptr<ResponseStore> responses =
      std::make_shared<ResponseStore>(settings.response_store_bytes, output_bytes);

  // Of the answer to one request.
  OutputLimits output_limits() const {
    return {.stream = settings.max_pending_output,
            .captured = settings.max_pending_captures,
            .answer = settings.max_answer_bytes,
            .total = settings.max_buffered_output + settings.response_store_bytes,
            .held = output_bytes};
  }

  const ServerModel& model() const { return parts.model; }
  engine::Engine& engine() const { return *parts.engine; }
  // What the engine said, for the client: an overload with the time after which to come again.
  ApiError engine_error(const Error& error) const;

  // Generation requests in progress, for drain.
  Activity activity;
  ModelRest rest{*parts.engine, parts.residence};
};

}  // namespace rudder::server
