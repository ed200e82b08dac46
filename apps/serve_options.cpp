#include "serve_options.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <string>
#include <utility>

namespace rudder::apps {
namespace {

// Behind a proxy that gives up on a silent connection after a minute, as nginx and the balancers of
// clouds do, whoever waits longer than this for a first token gets an error all the same, and what
// is computed for him is for nobody. Who is told early with a Retry-After goes elsewhere.
constexpr double kMaxQueueSeconds = 60;

// Folders that are looked into later, when a client asks or rows spill: one that is not there would
// be found out then.
Result<void> check_folders(const SessionSettings& session) {
  const steer::capture::CaptureSettings& capture = session.steering.capture;
  const bool spills = session.exec.capture_memory_mb > 0 && capture.overload_policy == "spill";
  for (const auto& [folder, setting] :
       {std::pair(session.adapters.root, "lora-root"),
        std::pair(session.residence.weights_root, "weights-root"),
        std::pair(spills ? capture.spill_dir : std::string(), "capture-spill-dir")}) {
    std::error_code ignored;
    if (folder.empty() || std::filesystem::is_directory(folder, ignored)) continue;
    return fail(ErrorCode::kNotFound, fmt::format("--{}: there is no folder '{}'", setting, folder),
                setting);
  }
  return {};
}

}  // namespace

void ServeSettings::declare(SettingsTable& table) {
  table.section("serve");
  table.add("dry-run", &dry_run, "Print the memory budget and exit; nothing is loaded.");
  table.add("model", &model, "The model's folder or name; the same as MODEL.");
  table.add("seed", &seed, -1, std::numeric_limits<int64_t>::max(),
            "Requests that bring no seed draw theirs from this one, in order of arrival; -1 takes "
            "the system's entropy.");
  residence.declare(table);
  table.add("embedding-memory-mb", &embedding_memory_mb, 0, 1 << 20,
            "MiB on the device for the hidden states of prompts that /v1/embeddings pools, where "
            "--capture-memory-mb gives none; 0: no embeddings.");
  table.add("data-parallel-size", &data_parallel_size, 1, 64,
            "Engines behind this server, each with the whole model and a cache of its own; a "
            "request goes to one that has its prefix and little to do (docs/parallel.md). On a "
            "CPU they share its threads and memory.");
  table.add("engine-process", &engine_process,
            "Runs each engine in a process of its own, which is started again where it ends: only "
            "answers in progress end with it (docs/fleet.md).");
  table.add("enable-auto-tool-choice", &enable_auto_tool_choice,
            "Accepted and without effect: models may always choose to call tools.");
  table.add("trust-remote-code", &trust_remote_code,
            "Accepted and without effect: no code from a model's folder is ever run.");
  table.add("enable-chunked-prefill", &enable_chunked_prefill,
            "Accepted and without effect: prompts are always run in chunks of what a step has "
            "left.");
}

ServeOptions::ServeOptions() {
  session.engine.max_queue_seconds = kMaxQueueSeconds;
  serve.declare(table);
  server.declare(table);
  session.declare(table);
}

Result<ParsedArguments> ServeOptions::read(int argc, char** argv) {
  RUDDER_TRY(ParsedArguments arguments,
             parse_arguments({"rudder serve",
                              "Serve a model over the OpenAI API. MODEL is a folder in the Hugging "
                              "Face layout, or a name of the hub (ORG/NAME); without it, the "
                              "embedded demo model is served.",
                              "[MODEL]", 1},
                             argc, argv, table));
  if (!arguments.positionals.empty() && !serve.model.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' besides --model {}: one of the two", arguments.positionals[0],
                            serve.model),
                "model");
  }
  model = arguments.positionals.empty() ? serve.model : arguments.positionals[0];
  session.exec.embedding_memory_mb = serve.embedding_memory_mb;
  session.data_parallel_size = serve.data_parallel_size;
  session.residence = serve.residence;
  session.streams_to_clients = true;
  session.engine.seed = serve.seed;
  session.grammars = compile_grammars(server.grammars);
  if (!arguments.help_shown) RUDDER_TRY_VOID(check_folders(session));
  return arguments;
}

}  // namespace rudder::apps
