// rudder: parses the command's name and hands over. Wiring only.
#include <fmt/format.h>

#include <csignal>
#include <string_view>
#include <utility>

#include "commands.h"
#include "engine_process.h"
#include "rudder/base/heap.h"
#include "run_command.h"
#include "version.h"

namespace rudder::apps {
namespace {

struct Command {
  std::string_view subject;
  std::string_view name;
  std::string_view summary;
  RunCommand run;
};

// In the order of their subjects. --help fits a screen of 24 lines and 80 columns.
constexpr Command kCommands[] = {
    {"Serve", "serve", "OpenAI's and Anthropic's APIs over HTTP, for one model", run_serve},
    {"Use here", "generate", "one prompt, or a file of prompts or batch lines", run_generate},
    {"Use here", "chat", "talk to a model in the terminal", run_chat},
    {"Use here", "tokenize", "text to token ids and back", run_tokenize},
    {"Models", "pull", "fetch a model of the hub into the cache", run_pull},
    {"Models", "models", "what the cache of models holds: list, remove", run_models},
    {"Models", "doctor", "what would make a start fail: GPU, memory, ports, ...", run_doctor},
    {"Models", "info", "what a checkpoint holds, what memory it would take", run_info},
    {"Models", "make-model", "write a random checkpoint of true shape, for benches",
     run_make_model},
    {"Models", "quantise", "write a model in fewer bits, tell what it costs", run_quantise},
    {"Steering", "vectors", "learn vectors, and see what they do: train, eval", run_vectors},
    {"Steering", "features", "features of a dictionary: rank, top, eval", run_features},
    {"Measure", "bench", "latency, throughput, serve, steering, ops, ...", run_bench},
    {"Measure", "eval", "perplexity of a text, KL from a stored run", run_eval},
    {"Measure", "replay", "run a recording of --record again, compare its tokens", run_replay},
};

void print_usage(FILE* out) {
  fmt::print(out, "rudder {}: an LLM inference server\n\nusage: rudder COMMAND [arguments]\n\n",
             kVersion);
  std::string_view subject;
  for (const Command& command : kCommands) {
    const bool is_first = std::exchange(subject, command.subject) != command.subject;
    fmt::print(out, "  {:<9} {:<11} {}\n", is_first ? command.subject : "", command.name,
               command.summary);
  }
  fmt::print(out,
             "\nrudder COMMAND --help lists its flags. Each is a variable, too: RUDDER_PORT.\n");
}

}  // namespace
}  // namespace rudder::apps

int main(int argc, char** argv) {
  using namespace rudder::apps;  // NOLINT(google-build-using-namespace)
  rudder::limit_kept_memory();
  // A file that may not grow (ulimit -f, a quota) is an error of whoever writes it.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::string_view name = argc > 1 ? argv[1] : "--help";
  if (name == "--version" || name == "version") {
    fmt::print("rudder {}\n", kVersion);
    return 0;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    print_usage(stdout);
    return 0;
  }
  if (name == kEngineProcess) return run_command(run_engine_process, argc - 1, argv + 1);
  for (const Command& command : kCommands) {
    if (command.name == name) return run_command(command.run, argc - 1, argv + 1);
  }
  fmt::print(stderr, "rudder: unknown command '{}'\n\n", name);
  print_usage(stderr);
  return 2;
}
