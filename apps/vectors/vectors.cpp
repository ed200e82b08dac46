// rudder vectors NAME: picks the command.
#include <fmt/format.h>

#include <string_view>

#include "commands.h"
#include "vectors/vector_commands.h"

namespace rudder::apps {
namespace {

struct VectorCommand {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};

constexpr VectorCommand kVectorCommands[] = {
    {"train", "steering vectors from two sets of prompts", vectors_train},
    {"eval", "what vectors do to a model, and what it costs, over a sweep of scales", vectors_eval},
};

}  // namespace

int run_vectors(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  for (const VectorCommand& command : kVectorCommands) {
    if (command.name == name) return command.run(argc - 1, argv + 1);
  }
  const bool help = name == "--help" || name == "-h";
  fmt::print(help ? stdout : stderr, "usage: rudder vectors NAME [flags]\n\n");
  for (const VectorCommand& command : kVectorCommands) {
    fmt::print(help ? stdout : stderr, "  {:<12} {}\n", command.name, command.summary);
  }
  return help ? 0 : 2;
}

}  // namespace rudder::apps
