// rudder serve: one model behind the OpenAI API. Loads, listens, prints the request to try, then
// waits for a signal: the first one drains, the second one is fast.
#include <fmt/format.h>
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <future>
#include <thread>

#include "command_line.h"
#include "commands.h"
#include "model_session.h"
#include "report_error.h"
#include "rudder/base/log.h"
#include "rudder/server/server.h"
#include "version.h"

namespace rudder::apps {
namespace {

struct ServeSettings {
  bool dry_run = false;

  void declare(SettingsTable& table) {
    table.section("serve");
    table.add("dry-run", &dry_run, "Print the memory plan and exit; nothing is loaded.");
  }
};

// SIGTERM and SIGINT as two events. Blocks the signals for every thread made after it.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
  }

  void wait() const {
    int signal = 0;
    while (sigwait(&set_, &signal) != 0) {
    }
    log_info("{} received", signal == SIGTERM ? "SIGTERM" : "SIGINT");
  }

  // False when none came before `stop` was set.
  bool wait_unless(const std::future<void>& stop) const {
    const timespec tick = {.tv_sec = 0, .tv_nsec = 50'000'000};
    while (stop.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      if (sigtimedwait(&set_, nullptr, &tick) > 0) return true;
    }
    return false;
  }

 private:
  sigset_t set_ = {};
};

server::ServerModel describe(const ModelSession& session, int32_t max_model_len) {
  server::ServerModel model;
  model.ids = {session.files.name};
  model.root = session.files.name;
  model.created = std::time(nullptr);
  model.max_model_len = max_model_len;
  model.tokenizer = session.files.tokenizer;
  model.chat = session.files.chat;
  model.defaults = session.files.generation.defaults;
  model.dtype = session.dtype;
  return model;
}

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

Result<void> serve(const std::string& model_path, const SessionSettings& session_settings,
                   const server::ServerSettings& server_settings, const SettingsTable& table) {
  const StopSignals signals;
  RUDDER_TRY(ModelSession session, open_session(model_path, session_settings));
  RUDDER_TRY(
      const std::unique_ptr<server::Server> server,
      server::Server::start({.engine = session.engine.get(),
                             .model = describe(session, session.engine->limits().max_seq_len),
                             .steering = session.steering ? &session.steering->library() : nullptr,
                             .all_settings = &table,
                             .version = kVersion},
                            server_settings));
  print_first_request(*server, session, server_settings);
  signals.wait();
  std::promise<void> drained;
  std::thread second_signal([&, stop = drained.get_future()] {
    if (signals.wait_unless(stop)) server->hurry();
  });
  const auto grace_us = static_cast<int64_t>(server_settings.shutdown_timeout * 1e6);
  const bool clean = server->drain(grace_us);
  drained.set_value();
  second_signal.join();
  server->stop();
  log_info("{}", clean ? "drained: every request had finished"
                       : "stopped before the end of some requests");
  return {};
}

}  // namespace

int run_serve(int argc, char** argv) {
  ServeSettings serve_settings;
  SessionSettings session_settings;
  server::ServerSettings server_settings;
  SettingsTable table;
  serve_settings.declare(table);
  server_settings.declare(table);
  session_settings.declare(table);
  const Result<ParsedArguments> arguments =
      parse_arguments({"rudder serve",
                       "Serve a model over the OpenAI API. MODEL is a folder in the Hugging Face "
                       "layout; without it, the embedded demo model is served.",
                       "[MODEL]", 1},
                      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  const std::string model = arguments->positionals.empty() ? "" : arguments->positionals[0];
  if (serve_settings.dry_run) {
    const Result<ModelFiles> files = open_model_files(model, session_settings.load);
    if (!files) return report_failure(files.error());
    const Result<exec::MemoryPlan> plan = plan_session(*files, session_settings);
    if (!plan) return report_failure(plan.error());
    fmt::print("{}", plan->to_table());
    return 0;
  }
  const Result<void> served = serve(model, session_settings, server_settings, table);
  return served ? 0 : report_failure(served.error());
}

}  // namespace rudder::apps
