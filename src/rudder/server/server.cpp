#include "rudder/server/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <future>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "rudder/base/cpu_time.h"
#include "rudder/base/heap.h"
#include "rudder/base/log.h"
#include "rudder/server/context.h"
#include "rudder/server/generation/request_log.h"
#include "rudder/server/http/descriptors.h"
#include "rudder/server/http/io_thread.h"
#include "rudder/server/http/key_file.h"
#include "rudder/server/http/listener.h"
#include "rudder/server/http/periodic_timer.h"
#include "rudder/server/idle_trim.h"
#include "rudder/server/openapi/openapi.h"
#include "rudder/server/request/tool_fields.h"
#include "rudder/server/stall_report.h"
#include "rudder/server/vitals.h"

namespace rudder::server {
namespace {

constexpr size_t kMaxQueuedForPool = 4096;
constexpr auto kStatsPeriod = std::chrono::seconds(10);
constexpr int32_t kOwnDescriptors = 64;  // files that are opened later: captures, logs, modules
constexpr int64_t kStopGraceUs = 2'000'000;
constexpr int64_t kErrorGraceUs = 1'000'000;  // for typed errors to reach their clients

bool is_metric_prefix(const std::string& text) {
  const auto fits = [](char ch) {
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_';
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), fits);
}

Result<void> check(const ServerParts& parts, const ServerSettings& settings) {
  const auto wrong = [](std::string message, std::string setting) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(setting));
  };
  if (!is_metric_prefix(settings.metrics_prefix)) {
    return wrong("--metrics-prefix: only letters and underscores", "metrics-prefix");
  }
  for (const std::string& key : settings.api_key) {
    if (key.empty()) return wrong("--api-key: an empty key", "api-key");
  }
  for (const std::string& key : settings.steering_api_key) {
    if (key.empty()) return wrong("--steering-api-key: an empty key", "steering-api-key");
  }
  for (const std::string& name : settings.served_model_name) {
    if (name.empty()) return wrong("--served-model-name: an empty name", "served-model-name");
  }
  if (parts.model.ids.empty() && settings.served_model_name.empty()) {
    return wrong("the model has no name", "served-model-name");
  }
  return {};
}

std::unique_ptr<ConnectionTable> make_connections(const ServerSettings& settings) {
  const int32_t room =
      make_descriptor_room(settings.max_connections, ConnectionTable::kReserve + kOwnDescriptors);
  if (room < settings.max_connections) {
    log_warn(
        "{} connections at most, not the {} of --max-connections: the system gives no more file "
        "descriptors (ulimit -n)",
        room, settings.max_connections);
  }
  return std::make_unique<ConnectionTable>(room, settings.max_connections_per_address);
}

// Null where no TLS is wanted.
Result<std::unique_ptr<TlsCertificate>> make_certificate(const ServerSettings& settings) {
  if (settings.ssl_certfile.empty() && settings.ssl_keyfile.empty()) return nullptr;
  if (settings.ssl_certfile.empty() || settings.ssl_keyfile.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--ssl-certfile and --ssl-keyfile need each other",
                settings.ssl_certfile.empty() ? "ssl-certfile" : "ssl-keyfile");
  }
  auto certificate = std::make_unique<TlsCertificate>(settings.ssl_certfile, settings.ssl_keyfile);
  RUDDER_TRY_VOID(certificate->load());
  return certificate;
}

Result<void> add_keys(const std::string& path, const std::string& setting,
                      std::vector<std::string>& keys) {
  if (path.empty()) return {};
  RUDDER_TRY(std::vector<std::string> more, read_key_file(path, setting));
  std::ranges::move(more, std::back_inserter(keys));
  return {};
}

void log_dialect(const ModelDialect& dialect) {
  log_info("tool calls are read as {} writes them (--tool-call-parser), thoughts {}",
           dialect.calls->name,
           dialect.reasoning == nullptr
               ? std::string("are not told from text (--reasoning-parser)")
               : fmt::format("as {} does (--reasoning-parser)", dialect.reasoning->name));
}

}  // namespace

struct Server::Impl {
  Impl(ServerParts parts, const ServerSettings& settings) : context(std::move(parts), settings) {}

  void on_each_thread(void (IoThread::*action)());
  void start_timers();
  void add_vitals();

  ServerContext context;
  std::vector<std::shared_ptr<IoThread>> threads;
  std::unique_ptr<Listener> listener;
  StatsLog stats_log;
  IdleTrim idle_trim;
  std::optional<PeriodicTimer> stats_timer;  // on the first thread
  std::optional<PeriodicTimer> trim_timer;   // likewise
  Vitals vitals;
  Exertion exertion;
  StallReport stalls;
  std::once_flag stopped;
};

// Runs the action on every I/O thread and waits until it has run on all.
void Server::Impl::on_each_thread(void (IoThread::*action)()) {
  std::vector<std::future<void>> done;
  for (const std::shared_ptr<IoThread>& thread : threads) {
    auto promise = std::make_shared<std::promise<void>>();
    done.push_back(promise->get_future());
    thread->post([promise, action, target = thread.get()] {
      (target->*action)();
      promise->set_value();
    });
  }
  for (std::future<void>& each : done) each.wait();
}

void Server::Impl::start_timers() {
  boost::asio::io_context& io = threads.front()->context();
  if (!context.settings.disable_log_stats) {
    stats_timer.emplace(io, kStatsPeriod, [this] {
      stats_log.write(context.engine().stats(),
                      std::chrono::duration<double>(kStatsPeriod).count());
    });
  }
  // The trim itself runs in the pool: it may take longer than an event loop may be held up.
  trim_timer.emplace(io, std::chrono::microseconds(IdleTrim::kPeriodUs), [this] {
    if (idle_trim.tick(process_cpu_us())) context.pool->run(0, return_freed_memory);
  });
}

void Server::Impl::add_vitals() {
  if (!context.engine().mends_itself()) {
    vitals.add("the engine", [this] { return !context.engine().health(); });
  }
  for (const std::shared_ptr<IoThread>& thread : threads) {
    vitals.add("an I/O thread", [raw = thread.get(), last = uint64_t{0}]() mutable {
      const uint64_t now = raw->num_sweeps();
      return std::exchange(last, now) == now;
    });
  }
  vitals.add("the pool", [this] { return context.pool->is_still(); });
}

Result<std::unique_ptr<Server>> Server::start(ServerParts parts, const ServerSettings& given) {
  RUDDER_TRY_VOID(check(parts, given));
  ServerSettings settings = given;
  RUDDER_TRY_VOID(add_keys(given.api_key_file, "api-key-file", settings.api_key));
  RUDDER_TRY_VOID(
      add_keys(given.steering_api_key_file, "steering-api-key-file", settings.steering_api_key));
  if (!settings.served_model_name.empty()) parts.model.ids = settings.served_model_name;
  RUDDER_TRY(parts.model.dialect,
             find_dialect(parts.model, settings.tool_call_parser, settings.reasoning_parser));
  log_dialect(parts.model.dialect);
  RUDDER_TRY(parts.model.reranker, find_reranker(parts.model, settings.tasks.reranker));
  auto impl = std::make_unique<Impl>(std::move(parts), settings);
  for (int i = 0; i < settings.http_threads; ++i) {
    impl->threads.push_back(std::make_shared<IoThread>());
  }
  ServerContext& context = impl->context;
  context.connections = make_connections(settings);
  RUDDER_TRY(context.certificate, make_certificate(settings));
  RUDDER_TRY(impl->listener, Listener::open(impl->context, impl->threads));
  if (!impl->listener->is_loopback() && settings.api_key.empty()) {
    log_warn(
        "listening on {} without an API key: everyone who reaches this address can use the model; "
        "set --api-key, or --host 127.0.0.1",
        impl->listener->address());
  }
  // On other addresses names of this server's are as many as its network has for it.
  context.origin_rules = {
      .check_host = !context.settings.allowed_hosts.empty() ||
                    (impl->listener->is_loopback() && context.settings.uds.empty()),
      .allowed_hosts = context.settings.allowed_hosts,
      .allowed_origins = context.settings.allowed_origins};
  context.openapi = std::make_shared<const std::string>(openapi_document(
      context.parts.version, context.engine().limits(),
      {.api = context.keys.required(), .steering = context.admin_keys.required()}));
  impl->context.pool = std::make_unique<WorkPool>(settings.tokenize_threads, kMaxQueuedForPool);
  impl->listener->start();
  impl->start_timers();
  impl->add_vitals();
  for (const std::shared_ptr<IoThread>& thread : impl->threads) thread->start();
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() {
  stop();
}

Result<void> Server::reload_certificate() {
  TlsCertificate* const certificate = impl_->context.certificate.get();
  return certificate != nullptr ? certificate->load() : Result<void>();
}

uint16_t Server::port() const {
  return impl_->listener->port();
}

std::string Server::address() const {
  return impl_->listener->address();
}

bool Server::drain(int64_t grace_us) {
  ServerContext& context = impl_->context;
  context.ending.draining = true;
  log_info("draining: {} requests in progress, {} s of grace", context.activity.count(),
           grace_us / 1'000'000);
  if (context.activity.wait_until_idle(grace_us)) return true;
  log_warn("drain: cancelling {} requests that are left", context.activity.count());
  impl_->on_each_thread(&IoThread::end_generations);
  // Requests that were still being tokenised turn up late.
  const int64_t deadline = context.clock.now_us() + kErrorGraceUs;
  while (context.activity.count() > 0 && context.clock.now_us() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    impl_->on_each_thread(&IoThread::end_generations);
  }
  return false;
}

Result<void> Server::watch() {
  Impl& impl = *impl_;
  if (!impl.context.engine().mends_itself()) {  // else its processes say where their threads are
    impl.stalls.look(impl.context.engine().replicas(), impl.context.clock.now_us());
  }
  const Result<void> health = impl.context.engine().health();
  const bool is_dead = !health && health.error().code == ErrorCode::kInternal;
  Result<void> vital =
      is_dead ? health : impl.vitals.tick([&impl] { return impl.exertion.look(); });
  if (!vital) impl.context.ending.failed = true;
  return vital;
}

void Server::hurry() {
  impl_->context.activity.hurry();
}

void Server::stop() {
  std::call_once(impl_->stopped, [this] {
    Impl& impl = *impl_;
    impl.context.ending.draining = true;
    impl.context.ending.stopping = true;
    auto closed = std::make_shared<std::promise<void>>();
    impl.threads.front()->post([&impl, closed] {
      impl.listener->close();
      impl.stats_timer.reset();
      impl.trim_timer.reset();
      closed->set_value();
    });
    closed->get_future().wait();
    impl.on_each_thread(&IoThread::end_generations);
    impl.context.rest.stop();  // a change under way waits for requests, which have ended
    impl.on_each_thread(&IoThread::end_sessions);
    const int64_t deadline = impl.context.clock.now_us() + kStopGraceUs;
    while (impl.context.counters.connections_open > 0 && impl.context.clock.now_us() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    impl.context.pool->close();
    impl.context.compiles->close();  // answers those who wait for a grammar
    // No generation outlives the context it refers to.
    impl.on_each_thread(&IoThread::end_generations);
    for (const std::shared_ptr<IoThread>& thread : impl.threads) thread->close();
  });
}

}  // namespace rudder::server
