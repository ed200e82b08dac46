// rudder make-model: a random checkpoint of true shape, for benches where no model can be fetched.
#include <fmt/format.h>

#include <string>

#include "command_line.h"
#include "commands.h"
#include "report_error.h"
#include "rudder/base/log.h"
#include "rudder/base/progress.h"
#include "rudder/model/make_model.h"

namespace rudder::apps {

int run_make_model(int argc, char** argv) {
  model::MakeModelArgs args;
  int64_t seed = 0;
  std::string tokenizer = "bytelevel";
  SettingsTable table;
  table.section("make-model");
  table.add("like", &args.like,
            fmt::format("The shape: {}; or, of an assistant, {}.",
                        fmt::join(model::make_model_names(), ", "),
                        fmt::join(model::make_assistant_names(), ", ")));
  table.add("layers", &args.num_layers, 0, 1024, "Layers; 0 is as many as the shape has.");
  table.add("seed", &seed, 0, INT64_MAX, "The same seed writes the same bytes.");
  table.add_choice(
      "tokenizer", &tokenizer, {"bytelevel", "bytefallback"},
      "The kind: tokens of bytes, as GPT-2's, or of characters with a token a byte for "
      "the others, as Llama 2's.");
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder make-model", "Write a random checkpoint of true shape into DIR.", "DIR", 1}, argc,
      argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (arguments->positionals.empty() || args.like.empty()) {
    return report_bad_arguments(
        Error{ErrorCode::kInvalidArgument, "needs a folder to write to, and --like", ""});
  }
  args.folder = arguments->positionals[0];
  args.seed = static_cast<uint64_t>(seed);
  if (tokenizer == "bytefallback") args.tokenizer = model::TokenizerKind::kByteFallback;
  Progress progress("write", true);
  const Result<void> made = model::make_model(args, progress.callback());
  return made ? 0 : report_failure(made.error());
}

}  // namespace rudder::apps
