// rudder serve: one model behind the OpenAI API. Loads, listens, prints the request to try, then
// waits for a signal: the first one drains, the second one is fast.
#include <fmt/format.h>
#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "commands.h"
#include "engine_process.h"
#include "model_session.h"
#include "report_error.h"
#include "rudder/base/log.h"
#include "rudder/server/server.h"
#include "rudder/server/vitals.h"
#include "serve_options.h"
#include "served_model.h"
#include "version.h"

namespace rudder::apps {
namespace {

// SIGTERM and SIGINT as two events, and SIGHUP before them where it is wanted. Blocks the signals
// for every thread made after it.
class Signals {
 public:
  explicit Signals(bool with_hangup) {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    if (with_hangup) sigaddset(&set_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);  // a file may grow no more: writing says so
  }

  // Returns when the server is to stop: on a signal, or with the Error of `watch`, which is called
  // every Vitals::kPeriodUs.
  Result<void> wait(const std::function<void()>& on_hangup,
                    const std::function<Result<void>()>& watch) const {
    const timespec tick = {.tv_sec = 0, .tv_nsec = server::Vitals::kPeriodUs * 1000};
    while (true) {
      const int signal = sigtimedwait(&set_, nullptr, &tick);
      if (signal == SIGHUP) on_hangup();
      if (signal == SIGTERM || signal == SIGINT) {
        log_info("{} received", signal == SIGTERM ? "SIGTERM" : "SIGINT");
        return {};
      }
      if (signal < 0 && errno == EAGAIN) RUDDER_TRY_VOID(watch());
    }
  }

  // False when none came before `stop` was set.
  bool wait_unless(const std::future<void>& stop) const {
    const timespec tick = {.tv_sec = 0, .tv_nsec = 50'000'000};
    while (stop.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      const int signal = sigtimedwait(&set_, nullptr, &tick);
      if (signal > 0 && signal != SIGHUP) return true;
    }
    return false;
  }

 private:
  sigset_t set_ = {};
};

void print_first_request(const server::Server& server, const ModelSession& session,
                         const server::ServerSettings& settings) {
  const std::string& model =
      settings.served_model_name.empty() ? session.files.name : settings.served_model_name[0];
  const std::string socket =
      settings.uds.empty() ? "" : fmt::format(" --unix-socket {}", settings.uds);
  const std::string url = settings.uds.empty() ? server.address() : "http://localhost";
  fmt::print(
      "\nServing {} on {}. Try:\n\n"
      "  curl{} {}/v1/chat/completions -H 'Content-Type: application/json' -d '{{\"model\": "
      "\"{}\", \"stream\": true, \"messages\": [{{\"role\": \"user\", \"content\": \"What is 27 + "
      "58?\"}}]}}'\n\n",
      model, server.address(), socket, url, model);
  std::fflush(stdout);
}

std::vector<const fleet::EventPublisher*> publishers_of(const ModelSession& session) {
  std::vector<const fleet::EventPublisher*> publishers;
  publishers.reserve(session.kv_events.size());
  for (const auto& publisher : session.kv_events) publishers.push_back(publisher.get());
  return publishers;
}

constexpr auto kLastWords = std::chrono::seconds(5);

// Ends the process without a wait for threads that may stand still; what is left to say is said
// first, for a bounded time.
[[noreturn]] void end_failed(server::Server& server, const Error& error) {
  log_error("{}: the server ends, so that what supervises it starts another", error.to_string());
  std::promise<void> said;
  const std::future<void> is_said = said.get_future();
  std::thread([&server, &said] {
    server.drain(std::chrono::microseconds(kLastWords).count() / 2);
    server.stop();
    said.set_value();
  }).detach();
  is_said.wait_for(kLastWords);
  flush_logs();
  std::_Exit(1);
}

// `arguments`: of the command line, for engine processes.
Result<void> serve(const ServeOptions& options, const std::vector<std::string>& arguments) {
  const server::ServerSettings& server_settings = options.server;
  SessionSettings session_settings = options.session;
  session_settings.apply_log_level();
  RUDDER_TRY(const std::string folder, fetch_models(options.model, session_settings));
  const Signals signals(!server_settings.ssl_certfile.empty());
  RUDDER_TRY(ModelSession session, options.serve.engine_process
                                       ? open_front(folder, session_settings, arguments)
                                       : open_session(folder, session_settings));
  RUDDER_TRY(
      const std::unique_ptr<server::Server> server,
      server::Server::start({.engine = session.engine.get(),
                             .model = served_model(session),
                             .kv_events = publishers_of(session),
                             .residence = session.residence.get(),
                             .steering = session.steering ? &session.steering->library() : nullptr,
                             .all_settings = &options.table,
                             .version = kVersion},
                            server_settings));
  print_first_request(*server, session, server_settings);
  const Result<void> ended = signals.wait(
      [&] {
        const Result<void> read = server->reload_certificate();
        if (read) return log_info("SIGHUP: the certificate was read again");
        log_error("SIGHUP: the certificate stays as it was: {}", read.error().to_string());
      },
      [&] { return server->watch(); });
  if (!ended) end_failed(*server, ended.error());
  std::promise<void> drained;
  std::thread second_signal([&, stop = drained.get_future()] {
    if (signals.wait_unless(stop)) server->hurry();
  });
  const auto grace_us = static_cast<int64_t>(server_settings.shutdown_timeout * 1e6);
  const bool clean = server->drain(grace_us);
  drained.set_value();
  second_signal.join();
  server->stop();
  const Result<void> health = session.engine->health();
  if (!health && health.error().code == ErrorCode::kInternal) {
    end_failed(*server, health.error());  // a thread of a dead engine may never come to its end
  }
  log_info("{}", clean ? "drained: every request had finished"
                       : "stopped before the end of some requests");
  return {};
}

}  // namespace

int run_serve(int argc, char** argv) {
  ServeOptions options;
  const Result<ParsedArguments> arguments = options.read(argc, argv);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (options.serve.dry_run) {
    const Result<ModelFiles> files = open_model_files(options.model, options.session.load);
    if (!files) return report_failure(files.error());
    const Result<exec::MemoryBudget> budget = budget_session(*files, options.session);
    if (!budget) return report_failure(budget.error());
    if (options.serve.data_parallel_size > 1) {
      fmt::print("of each of {} engines:\n", options.serve.data_parallel_size);
    }
    fmt::print("{}", budget->to_table());
    return 0;
  }
  const Result<void> served = serve(options, {argv + 1, argv + argc});
  return served ? 0 : report_failure(served.error());
}

}  // namespace rudder::apps
