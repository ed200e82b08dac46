#include "command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>

#include "other_servers.h"

namespace rudder::apps {
namespace {

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
    }
    options[setting.name] = option;
  }
  return options;
}

Error unknown_flag(const std::string& flag, const SettingsTable& table) {
  const std::string_view typed = std::string_view(flag).substr(0, flag.find('='));
  if (const std::string_view hint = other_servers_hint(typed); !hint.empty()) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("unknown flag {}: {}", typed, hint),
                 flag};
  }
  const std::string near = table.nearest(typed.substr(typed.find_first_not_of('-')));
  return Error{ErrorCode::kInvalidArgument,
               near.empty() ? fmt::format("unknown flag {}", flag)
                            : fmt::format("unknown flag {}; did you mean --{}?", flag, near),
               flag};
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
  for (const std::string& extra : app.remaining()) {
    if (extra.size() > 1 && extra[0] == '-')
      return tl::unexpected<Error>(unknown_flag(extra, table));
    parsed.positionals.push_back(extra);
  }
  if (parsed.positionals.size() > line.max_positionals) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is one argument too many; usage: {} {} [flags]",
                    parsed.positionals[line.max_positionals], line.command, line.positional_help));
  }
  RUDDER_TRY_VOID(table.read_environment());
  for (const auto& [name, option] : options) {
    for (const std::string& value : option->results()) RUDDER_TRY_VOID(table.set(name, value));
  }
  return parsed;
}

}  // namespace rudder::apps
