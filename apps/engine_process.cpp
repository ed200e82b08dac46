#include "engine_process.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <utility>

#include "commands.h"
#include "report_error.h"
#include "rudder/base/clock.h"
#include "rudder/base/heap.h"
#include "rudder/base/log.h"
#include "rudder/engine/entropy.h"
#include "rudder/model/adapted_products.h"
#include "rudder/model/loader.h"
#include "rudder/model/norm_gains.h"
#include "rudder/remote/channel.h"
#include "rudder/remote/engine_host.h"
#include "rudder/remote/remote_engine.h"
#include "rudder/server/stall_report.h"
#include "rudder/server/vitals.h"
#include "serve_options.h"
#include "tier_keys.h"

namespace rudder::apps {
namespace {

constexpr int64_t kLastWordsMs = 2'000;

Result<void> check_front(const SessionSettings& settings) {
  const auto& capture = settings.steering.capture;
  const auto is_kept = [](const std::string& consumer) { return consumer.starts_with("kept"); };
  const bool keeps = std::ranges::any_of(capture.consumers, is_kept);
  // Each process would have the folder as its own.
  const bool shares_files =
      settings.data_parallel_size > 1 && !settings.exec.tiers.disk_dir.empty();
  const bool shares_records = settings.data_parallel_size > 1 && !settings.record.folder.empty();
  for (const auto& [is_asked, setting] :
       {std::pair(!settings.kv_events.config.empty(), "kv-events-config"),
        std::pair(!settings.steering.dictionaries.empty(), "dictionary"),
        std::pair(!settings.steering.dictionary_root.empty(), "dictionary-root"),
        std::pair(settings.residence.enable_sleep_mode, "enable-sleep-mode"),
        std::pair(!settings.residence.weights_root.empty(), "weights-root"),
        std::pair(keeps, "capture-consumer"), std::pair(shares_files, "kv-disk-dir"),
        std::pair(shares_records, "record")}) {
    if (!is_asked) continue;
    return fail(ErrorCode::kUnsupported, "it does not go together with --engine-process", setting);
  }
  return {};
}

// One that the front and its engine processes have in common: programs and adapters are named by
// keys that are hashed under it, and keys of cached prefixes are equal after a restart.
Result<std::string> common_secret(const SessionSettings& settings) {
  RUDDER_TRY(std::string secret, key_secret(settings));
  if (!secret.empty()) return secret;
  const auto drawn = engine::Entropy::from_system().hash_key;
  return fmt::format("{:016x}{:016x}", drawn[0], drawn[1]);
}

std::vector<remote::EngineCommand> commands_of(const SessionSettings& settings,
                                               const std::string& secret,
                                               const std::vector<std::string>& arguments) {
  std::vector<remote::EngineCommand> commands;
  for (int32_t replica = 0; replica < settings.data_parallel_size; ++replica) {
    remote::EngineCommand& command = commands.emplace_back();
    command.program = "/proc/self/exe";
    command.arguments = {"rudder", std::string(kEngineProcess), fmt::format("{}", replica)};
    command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
    command.environment = {"RUDDER_PREFIX_KEY_SECRET=" + secret};
  }
  return commands;
}

}  // namespace

Result<ModelSession> open_front(const std::string& model, const SessionSettings& settings,
                                const std::vector<std::string>& arguments) {
  const SteadyClock clock;
  const int64_t start = clock.now_us();
  RUDDER_TRY_VOID(check_front(settings));
  RUDDER_TRY(const std::string secret, common_secret(settings));
  ModelSession session;
  RUDDER_TRY(session.files, open_model_files(model, settings.load));
  RUDDER_TRY(remote::StartedEngine started,
             remote::start_engine(commands_of(settings, secret, arguments), settings.engine));
  session.engine = std::move(started.engine);
  session.dtype = std::move(started.dtype);
  RUDDER_TRY(const model::ModelSpec spec, model::read_spec(*session.files.checkpoint));
  session.generates = spec.has_head;
  const engine::RequestLimits limits = session.engine->limits();
  std::vector<tap::NormGain> mlp_gains;
  if (limits.taps.steering()) {
    RUDDER_TRY(mlp_gains, model::read_mlp_gains(*session.files.checkpoint, spec));
  }
  RUDDER_TRY(lora::Targets targets, model::adapter_targets(*session.files.checkpoint, spec));
  auto base = [checkpoint = std::move(session.files.checkpoint)](const lora::Target& target) {
    return model::base_tensors(*checkpoint, target);
  };
  RUDDER_TRY(session.adapters, make_adapters({.adapters = limits.adapters}, std::move(targets),
                                             std::move(base), settings.adapters, secret));
  RUDDER_TRY(session.steering,
             Steering::create(*session.engine, settings.steering, std::move(mlp_gains),
                              std::make_shared<LateLibrary>(nullptr), secret));
  return_freed_memory();
  log_info("{} ready in {} of its own in {:.2f} s", session.files.name,
           settings.data_parallel_size == 1 ? "a process" : "processes",
           static_cast<double>(clock.now_us() - start) * 1e-6);
  return session;
}

namespace {

// The front ends this process: a signal for the group is the front's matter. Where memory is short
// this process goes first: the front starts it again.
Result<void> live_with_front() {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::ofstream("/proc/self/oom_score_adj") << "500";
  if (getppid() == 1) return fail(ErrorCode::kUnavailable, "the front has ended");
  return {};
}

// Ends the process without a wait for threads that may stand still.
[[noreturn]] void end_in_child(remote::Channel& channel, const Error& error) {
  log_error("{}: the engine process ends, and the front starts another", error.to_string());
  channel.flush(kLastWordsMs);
  flush_logs();
  std::_Exit(1);
}

// Serves until the front ends.
void serve_front(remote::Channel& channel, std::unique_ptr<ModelSession> session) {
  engine::Engine& engine = *session->engine;
  remote::EngineHost host(engine, session->dtype, channel);
  const SteadyClock clock;
  server::Vitals vitals;
  server::Exertion exertion;
  server::StallReport stalls;
  vitals.add("the engine", [&engine] { return !engine.health(); });
  const Result<void> ended = host.run([&]() -> Result<void> {
    stalls.look(engine.replicas(), clock.now_us());
    return vitals.tick([&exertion] { return exertion.look(); });
  });
  if (!ended) end_in_child(channel, ended.error());
  channel.shut();
  session.reset();  // before the host, which its sinks refer to
}

}  // namespace

int run_engine_process(int argc, char** argv) {
  ServeOptions options;
  if (argc < 2) return report_bad_arguments({ErrorCode::kInvalidArgument, "which replica?", ""});
  options.session.replica = std::atoi(argv[1]);
  const Result<ParsedArguments> arguments = options.read(argc - 1, argv + 1);
  if (!arguments) return report_bad_arguments(arguments.error());
  options.session.adapters = {};  // the front reads them, and tells their content
  if (const Result<void> begun = live_with_front(); !begun) return report_failure(begun.error());
  remote::Channel channel(remote::kEngineDescriptor);
  Result<std::string> folder = fetch_models(options.model, options.session);
  Result<ModelSession> session =
      folder ? open_session(*folder, options.session) : tl::unexpected<Error>(folder.error());
  if (!session) {
    channel.send(remote::Channel::frame(remote::FromEngine(remote::NotReady{session.error()})));
    channel.flush(kLastWordsMs);
    return 1;
  }
  serve_front(channel, std::make_unique<ModelSession>(std::move(*session)));
  return 0;
}

}  // namespace rudder::apps
