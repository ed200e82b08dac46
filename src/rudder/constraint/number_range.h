// Grammar nodes for JSON numbers between bounds. Digits are compared as text, so bounds and numbers
// are decimal and exact, however large. Called by translations; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rudder/base/decimal.h"
#include "rudder/base/result.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

// Digits that a bound may ask an output to have, in front of the point or behind it.
constexpr int64_t kMaxBoundDigits = 400;
// Digits in front of the point up to which a bound that is farther from zero than what is valid
// is written out. One beyond says nothing: what is open on a side has fewer digits.
constexpr int64_t kMaxFarDigits = 64;

// Whole numbers without fraction or exponent, between whole bounds, both inclusive, where they are
// given. An open side goes on to 18 digits, or one more than the bound on the other side has.
RuleSet::Node integer_range(RuleSet& rules, const std::optional<Decimal>& min,
                            const std::optional<Decimal>& max);

// Multiples of `divisor` (1 or more) between whole bounds. kInvalidArgument where there are more
// than kMaxListed of them, other than up to kMaxDivisor where no bound has more than
// kMaxStepDigits: rules for each count of digits would be too many.
constexpr int64_t kMaxListed = 1000;
constexpr int64_t kMaxDivisor = 100;
constexpr int64_t kMaxStepDigits = 2;
Result<RuleSet::Node> multiples(RuleSet& rules, int64_t divisor, const std::optional<Decimal>& min,
                                const std::optional<Decimal>& max);
// Whether one number is another one a whole number of times; nothing where that is too long to
// tell.
std::optional<bool> is_multiple(const Decimal& number, const Decimal& divisor);

// Decimal numbers without exponent. At most 15 digits, so that a double that is read from the text
// stands to the bounds as the text does; more where they are whole, and where they are an inclusive
// bound.
constexpr size_t kExactDigits = 15;
struct NumberForm {
  size_t max_fraction = SIZE_MAX;  // digits behind the point
  bool has_whole = true;           // whole numbers are among them
};
RuleSet::Node number_range(RuleSet& rules, const std::optional<NumberBound>& min,
                           const std::optional<NumberBound>& max, NumberForm form = {});

// Of number_range.cpp, for multiples.
RuleSet::Node one_digit(RuleSet& rules, char first, char last);
RuleSet::Node any_digits(RuleSet& rules, size_t min, size_t max);

}  // namespace rudder::constraint
