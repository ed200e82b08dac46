#include "command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>

#include "other_servers.h"
#include "rudder/server/http/plain_file.h"

namespace rudder::apps {
namespace {

// Lists of which several values may stand behind one flag, as in vLLM.
constexpr std::string_view kWordLists[] = {"api-key", "steering-api-key", "allowed-hosts",
                                           "allowed-origins", "served-model-name"};
constexpr int kMaxWords = 1024;

bool takes_words(const Setting& setting) {
  return std::ranges::find(kWordLists, setting.name) != std::end(kWordLists);
}

std::string option_names(const Setting& setting) {
  return setting.is_switch ? fmt::format("--{0},!--no-{0}", setting.name)
                           : fmt::format("--{}", setting.name);
}

std::map<std::string, CLI::Option*> declare_options(const SettingsTable& table, CLI::App& app) {
  std::map<std::string, CLI::Option*> options;
  for (const Setting& setting : table.all()) {
    CLI::Option* option = nullptr;
    if (setting.is_switch) {
      option = app.add_flag(option_names(setting), setting.doc);
    } else {
      option = app.add_option(option_names(setting), setting.doc);
      option->type_size(1)->expected(1)->multi_option_policy(
          setting.is_list ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
      if (takes_words(setting)) option->expected(1, kMaxWords);
    }
    options[setting.name] = option;
  }
  return options;
}

// "--api-key K MODEL": where no positional is left and the last of several words behind a flag is a
// path that exists, the path is the positional.
std::optional<std::string> take_trailing_path(
    const SettingsTable& table, std::map<std::string, std::vector<std::string>>& given) {
  for (auto& [name, values] : given) {
    std::error_code ignored;
    if (!takes_words(*table.find(name)) || values.size() < 2) continue;
    if (!std::filesystem::exists(values.back(), ignored)) continue;
    std::string path = std::move(values.back());
    values.pop_back();
    return path;
  }
  return std::nullopt;
}

Error unknown_flag(const std::string& flag, const SettingsTable& table) {
  const std::string_view typed = std::string_view(flag).substr(0, flag.find('='));
  if (const std::string_view hint = other_servers_hint(typed); !hint.empty()) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("unknown flag {}: {}", typed, hint),
                 flag};
  }
  const std::string near =
      table.nearest(typed.substr(std::min(typed.find_first_not_of('-'), typed.size())));
  return Error{ErrorCode::kInvalidArgument,
               near.empty() ? fmt::format("unknown flag {}", flag)
                            : fmt::format("unknown flag {}; did you mean --{}?", flag, near),
               flag};
}

// The file of --config is opened while flags are parsed: what would never end is refused before.
Result<void> check_config_file(int argc, char** argv) {
  constexpr std::string_view kFlag = "--config";
  for (int i = 1; i < argc; ++i) {
    std::string_view typed = argv[i];
    if (!typed.starts_with(kFlag)) continue;
    typed.remove_prefix(kFlag.size());
    if (typed.empty() && i + 1 < argc) return server::check_plain_file(argv[i + 1], "config");
    if (typed.starts_with('=')) {
      return server::check_plain_file(std::string(typed.substr(1)), "config");
    }
  }
  return {};
}

}  // namespace

Result<ParsedArguments> parse_arguments(const CommandLine& line, int argc, char** argv,
                                        SettingsTable& table) {
  CLI::App app(line.summary, line.command);
  app.set_help_flag();
  app.allow_extras();
  bool help = false;
  app.add_flag("-h,--help", help);
  app.set_config("--config");
  const std::map<std::string, CLI::Option*> options = declare_options(table, app);
  for (int i = 1; i < argc; ++i) {  // llama.cpp's -hf is not -h with something behind it
    const std::string_view typed = argv[i];
    if (typed.starts_with("-h") && typed.size() > 2) {
      return tl::unexpected<Error>(unknown_flag(argv[i], table));
    }
  }
  RUDDER_TRY_VOID(check_config_file(argc, argv));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return fail(ErrorCode::kInvalidArgument, error.what());
  }
  ParsedArguments parsed;
  if (help) {
    fmt::print("{}\n\nusage: {} {} [flags]\n{}", line.summary, line.command, line.positional_help,
               table.help_text());
    parsed.help_shown = true;
    return parsed;
  }
  bool may_be_flag = true;  // in front of "--"
  for (const std::string& extra : app.remaining()) {
    if (may_be_flag && extra == "--") {
      may_be_flag = false;
      continue;
    }
    if (may_be_flag && extra.size() > 1 && extra[0] == '-') {
      return tl::unexpected<Error>(unknown_flag(extra, table));
    }
    parsed.positionals.push_back(extra);
  }
  if (parsed.positionals.size() > line.max_positionals) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is one argument too many; usage: {} {} [flags]",
                    parsed.positionals[line.max_positionals], line.command, line.positional_help));
  }
  std::map<std::string, std::vector<std::string>> given;
  for (const auto& [name, option] : options) {
    if (!option->empty()) given[name] = option->results();
  }
  if (parsed.positionals.empty() && line.max_positionals > 0) {
    if (std::optional<std::string> path = take_trailing_path(table, given)) {
      parsed.positionals.push_back(std::move(*path));
    }
  }
  for (const auto& [name, values] : given) {
    for (const std::string& value : values) RUDDER_TRY_VOID(table.set(name, value));
  }
  RUDDER_TRY_VOID(table.read_environment());
  return parsed;
}

}  // namespace rudder::apps
