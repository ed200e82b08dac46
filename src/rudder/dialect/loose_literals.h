// Converts calls whose arguments are Python's into JSON once they are complete. Internal to the
// room.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rudder::dialect {

struct LooseCall {
  std::string name;
  std::string arguments;  // the JSON text of an object
};

// One value, of Python or JSON, as JSON; nullopt for anything else.
std::optional<std::string> parse_python_value(std::string_view text);

// An object of Python or JSON with nothing but blanks and closing brackets behind it, as JSON.
std::optional<std::string> parse_python_object(std::string_view text);

// "name(key=value, ...)", also inside print(...). Values are Python's or JSON's literals, null
// where there is none; a bracket inside that is missing stands where the one around it closes.
// nullopt for anything else, positional arguments among it. `is_cut`: the text ends inside the
// call; so do the arguments.
std::optional<LooseCall> parse_python_call(std::string_view text, bool is_cut = false);

}  // namespace rudder::dialect
