// rudder: parses the command's name and hands over. Wiring only.
#include <fmt/format.h>

#include <string_view>

#include "commands.h"
#include "rudder/base/heap.h"
#include "version.h"

namespace rudder::apps {
namespace {

struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};

constexpr Command kCommands[] = {
    {"serve", "OpenAI-compatible HTTP server for one model", run_serve},
    {"generate", "one prompt, or a file of prompts, to text or JSONL", run_generate},
    {"chat", "talk to a model in the terminal", run_chat},
    {"tokenize", "text to token ids and back", run_tokenize},
    {"info", "what a checkpoint holds and what memory it would take", run_info},
    {"make-model", "write a random checkpoint of true shape, for benches", run_make_model},
    {"vectors", "learn steering vectors, and see what they do: train, eval", run_vectors},
    {"features", "find features of a dictionary, and see what they do: rank, top, eval",
     run_features},
    {"replay", "run a recording of --record again and compare its tokens", run_replay},
    {"bench", "measure: latency, throughput, serve, ops", run_bench},
};

void print_usage(FILE* out) {
  fmt::print(out, "rudder {}: an LLM inference server\n\nusage: rudder COMMAND [arguments]\n\n",
             kVersion);
  for (const Command& command : kCommands) {
    fmt::print(out, "  {:<12} {}\n", command.name, command.summary);
  }
  fmt::print(out, "\nrudder COMMAND --help lists the flags of a command.\n");
}

}  // namespace
}  // namespace rudder::apps

int main(int argc, char** argv) {
  using namespace rudder::apps;  // NOLINT(google-build-using-namespace)
  rudder::limit_kept_memory();
  const std::string_view name = argc > 1 ? argv[1] : "--help";
  if (name == "--version" || name == "version") {
    fmt::print("rudder {}\n", kVersion);
    return 0;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    print_usage(stdout);
    return 0;
  }
  for (const Command& command : kCommands) {
    if (command.name == name) return command.run(argc - 1, argv + 1);
  }
  fmt::print(stderr, "rudder: unknown command '{}'\n\n", name);
  print_usage(stderr);
  return 2;
}
