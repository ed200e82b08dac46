#include "rudder/text/jinja/paths.h"

#include "rudder/text/jinja/numbers.h"
#include "rudder/text/jinja/strings.h"

namespace rudder::text::jinja {

Path::Path(Interpreter& in, const Value& attribute) {
  if (attribute.is_none()) return;
  if (!attribute.is_string()) {
    parts_.push_back(attribute);
    return;
  }
  const std::string_view dot = ".";
  for (const std::string_view part : split(attribute.text(), &dot, -1)) {
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    parts_.push_back(digits ? Value(*parse_int(part)) : in.string(std::string(part)));
  }
}

Value Path::walk(Interpreter& in, Value value, const Value& otherwise) const {
  for (const Value& part : parts_) {
    value = in.item(value, part);
    if (value.is_undefined() && !otherwise.is_none()) value = otherwise;
  }
  return value;
}

Value sort_key(Interpreter& in, const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? in.string(to_lower(value.text())) : value;
}

}  // namespace rudder::text::jinja
