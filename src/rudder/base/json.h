// Parses and writes JSON for the whole program: Boost.JSON with limits on depth and size, and an
// Error that names the position. Objects keep the order of their keys. Only .cpp files include
// <boost/json.hpp>. Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder {

struct JsonLimits {
  size_t max_depth = 64;
  size_t max_bytes = size_t{256} << 20;
};

// `what` names the document in errors ("request body", "config.json"). Strict: UTF-8, one value, no
// comments or trailing commas, duplicate keys keep the last. Doubles: to a few units in last place.
Result<boost::json::value> parse_json(std::string_view text, std::string_view what,
                                      const JsonLimits& limits = {});

// Compact text of `value`, keys in order.
std::string to_json_text(const boost::json::value& value);

// Appends `text` as a quoted JSON string: the hot path of streaming responses.
void append_json_string(std::string& out, std::string_view text);

}  // namespace rudder
