#include "rudder/constraint/number_range.h"

#include <algorithm>
#include <string>
#include <vector>

namespace rudder::constraint {

using Node = RuleSet::Node;

Node one_digit(RuleSet& rules, char first, char last) {
  return rules.chars({{static_cast<uint8_t>(first), static_cast<uint8_t>(last)}});
}

Node any_digits(RuleSet& rules, size_t min, size_t max) {
  return rules.repeat(one_digit(rules, '0', '9'), static_cast<int32_t>(min),
                      static_cast<int32_t>(max));
}

namespace {

constexpr size_t kOpenDigits = 18;  // of whole numbers on an open side

// Nodes in nodes are rules now and then: who reads them goes down from one to the next.
Node share_some(RuleSet& rules, Node node, size_t level) {
  constexpr size_t kLevels = 32;
  return level % kLevels == 0 ? rules.share(node) : node;
}

// Strings of as many digits as `low` and `high` have, from one to the other.
Node same_length(RuleSet& rules, std::string_view low, std::string_view high) {
  if (low.empty() || rules.fuel().out()) return rules.empty();
  const size_t rest = low.size() - 1;
  if (low[0] == high[0]) {
    const Node more =
        share_some(rules, same_length(rules, low.substr(1), high.substr(1)), low.size());
    return rules.sequence({one_digit(rules, low[0], low[0]), more});
  }
  std::vector<Node> ways;
  char first = low[0];
  char last = high[0];
  if (low.substr(1).find_first_not_of('0') != std::string_view::npos) {
    const Node more = same_length(rules, low.substr(1), std::string(rest, '9'));
    ways.push_back(
        rules.sequence({one_digit(rules, first, first), share_some(rules, more, low.size())}));
    ++first;
  }
  if (high.substr(1).find_first_not_of('9') != std::string_view::npos) {
    const Node more = same_length(rules, std::string(rest, '0'), high.substr(1));
    ways.push_back(
        rules.sequence({one_digit(rules, last, last), share_some(rules, more, low.size())}));
    --last;
  }
  if (first <= last) {
    ways.push_back(rules.sequence({one_digit(rules, first, last), any_digits(rules, rest, rest)}));
  }
  return rules.choice(ways);
}

// Whole numbers from low to high, without leading zeros. `high` is digits; empty: open.
Node whole_range(RuleSet& rules, const std::string& low, const std::string& high) {
  std::vector<Node> ways;
  const size_t open = low.size() < kOpenDigits ? kOpenDigits : low.size() + 1;
  const size_t longest = high.empty() ? open : high.size();
  for (size_t length = low.size(); length <= longest; ++length) {
    const std::string from = length == low.size() ? low : "1" + std::string(length - 1, '0');
    if (length > low.size() && (high.empty() || length < high.size())) {
      // Every number of these lengths.
      const size_t last = high.empty() ? longest : high.size() - 1;
      ways.push_back(
          rules.sequence({one_digit(rules, '1', '9'), any_digits(rules, length - 1, last - 1)}));
      length = last;
      continue;
    }
    const std::string to = !high.empty() && length == high.size() ? high : std::string(length, '9');
    if (from <= to) ways.push_back(same_length(rules, from, to));
  }
  return rules.choice(ways);
}

// At most so many digits, at least one of which is not zero.
Node some_fraction(RuleSet& rules, size_t most) {
  if (most == 0) return rules.nothing();
  const Node here = rules.sequence({one_digit(rules, '1', '9'), any_digits(rules, 0, most - 1)});
  if (most == 1) return here;
  return rules.choice(
      {here, rules.sequence({one_digit(rules, '0', '0'), some_fraction(rules, most - 1)})});
}

// A bound of one side of zero, by its size.
struct Size {
  std::string whole = "0";
  std::string fraction;
  bool exclusive = false;
  bool open = false;  // no bound
};

Size size_of(const NumberBound& bound) {
  return {.whole = bound.value.whole_digits(),
          .fraction = bound.value.fraction_digits(),
          .exclusive = bound.exclusive};
}

// Fractions behind a whole part, of at most `most` digits, that compare with the bounds as wanted,
// when what stands before them is equal. Behind a zero, the first zeros do not count. An inclusive
// bound is there whatever its length.
class Fractions {
 public:
  Fractions(RuleSet& rules, const std::string& whole, const NumberForm& form)
      : rules_(rules),
        behind_zero_(whole == "0"),
        significant_(behind_zero_ ? kExactDigits
                                  : kExactDigits - std::min(whole.size(), kExactDigits)),
        form_(form) {}

  Node between(const Size& low, const Size& high) {
    return with_point(
        edge(low), edge(high),
        low.fraction.empty() && !low.exclusive && (!high.fraction.empty() || !high.exclusive));
  }
  Node from(const Size& low) {
    return with_point(edge(low), {}, low.fraction.empty() && !low.exclusive);
  }
  Node to(const Size& high) {
    return with_point({}, edge(high), !high.fraction.empty() || !high.exclusive);
  }

 private:
  // Of a bound: its digits to come, as long as those before were equal to its.
  struct Edge {
    std::string_view digits = {};
    bool included = true;
    bool tight = false;

    char first(char otherwise) const {
      if (!tight) return otherwise;
      return digits.empty() ? '0' : digits[0];
    }
    Edge behind(bool stays) const {
      return {digits.empty() ? digits : digits.substr(1), included, tight && stays};
    }
  };
  static Edge edge(const Size& size) { return {size.fraction, !size.exclusive, true}; }

  // `none`: there may be no fraction.
  Node with_point(const Edge& low, const Edge& high, bool none) {
    std::vector<Node> ways = {
        rules_.sequence({rules_.literal("."), rest(low, high, {.may_end = form_.has_whole})})};
    if (none && form_.has_whole) ways.push_back(rules_.empty());
    return rules_.choice(ways);
  }
  // Of the digits before.
  struct Before {
    size_t used = 0;
    size_t zeros = 0;      // that do not count
    bool may_end = false;  // one of them is not zero, or need not be

    Before and_one(char digit, bool is_first_zero) const {
      return {used + 1, zeros + (is_first_zero ? 1 : 0), may_end || digit != '0'};
    }
  };
  size_t left(const Before& before) const {
    return std::min(significant_ + before.zeros, form_.max_fraction) - before.used;
  }
  Node rest(const Edge& low, const Edge& high, const Before& before);
  // Any digits, of which the number may end behind `min`.
  Node free(const Before& before, size_t min, size_t most) {
    return before.may_end ? any_digits(rules_, min, most) : some_fraction(rules_, most);
  }

  RuleSet& rules_;
  const bool behind_zero_;
  const size_t significant_;
  const NumberForm form_;
};

// At least one digit comes where none was before.
Node Fractions::rest(const Edge& low, const Edge& high, const Before& before) {
  const size_t used = before.used;
  std::vector<Node> ways;
  if (rules_.fuel().out()) return rules_.nothing();
  // May the number end here? Then it is the bounds' digits so far.
  const bool low_ends = !low.tight || (low.digits.empty() && low.included);
  const bool high_ends = !high.tight || !high.digits.empty() || high.included;
  if (used > 0 && before.may_end && low_ends && high_ends) ways.push_back(rules_.empty());
  const size_t left = this->left(before);
  if (left == 0) {
    for (const Edge* bound : {&low, &high}) {
      if (!bound->tight || !bound->included || bound->digits.empty()) continue;
      if (used + bound->digits.size() <= form_.max_fraction) {
        ways.push_back(rules_.literal(bound->digits));
      }
    }
    return rules_.choice(ways);
  }
  if (!low.tight && !high.tight) {
    ways.push_back(free(before, used == 0 ? 1 : 0, left));
    return rules_.choice(ways);
  }
  char first = low.first('0');
  char last = high.first('9');
  if (first > last) return rules_.choice(ways);
  const bool has_digits =
      (low.tight && !low.digits.empty()) || (high.tight && !high.digits.empty());
  const auto step = [&](char digit, bool low_stays, bool high_stays) {
    const bool is_first_zero = behind_zero_ && before.zeros == used && digit == '0' && has_digits;
    const Node next =
        rest(low.behind(low_stays), high.behind(high_stays), before.and_one(digit, is_first_zero));
    ways.push_back(
        rules_.sequence({one_digit(rules_, digit, digit), share_some(rules_, next, used + 1)}));
  };
  if (low.tight && high.tight && first == last) {
    step(first, true, true);
    return rules_.choice(ways);
  }
  if (low.tight) step(first++, true, false);
  if (high.tight) step(last--, false, true);
  if (first == '0' && first <= last && !before.may_end) {
    const Node more = some_fraction(rules_, left - 1);
    ways.push_back(rules_.sequence({one_digit(rules_, first, first), more}));
    ++first;
  }
  if (first <= last) {
    ways.push_back(
        rules_.sequence({one_digit(rules_, first, last), any_digits(rules_, 0, left - 1)}));
  }
  return rules_.choice(ways);
}

bool whole_less(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

// Whole parts from one to the other, each with any fraction of so many digits.
Node with_fractions(RuleSet& rules, const std::string& from, const std::string& to, size_t fraction,
                    const NumberForm& form) {
  fraction = std::min(fraction, form.max_fraction);
  if (!form.has_whole && fraction == 0) return rules.nothing();
  const Node whole = whole_range(rules, from, to);
  if (!form.has_whole) {
    return rules.sequence({whole, rules.literal("."), some_fraction(rules, fraction)});
  }
  if (fraction == 0) return whole;
  const Node some = rules.sequence({rules.literal("."), any_digits(rules, 1, fraction)});
  return rules.sequence({whole, rules.optional(some)});
}

// The whole parts between those of the bounds: long ones have short fractions.
void add_inside(RuleSet& rules, const std::string& from, const std::string& to,
                const NumberForm& form, std::vector<Node>& ways) {
  constexpr size_t kShort = 8;
  constexpr size_t kLong = kExactDigits - 1;
  const size_t exact = kExactDigits - std::min(to.size(), kLong);
  std::string at = from;
  for (const size_t digits : {kShort, kLong, to.size()}) {
    const std::string most(digits, '9');
    const std::string last = whole_less(most, to) ? most : to;
    if (whole_less(last, at)) continue;
    const size_t fraction = digits > kLong && last.size() > kLong
                                ? 0
                                : std::max(exact, kExactDigits - std::min(digits, kLong));
    ways.push_back(with_fractions(rules, at, last, fraction, form));
    at = "1" + std::string(last.size(), '0');
  }
}

// Numbers without a sign from low to high.
Node size_range(RuleSet& rules, const Size& low, const Size& high, const NumberForm& form) {
  Fractions at_low(rules, low.whole, form);
  if (!high.open && low.whole == high.whole) {
    return rules.sequence({rules.literal(low.whole), at_low.between(low, high)});
  }
  if (!high.open && whole_less(high.whole, low.whole)) return rules.nothing();
  std::vector<Node> ways = {rules.sequence({rules.literal(low.whole), at_low.from(low)})};
  const std::string from = Decimal::read(low.whole)->plus_one().whole_digits();
  if (high.open && form.has_whole) {
    const size_t fraction = kExactDigits - std::min(low.whole.size(), kExactDigits);
    ways.push_back(with_fractions(rules, from, "", fraction, form));
    return rules.choice(ways);
  }
  // Beyond, a fraction has no digit that a double tells.
  const std::string to = high.open ? std::string(kExactDigits - 1, '9')
                                   : Decimal::read(high.whole)->minus_one().whole_digits();
  if (!whole_less(to, from)) add_inside(rules, from, to, form, ways);
  if (high.open) return rules.choice(ways);
  Fractions at_high(rules, high.whole, form);
  ways.push_back(rules.sequence({rules.literal(high.whole), at_high.to(high)}));
  return rules.choice(ways);
}

std::string digits_of(const std::optional<Decimal>& number) {
  return number ? number->whole_digits() : "";
}

}  // namespace

Node integer_range(RuleSet& rules, const std::optional<Decimal>& min,
                   const std::optional<Decimal>& max) {
  const Decimal zero;
  if (min && max && *min > *max) return rules.nothing();
  std::vector<Node> ways;
  if (!max || *max >= zero) {
    ways.push_back(whole_range(rules, min && *min > zero ? digits_of(min) : "0", digits_of(max)));
  }
  if (!min || *min < zero) {
    ways.push_back(rules.sequence(
        {rules.literal("-"),
         whole_range(rules, max && *max < zero ? digits_of(max) : "1", digits_of(min))}));
  }
  return rules.choice(ways);
}

Node number_range(RuleSet& rules, const std::optional<NumberBound>& min,
                  const std::optional<NumberBound>& max, NumberForm form) {
  std::vector<Node> ways;
  const Decimal zero;
  Size open;
  open.open = true;
  // Zero and above.
  if (!max || max->value > zero || (max->value == zero && !max->exclusive)) {
    const Size low = min && min->value >= zero ? size_of(*min) : Size();
    ways.push_back(size_range(rules, low, max ? size_of(*max) : open, form));
  }
  // Below zero: sizes from that of max to that of min.
  if (!min || min->value < zero) {
    Size low;
    low.exclusive = true;
    if (max && max->value < zero) low = size_of(*max);
    const Size high = min ? size_of(*min) : open;
    ways.push_back(rules.sequence({rules.literal("-"), size_range(rules, low, high, form)}));
  }
  return rules.choice(ways);
}

}  // namespace rudder::constraint
