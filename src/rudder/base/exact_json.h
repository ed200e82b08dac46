// JSON whose numbers lose no digit, for schemas and for bodies of requests that carry some: a
// number that no int64_t has is kept as its text. Such a value is a string of a byte that no text
// has and the number; to_json_text() writes it as the number. Only .cpp files include
// <boost/json.hpp>. Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "rudder/base/decimal.h"
#include "rudder/base/json.h"

namespace rudder {

// As parse_json(). No number in it is a double.
Result<boost::json::value> parse_json_exactly(std::string_view text, std::string_view what,
                                              const JsonLimits& limits = {});

// The same, but numbers are as parse_json() has them, other than in the fields of the document that
// are named: there, those are kept as their text that no integer or double says exactly.
Result<boost::json::value> parse_json_exactly_in(std::span<const std::string_view> fields,
                                                 std::string_view text, std::string_view what,
                                                 const JsonLimits& limits = {});

// Whether it is a number, kept as its text or not; whether it is a string of the document.
bool is_number(const boost::json::value& value);
bool is_string(const boost::json::value& value);
// Nothing where it reaches beyond Decimal::kMaxExponent.
std::optional<Decimal> decimal_of(const boost::json::value& number);
boost::json::value exact_number(const Decimal& number);

// The value with doubles in place of numbers that are kept as their text.
boost::json::value with_doubles(const boost::json::value& value);

// Text in which strings of numbers are numbers. For to_json_text().
std::string with_plain_numbers(std::string text);

}  // namespace rudder
