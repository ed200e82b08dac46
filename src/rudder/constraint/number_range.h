// Grammar nodes for JSON numbers between bounds. Digits are compared as text, so bounds and numbers
// are decimal and exact. Called by translations; one thread.
#pragma once

#include <cstdint>
#include <optional>

#include "rudder/base/result.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

struct NumberBound {
  double value = 0;
  bool exclusive = false;
};

// Whole numbers without fraction or exponent, from `min` to `max` inclusive where they are given;
// an open side goes on to 18 digits.
RuleSet::Node integer_range(RuleSet& rules, std::optional<int64_t> min, std::optional<int64_t> max);

// Multiples of `divisor` (1 to kMaxDivisor) between the bounds. kInvalidArgument when there are
// bounds with more than kMaxListed multiples between them, or on one side alone.
constexpr int64_t kMaxDivisor = 100;
constexpr int64_t kMaxListed = 1000;
Result<RuleSet::Node> multiples(RuleSet& rules, int64_t divisor, std::optional<int64_t> min,
                                std::optional<int64_t> max);

// Decimal numbers without exponent. At most 15 digits, so that a double that is read from the text
// stands to the bounds as the text does. At least one bound; each below 1e14 in size, which is the
// caller's to check.
RuleSet::Node number_range(RuleSet& rules, std::optional<NumberBound> min,
                           std::optional<NumberBound> max);

}  // namespace rudder::constraint
