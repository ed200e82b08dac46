// Converts calls whose arguments are not JSON into JSON once they are complete: Python's keyword
// arguments, and Gemma's braces. Internal to the room.
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

// "name(key=value, ...)", also inside print(...). Values are Python's or JSON's literals; nullopt
// for anything else, positional arguments among it.
std::optional<LooseCall> parse_python_call(std::string_view text);

// "call:name{key:value,...}". Strings stand between two `quote` marks; keys are bare.
std::optional<LooseCall> parse_braced_call(std::string_view text, std::string_view quote);

}  // namespace rudder::dialect
