// Python's two ways to format: text % values, and text.format(values). Widths and precisions are
// charged before anything is made of that size.
#pragma once

#include <string>
#include <string_view>

#include "rudder/text/jinja/arguments.h"
#include "rudder/text/jinja/value.h"

namespace rudder::text::jinja {

class Interpreter;

inline constexpr Int kMostWidth = 1 << 30;  // of a field: beyond what memory may hold

Value format_percent(Interpreter& in, const Value& format, const Value& values);
Value format_braces(Interpreter& in, const Value& format, const Call& call);

// Python's format(value, spec).
std::string format_value(Interpreter& in, const Value& value, std::string_view spec);
// The digits of |value| as %e, %f or %g write them, with their capitals.
std::string float_digits(Budget& budget, double value, char type, Int precision, bool alternate);
// The digits of |value| in base 2, 8, 10 or 16.
std::string integer_digits(Int value, int base, bool capitals);
// ascii(value): repr without characters beyond ASCII.
std::string to_ascii(Budget& budget, const Value& value);

}  // namespace rudder::text::jinja
