// Evaluated arguments of a call, and how they are given to parameters, by Python's rules. Used by
// the filters, tests, methods and global functions.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/text/jinja/value.h"

namespace rudder::text::jinja {

struct Call {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Signature {
  std::string_view parameters = "";  // "width,first,blank"
  size_t required = 0;               // of the first of them
  bool by_name = true;               // may they be given by name?
};
inline constexpr Signature kNoArguments{"", 0, false};

// The arguments by parameter; missing where none was given.
class Args {
 public:
  // Raises as Python does: too many, too few, unknown, or given twice. `what` is for messages.
  Args(const Signature& signature, const Call& call, std::string_view what);

  bool has(size_t index) const { return !values_[index].is_missing(); }
  // Given, and not None.
  bool holds(size_t index) const { return has(index) && !values_[index].is_none(); }
  const Value& operator[](size_t index) const { return values_[index]; }
  Value get(size_t index, const Value& fallback) const {
    return has(index) ? values_[index] : fallback;
  }
  bool flag(size_t index) const { return has(index) && truthy(values_[index]); }
  // These raise if it is something else.
  Int integer(size_t index, Int fallback = 0) const;
  std::string_view text(size_t index) const;

 private:
  static constexpr size_t kMost = 5;
  std::array<Value, kMost> values_;
};

}  // namespace rudder::text::jinja
