// rudder features NAME: picks the command.
#include <fmt/format.h>

#include <string_view>

#include "commands.h"
#include "features/feature_commands.h"

namespace rudder::apps {
namespace {

struct FeatureCommand {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};

constexpr FeatureCommand kFeatureCommands[] = {
    {"rank", "which features tell two sets of prompts apart", features_rank},
    {"top", "the tokens of a text and their largest features", features_top},
    {"eval", "what a clamp of a feature does to answers, and what it costs", features_eval},
};

}  // namespace

int run_features(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  for (const FeatureCommand& command : kFeatureCommands) {
    if (command.name == name) return command.run(argc - 1, argv + 1);
  }
  const bool help = name == "--help" || name == "-h";
  fmt::print(help ? stdout : stderr, "usage: rudder features NAME [flags]\n\n");
  for (const FeatureCommand& command : kFeatureCommands) {
    fmt::print(help ? stdout : stderr, "  {:<12} {}\n", command.name, command.summary);
  }
  return help ? 0 : 2;
}

}  // namespace rudder::apps
