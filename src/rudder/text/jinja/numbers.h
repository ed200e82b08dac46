// Python's numbers: how they are read, written, rounded and computed with.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rudder/text/jinja/value.h"

namespace rudder::text::jinja {

std::string int_text(Int value);
std::string float_text(double value);  // repr(value)
// int(text, base) and float(text); nothing where Python raises a ValueError. `base` 0: by prefix.
std::optional<Int> parse_int(std::string_view text, int base = 10);
std::optional<double> parse_float(std::string_view text);
// int(value) of a finite float that fits; raises for others.
Int truncate(double value);
// round(value, digits) of any number.
Value round_number(const Value& value, Int digits);
// left op right of two numbers.
Value arithmetic(std::string_view op, const Value& left, const Value& right);
Value negated(const Value& value);

}  // namespace rudder::text::jinja
