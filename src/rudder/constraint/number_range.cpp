#include "rudder/constraint/number_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace rudder::constraint {
namespace {

using Node = RuleSet::Node;

constexpr size_t kOpenDigits = 18;  // of whole numbers on an open side

Node digits(RuleSet& rules, char first, char last) {
  return rules.chars({{static_cast<uint8_t>(first), static_cast<uint8_t>(last)}});
}

Node any_digits(RuleSet& rules, size_t min, size_t max) {
  return rules.repeat(digits(rules, '0', '9'), static_cast<int32_t>(min),
                      static_cast<int32_t>(max));
}

// Strings of as many digits as `low` and `high` have, from one to the other.
Node same_length(RuleSet& rules, std::string_view low, std::string_view high) {
  if (low.empty()) return rules.empty();
  const size_t rest = low.size() - 1;
  if (low[0] == high[0]) {
    return rules.sequence(
        {digits(rules, low[0], low[0]), same_length(rules, low.substr(1), high.substr(1))});
  }
  std::vector<Node> ways;
  char first = low[0];
  char last = high[0];
  if (low.substr(1).find_first_not_of('0') != std::string_view::npos) {
    ways.push_back(rules.sequence(
        {digits(rules, first, first), same_length(rules, low.substr(1), std::string(rest, '9'))}));
    ++first;
  }
  if (high.substr(1).find_first_not_of('9') != std::string_view::npos) {
    ways.push_back(rules.sequence(
        {digits(rules, last, last), same_length(rules, std::string(rest, '0'), high.substr(1))}));
    --last;
  }
  if (first <= last) {
    ways.push_back(rules.sequence({digits(rules, first, last), any_digits(rules, rest, rest)}));
  }
  return rules.choice(ways);
}

// Whole numbers from low to high, without leading zeros. `high` is digits; empty: open.
Node whole_range(RuleSet& rules, const std::string& low, const std::string& high) {
  std::vector<Node> ways;
  const size_t longest = high.empty() ? std::max(kOpenDigits, low.size()) : high.size();
  for (size_t length = low.size(); length <= longest; ++length) {
    const std::string from = length == low.size() ? low : "1" + std::string(length - 1, '0');
    if (length > low.size() && (high.empty() || length < high.size())) {
      // Every number of these lengths.
      const size_t last = high.empty() ? longest : high.size() - 1;
      ways.push_back(
          rules.sequence({digits(rules, '1', '9'), any_digits(rules, length - 1, last - 1)}));
      length = last;
      continue;
    }
    const std::string to = !high.empty() && length == high.size() ? high : std::string(length, '9');
    if (from <= to) ways.push_back(same_length(rules, from, to));
  }
  return rules.choice(ways);
}

std::string magnitude(int64_t value) {
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  return fmt::format("{}", size);
}

// A bound of one side of zero: its size in decimal, whole digits and fraction digits.
struct Decimal {
  std::string whole = "0";
  std::string fraction;
  bool exclusive = false;
  bool open = false;  // no bound
};

Decimal decimal(double size, bool exclusive) {
  // Exponents are written out: bounds are below 1e14, and what is below 1e-300 rounds to zero.
  Decimal out;
  out.exclusive = exclusive;
  std::string text = fmt::format("{}", size);
  int exponent = 0;
  if (const size_t e = text.find('e'); e != std::string::npos) {
    exponent = std::stoi(text.substr(e + 1));
    text.resize(e);
  }
  size_t point = text.find('.');
  if (point == std::string::npos) point = text.size();
  std::string all = text.substr(0, point) + (point < text.size() ? text.substr(point + 1) : "");
  int64_t whole = static_cast<int64_t>(point) + exponent;
  while (whole <= 0) {
    all.insert(all.begin(), '0');
    ++whole;
  }
  if (all.size() < static_cast<size_t>(whole)) all.resize(static_cast<size_t>(whole), '0');
  out.whole = all.substr(0, static_cast<size_t>(whole));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size() - 1));
  out.fraction = all.substr(static_cast<size_t>(whole));
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  return out;
}

// Fractions, without their point, of at most `most` digits, that compare with `bound` as wanted,
// when what stands before them is equal. `some`: at least one digit must come.
class Fractions {
 public:
  Fractions(RuleSet& rules, size_t most) : rules_(rules), most_(most) {}

  // ".xyz" or nothing.
  Node any() { return dotted(any_digits(rules_, 1, most_)); }
  Node between(const Decimal& low, const Decimal& high) {
    const Node some =
        rest(low.fraction, !low.exclusive, high.fraction, !high.exclusive, true, true, 0);
    std::vector<Node> ways = {rules_.sequence({rules_.literal("."), some})};
    if (none_ok(low, high)) ways.push_back(rules_.empty());
    return rules_.choice(ways);
  }
  Node from(const Decimal& low) {
    const Node some = rest(low.fraction, !low.exclusive, "", true, true, false, 0);
    std::vector<Node> ways = {rules_.sequence({rules_.literal("."), some})};
    if (low.fraction.empty() && !low.exclusive) ways.push_back(rules_.empty());
    return rules_.choice(ways);
  }
  Node to(const Decimal& high) {
    const Node some = rest("", true, high.fraction, !high.exclusive, false, true, 0);
    std::vector<Node> ways = {rules_.sequence({rules_.literal("."), some})};
    if (!high.fraction.empty() || !high.exclusive) ways.push_back(rules_.empty());
    return rules_.choice(ways);
  }

 private:
  static bool none_ok(const Decimal& low, const Decimal& high) {
    return low.fraction.empty() && !low.exclusive && (!high.fraction.empty() || !high.exclusive);
  }
  Node dotted(Node some) { return rules_.optional(rules_.sequence({rules_.literal("."), some})); }
  // Digits after `used` of them were equal to both bounds that are still tight. At least one comes
  // when used is 0.
  Node rest(std::string_view low, bool low_ok, std::string_view high, bool high_ok, bool low_tight,
            bool high_tight, size_t used);

  RuleSet& rules_;
  const size_t most_;
};

Node Fractions::rest(std::string_view low, bool low_ok, std::string_view high, bool high_ok,
                     bool low_tight, bool high_tight, size_t used) {
  std::vector<Node> ways;
  // May the number end here? Then it is the bounds' digits so far.
  const bool low_ends = !low_tight || (low.empty() && low_ok);
  const bool high_ends = !high_tight || !high.empty() || high_ok;
  if (used > 0 && low_ends && high_ends) ways.push_back(rules_.empty());
  if (used == most_) return rules_.choice(ways);
  const size_t left = most_ - used;
  if (!low_tight && !high_tight) {
    ways.push_back(any_digits(rules_, used == 0 ? 1 : 0, left));
    return rules_.choice(ways);
  }
  const char low_digit = !low_tight ? '0' : low.empty() ? '0' : low[0];
  const char high_digit = !high_tight ? '9' : high.empty() ? '0' : high[0];
  const std::string_view low_next = low.empty() ? low : low.substr(1);
  const std::string_view high_next = high.empty() ? high : high.substr(1);
  const auto step = [&](char digit, bool low_stays, bool high_stays) {
    const Node next = rest(low_next, low_ok, high_next, high_ok, low_stays, high_stays, used + 1);
    ways.push_back(rules_.sequence({digits(rules_, digit, digit), next}));
  };
  if (low_digit > high_digit) return rules_.choice(ways);
  if (low_tight && high_tight && low_digit == high_digit) {
    step(low_digit, true, true);
    return rules_.choice(ways);
  }
  char first = low_digit;
  char last = high_digit;
  if (low_tight) step(first++, true, false);
  if (high_tight) step(last--, false, true);
  if (first <= last) {
    ways.push_back(rules_.sequence({digits(rules_, first, last), any_digits(rules_, 0, left - 1)}));
  }
  return rules_.choice(ways);
}

std::string add_one(std::string digits) {
  size_t i = digits.size();
  while (i > 0 && digits[i - 1] == '9') digits[--i] = '0';
  if (i == 0) return "1" + digits;
  ++digits[i - 1];
  return digits;
}

std::string minus_one(std::string digits) {  // of what is above zero
  size_t i = digits.size();
  while (digits[i - 1] == '0') digits[--i] = '9';
  --digits[i - 1];
  if (digits.size() > 1 && digits[0] == '0') digits.erase(0, 1);
  return digits;
}

bool whole_less(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

// Numbers without a sign from low to high.
Node size_range(RuleSet& rules, const Decimal& low, const Decimal& high, size_t max_fraction) {
  const size_t most_whole = std::max(low.whole.size(), high.open ? 1 : high.whole.size());
  const size_t exact = kExactDigits - std::min(most_whole, kExactDigits - 1);
  Fractions fractions(rules, std::min(exact, max_fraction));
  const auto whole = [&](const std::string& text) { return rules.literal(text); };
  if (!high.open && low.whole == high.whole) {
    return rules.sequence({whole(low.whole), fractions.between(low, high)});
  }
  if (!high.open && whole_less(high.whole, low.whole)) return rules.nothing();
  std::vector<Node> ways = {rules.sequence({whole(low.whole), fractions.from(low)})};
  const std::string from = add_one(low.whole);
  const std::string to = high.open ? "" : minus_one(high.whole);
  if (high.open || !whole_less(to, from)) {
    ways.push_back(rules.sequence({whole_range(rules, from, to), fractions.any()}));
  }
  if (!high.open) ways.push_back(rules.sequence({whole(high.whole), fractions.to(high)}));
  return rules.choice(ways);
}

int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

}  // namespace

Node integer_range(RuleSet& rules, std::optional<int64_t> min, std::optional<int64_t> max) {
  if (min && max && *min > *max) return rules.nothing();
  std::vector<Node> ways;
  if (!max || *max >= 0) {
    ways.push_back(
        whole_range(rules, min && *min > 0 ? magnitude(*min) : "0", max ? magnitude(*max) : ""));
  }
  if (!min || *min < 0) {
    ways.push_back(rules.sequence(
        {rules.literal("-"),
         whole_range(rules, max && *max < 0 ? magnitude(*max) : "1", min ? magnitude(*min) : "")}));
  }
  return rules.choice(ways);
}

Result<Node> multiples(RuleSet& rules, int64_t divisor, std::optional<int64_t> min,
                       std::optional<int64_t> max) {
  if (divisor == 1) return integer_range(rules, min, max);
  if (min && max) {
    const int64_t first = -floor_div(-*min, divisor);
    const int64_t last = floor_div(*max, divisor);
    if (last - first >= kMaxListed) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("has more than {} multiples between the bounds", kMaxListed));
    }
    std::vector<Node> ways;
    for (int64_t i = first; i <= last; ++i) {
      ways.push_back(rules.literal(fmt::format("{}", i * divisor)));
    }
    return rules.choice(ways);
  }
  if (min || max) {
    return fail(ErrorCode::kInvalidArgument, "with a bound on one side alone is not supported");
  }
  if (divisor > kMaxDivisor) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("above {} takes a minimum and a maximum", kMaxDivisor));
  }
  // A rule for each remainder of the digits so far; the one of remainder 0 may end.
  std::vector<int32_t> states;
  for (int64_t r = 0; r < divisor; ++r) states.push_back(rules.add_rule());
  const auto next = [&](int64_t remainder, char digit) {
    const int64_t r = (remainder * 10 + (digit - '0')) % divisor;
    return rules.sequence(
        {digits(rules, digit, digit), rules.rule(states[static_cast<size_t>(r)])});
  };
  for (int64_t r = 0; r < divisor; ++r) {
    std::vector<Node> ways;
    if (r == 0) ways.push_back(rules.empty());
    for (char digit = '0'; digit <= '9'; ++digit) ways.push_back(next(r, digit));
    rules.define(states[static_cast<size_t>(r)], rules.choice(ways));
  }
  std::vector<Node> first;
  for (char digit = '1'; digit <= '9'; ++digit) first.push_back(next(0, digit));
  return rules.choice({rules.literal("0"),
                       rules.sequence({rules.optional(rules.literal("-")), rules.choice(first)})});
}

Node number_range(RuleSet& rules, std::optional<NumberBound> min, std::optional<NumberBound> max,
                  size_t max_fraction) {
  std::vector<Node> ways;
  const Decimal zero;
  Decimal open;
  open.open = true;
  // Zero and above.
  if (!max || max->value > 0 || (max->value == 0 && !max->exclusive)) {
    const Decimal low = min && min->value >= 0 ? decimal(min->value, min->exclusive) : zero;
    ways.push_back(
        size_range(rules, low, max ? decimal(max->value, max->exclusive) : open, max_fraction));
  }
  // Below zero: sizes from that of max to that of min.
  if (!min || min->value < 0) {
    Decimal low = zero;
    low.exclusive = true;
    if (max && max->value < 0) low = decimal(-max->value, max->exclusive);
    const Decimal high = min ? decimal(-min->value, min->exclusive) : open;
    ways.push_back(
        rules.sequence({rules.literal("-"), size_range(rules, low, high, max_fraction)}));
  }
  return rules.choice(ways);
}

}  // namespace rudder::constraint
