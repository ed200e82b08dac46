// rudder eval NAME: picks the command.
#include <fmt/format.h>

#include <string_view>

#include "commands.h"
#include "eval/eval_commands.h"

namespace rudder::apps {
namespace {

struct EvalCommand {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};

constexpr EvalCommand kEvalCommands[] = {
    {"perplexity", "of a text; stores log-probabilities for others to be compared with",
     eval_perplexity},
    {"kl", "how far a model's distributions are from those that a run stored", eval_kl},
};

}  // namespace

int run_eval(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  for (const EvalCommand& command : kEvalCommands) {
    if (command.name == name) return command.run(argc - 1, argv + 1);
  }
  const bool help = name == "--help" || name == "-h";
  fmt::print(help ? stdout : stderr, "usage: rudder eval NAME FILE [MODEL] [flags]\n\n");
  for (const EvalCommand& command : kEvalCommands) {
    fmt::print(help ? stdout : stderr, "  {:<12} {}\n", command.name, command.summary);
  }
  return help ? 0 : 2;
}

}  // namespace rudder::apps
