// The command line as a view of the settings table: every setting is a flag (--name VALUE,
// --[no-]switch) and an environment variable (RUDDER_NAME); an unknown flag is answered with the
// nearest name. Used once, at start, by each command.
#pragma once

#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/base/settings.h"

namespace rudder::apps {

struct CommandLine {
  std::string command;  // "rudder serve"
  std::string summary;
  std::string positional_help;  // "[MODEL]"
  size_t max_positionals = 1;
};

struct ParsedArguments {
  std::vector<std::string> positionals;
  bool help_shown = false;  // the caller returns 0
};

// Flags win over the lines (key = value) of a --config file, and these over the environment.
Result<ParsedArguments> parse_arguments(const CommandLine& line, int argc, char** argv,
                                        SettingsTable& table);

}  // namespace rudder::apps
