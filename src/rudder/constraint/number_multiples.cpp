// Multiples of whole numbers. Few are listed; of more, rules follow the remainder of the digits so
// far.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "rudder/constraint/number_range.h"

namespace rudder::constraint {
namespace {

using Node = RuleSet::Node;

__extension__ using Wide = __int128;  // twice as long as what it multiplies

// What is left of the digits.
int64_t remainder_of(std::string_view digits, int64_t divisor) {
  Wide rest = 0;
  for (const char digit : digits) rest = (rest * 10 + (digit - '0')) % divisor;
  return static_cast<int64_t>(rest);
}

class Multiples {
 public:
  Multiples(RuleSet& rules, int64_t divisor) : rules_(rules), divisor_(divisor) {}

  // Sizes from low to high, above zero. `high` empty: open.
  Node sizes(const std::string& low, const std::string& high) {
    std::vector<Node> ways;
    const size_t longest = high.empty() ? low.size() : high.size();
    for (size_t length = low.size(); length <= longest && !rules_.fuel().out(); ++length) {
      const std::string from = length == low.size() ? low : "1" + std::string(length - 1, '0');
      const std::string to = length == high.size() ? high : std::string(length, '9');
      if (from <= to) ways.push_back(same_length(from, to, 0));
    }
    if (high.empty()) {
      for (char digit = '1'; digit <= '9'; ++digit) {
        ways.push_back(behind(digit, at_least(next(0, digit), low.size())));
      }
    }
    return rules_.choice(ways);
  }

 private:
  int64_t next(int64_t remainder, char digit) const {
    return static_cast<int64_t>((Wide{remainder} * 10 + (digit - '0')) % divisor_);
  }
  Node behind(char digit, Node rest) {
    return rules_.sequence({one_digit(rules_, digit, digit), rest});
  }
  // Digits from low to high that come behind others, which left a remainder.
  Node same_length(std::string_view low, std::string_view high, int64_t remainder) {
    if (low.empty()) return remainder == 0 ? rules_.empty() : rules_.nothing();
    std::vector<Node> ways;
    const size_t more = low.size() - 1;
    for (char digit = low[0]; digit <= high[0]; ++digit) {
      const int64_t after = next(remainder, digit);
      const bool at_low = digit == low[0];
      const bool at_high = digit == high[0];
      Node rest = 0;
      if (at_low || at_high) {
        rest = same_length(at_low ? low.substr(1) : std::string(more, '0'),
                           at_high ? high.substr(1) : std::string(more, '9'), after);
      } else {
        rest = exactly(after, more);
      }
      ways.push_back(behind(digit, rest));
    }
    return rules_.choice(ways);
  }
  // So many digits more, or at least so many.
  Node exactly(int64_t remainder, size_t digits) { return more(remainder, digits, false); }
  Node at_least(int64_t remainder, size_t digits) { return more(remainder, digits, true); }
  Node more(int64_t remainder, size_t digits, bool is_open) {
    if (!is_open && digits == 0) return remainder == 0 ? rules_.empty() : rules_.nothing();
    const int64_t key = (remainder * 1000 + static_cast<int64_t>(digits)) * 2 + (is_open ? 1 : 0);
    const auto [known, is_new] = known_.try_emplace(key, 0);
    if (!is_new) return rules_.rule(known->second);
    const int32_t rule = rules_.add_rule();
    known->second = rule;
    std::vector<Node> ways;
    if (digits == 0 && remainder == 0) ways.push_back(rules_.empty());
    for (char digit = '0'; digit <= '9' && !rules_.fuel().out(); ++digit) {
      const size_t left = digits == 0 ? 0 : digits - 1;
      ways.push_back(behind(digit, more(next(remainder, digit), left, is_open)));
    }
    rules_.define(rule, rules_.choice(ways));
    return rules_.rule(rule);
  }

  RuleSet& rules_;
  const int64_t divisor_;
  std::unordered_map<int64_t, int32_t> known_;  // rules
};

// All multiples between the bounds where they are few.
std::optional<Node> listed(RuleSet& rules, int64_t divisor, const Decimal& min,
                           const Decimal& max) {
  constexpr size_t kMostDigits = 36;
  const std::string low = min.whole_digits();
  const std::string high = max.whole_digits();
  if (std::max(low.size(), high.size()) > kMostDigits) return std::nullopt;
  const auto value = [](const Decimal& bound, const std::string& digits) {
    Wide size = 0;
    for (const char digit : digits) size = size * 10 + (digit - '0');
    return bound.is_negative() ? -size : size;
  };
  const auto floor_div = [&](Wide a) { return a / divisor - (a % divisor < 0 ? 1 : 0); };
  const Wide first = -floor_div(-value(min, low));
  const Wide last = floor_div(value(max, high));
  if (last - first >= kMaxListed) return std::nullopt;
  std::vector<Node> ways;
  for (Wide i = first; i <= last; ++i) {
    ways.push_back(rules.literal(fmt::format("{}", i * divisor)));
  }
  return rules.choice(ways);
}

}  // namespace

Result<Node> multiples(RuleSet& rules, int64_t divisor, const std::optional<Decimal>& min,
                       const std::optional<Decimal>& max) {
  if (divisor == 1) return integer_range(rules, min, max);
  if (min && max) {
    if (const std::optional<Node> few = listed(rules, divisor, *min, *max)) return *few;
  }
  const Decimal zero;
  const int64_t digits =
      std::max(min ? min->num_whole_digits() : 1, max ? max->num_whole_digits() : 1);
  if (divisor > kMaxDivisor || digits > kMaxStepDigits) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("has more than {} multiples between the bounds, and is above {} or has "
                            "a bound of more than {} digits",
                            kMaxListed, kMaxDivisor, kMaxStepDigits));
  }
  Multiples numbers(rules, divisor);
  std::vector<Node> ways;
  const auto is_zero_in = [&] { return (!min || *min <= zero) && (!max || *max >= zero); };
  if (is_zero_in()) ways.push_back(rules.literal("0"));
  if (!max || *max > zero) {
    ways.push_back(numbers.sizes(min && *min > zero ? min->whole_digits() : "1",
                                 max ? max->whole_digits() : ""));
  }
  if (!min || *min < zero) {
    const Node sizes = numbers.sizes(max && *max < zero ? max->whole_digits() : "1",
                                     min ? min->whole_digits() : "");
    ways.push_back(rules.sequence({rules.literal("-"), sizes}));
  }
  return rules.choice(ways);
}

std::optional<bool> is_multiple(const Decimal& number, const Decimal& divisor) {
  constexpr int64_t kMostDigits = 18;
  constexpr int64_t kMostZeros = 1000;
  if (number.is_zero()) return true;
  // Both as whole numbers: so many digits of the fraction are moved in front of the point.
  const int64_t moved = divisor.num_fraction_digits();
  if (number.num_fraction_digits() > moved) return false;
  if (divisor.num_whole_digits() + moved > kMostDigits || moved > kMostDigits ||
      number.num_whole_digits() > kMostZeros) {
    return std::nullopt;
  }
  const auto whole = [&](const Decimal& one) {
    std::string digits = one.fraction_digits();
    digits.resize(static_cast<size_t>(moved), '0');
    return one.whole_digits() + digits;
  };
  return remainder_of(whole(number), std::stoll(whole(divisor))) == 0;
}

}  // namespace rudder::constraint
