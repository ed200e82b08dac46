// Path: the attribute of an item that sort, map, groupby and the like are given: "a.b.0", a number,
// or nothing for the item itself. Made and used inside one filter.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/value.h"

namespace rudder::text::jinja {

class Path {
 public:
  // None: no attribute.
  Path(Interpreter& in, const Value& attribute);
  // `fallback`, if it is not None, replaces undefined attributes on the way.
  Value walk(Interpreter& in, Value value, const Value& fallback = None{}) const;

 private:
  std::vector<Value> parts_;
};

// What a value is compared by: strings without their case, unless asked otherwise.
Value sort_key(Interpreter& in, const Value& value, bool case_sensitive);

}  // namespace rudder::text::jinja
