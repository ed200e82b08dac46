// What is read as JSON is the same value when it is written and read again, keys in the same order;
// text is JSON only as UTF-8; any UTF-8 is a string.
#include <boost/json.hpp>
#include <cmath>

#include "require.h"
#include "rudder/base/json.h"
#include "rudder/base/utf8.h"

namespace rudder::fuzz {
namespace {

size_t depth_of(const boost::json::value& value) {
  size_t deepest = 0;
  if (value.is_array()) {
    for (const auto& each : value.get_array()) deepest = std::max(deepest, depth_of(each));
  } else if (value.is_object()) {
    for (const auto& each : value.get_object()) deepest = std::max(deepest, depth_of(each.value()));
  } else {
    return 0;
  }
  return deepest + 1;
}

// Numbers of many digits are read to within some units of the last place (base/json.h).
bool same_number(double a, double b) {
  return a == b || std::fabs(a - b) <= 1e-15 * std::fabs(a);
}

bool same_value(const boost::json::value& a, const boost::json::value& b) {
  if (a.is_double() && b.is_number()) return same_number(a.get_double(), b.to_number<double>());
  if (a.is_array() && b.is_array()) {
    return std::ranges::equal(a.get_array(), b.get_array(), same_value);
  }
  if (a.is_object() && b.is_object()) {
    return std::ranges::equal(a.get_object(), b.get_object(), [](const auto& x, const auto& y) {
      return x.key() == y.key() && same_value(x.value(), y.value());
    });
  }
  return a == b;
}

}  // namespace

void fuzz_json(std::string_view input) {
  const JsonLimits limits = {.max_depth = 12, .max_bytes = 4096};
  const auto value = parse_json(input, "input", limits);
  if (value) {
    RUDDER_CHECK(input.size() <= limits.max_bytes && depth_of(*value) <= limits.max_depth);
    RUDDER_CHECK(!find_invalid_utf8(input), "not UTF-8, and read");
    const std::string text = to_json_text(*value);
    const auto again = parse_json(text, "again");
    RUDDER_CHECK(again.has_value(), "{:?}: {}", text, again.error().to_string());
    RUDDER_CHECK(same_value(*again, *value), "{:?}", text);
  } else {
    require_error(value.error(), {ErrorCode::kInvalidArgument, ErrorCode::kTooLarge});
  }
  if (find_invalid_utf8(input)) return;
  std::string quoted;
  append_json_string(quoted, input);
  const auto read = parse_json(quoted, "string");
  RUDDER_CHECK(read.has_value() && read->is_string() && read->get_string() == input, "{:?}",
               quoted);
}

}  // namespace rudder::fuzz
