// rudder features top TEXT: the tokens of a text and the largest features of each.
#include <fmt/format.h>

#include <algorithm>

#include "command_line.h"
#include "features/feature_commands.h"
#include "features/prompt_features.h"
#include "prompt_file.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/features/top_features.h"

namespace rudder::apps {
namespace {

struct TopSettings {
  std::string model;
  int32_t layer = -1;
  int32_t top = 5;
  bool chat = false;

  void declare(SettingsTable& table) {
    table.section("features");
    table.add("model", &model, "The model; without it the demo model.");
    table.add("layer", &layer, -1, 100000, "Layer of a dictionary that has several.");
    table.add("top", &top, 1, 1000, "Features of each token.");
    table.add("chat", &chat, "Wrap the text as a user message.");
  }
};

Result<void> print_top(ModelSession& session, const std::string& text,
                       const TopSettings& settings) {
  RUDDER_TRY(const auto dictionary, session_dictionary(session, settings.layer));
  RUDDER_TRY(const std::vector<int32_t> prompt, encode_prompt(session.files, text, settings.chat));
  std::vector<std::vector<features::FeatureValue>> found(prompt.size());
  const auto take = [&](size_t /*prompt*/, size_t token, std::span<const float> features) {
    found[token] = features::top_features(features, settings.top);
  };
  RUDDER_TRY_VOID(encode_prompts(session, *dictionary, {prompt}, "tokens", take));
  for (size_t i = 0; i < prompt.size(); ++i) {
    std::string quoted;
    append_json_string(quoted, session.files.tokenizer->decode(std::span(&prompt[i], 1), false));
    fmt::print("{:>6}  {:<16}", i, quoted);
    for (const features::FeatureValue& one : found[i]) {
      fmt::print("  {}: {:.4g}", one.feature, one.value);
    }
    fmt::print("\n");
  }
  return {};
}

}  // namespace

int features_top(int argc, char** argv) {
  SessionSettings settings = feature_session_settings();
  TopSettings top_settings;
  SettingsTable table;
  top_settings.declare(table);
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder features top", "Show the largest features of each token of a text.", "TEXT", 1},
      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (arguments->positionals.empty()) {
    return report_bad_arguments(Error{ErrorCode::kInvalidArgument, "give a TEXT", ""});
  }
  Result<ModelSession> session = open_session(top_settings.model, settings);
  if (!session) return report_failure(session.error());
  const Result<void> done = print_top(*session, arguments->positionals[0], top_settings);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
