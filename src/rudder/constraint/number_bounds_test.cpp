// Bounds of numbers against exact arithmetic: of every size and sign, inclusive and exclusive, with
// and without multipleOf.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/multiprecision/cpp_int.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "rudder/base/decimal.h"
#include "rudder/constraint/form_checker.h"

namespace rudder::constraint {
namespace {

using Exact = boost::multiprecision::cpp_rational;
using Whole = boost::multiprecision::cpp_int;

// Of digits, a point and an exponent.
Exact exact(const std::string& text) {
  const size_t e = text.find_first_of("eE");
  std::string digits = text.substr(0, e);
  int exponent = e == std::string::npos ? 0 : std::stoi(text.substr(e + 1));
  if (const size_t point = digits.find('.'); point != std::string::npos) {
    exponent -= static_cast<int>(digits.size() - point - 1);
    digits.erase(point, 1);
  }
  const bool is_negative = digits.starts_with('-');
  if (is_negative) digits.erase(0, 1);
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  const Whole power = pow(Whole(10), static_cast<unsigned>(std::abs(exponent)));
  const Whole size(digits);
  const Exact value = exponent < 0 ? Exact(size, power) : Exact(size * power);
  return is_negative ? Exact(-value) : value;
}

// Without an exponent.
std::string plain(const std::string& text) {
  const Decimal number = *Decimal::read(text);
  std::string out = number.is_negative() ? "-" : "";
  out += number.whole_digits();
  return number.is_whole() ? out : out + "." + number.fraction_digits();
}

class Bounds {
 public:
  explicit Bounds(uint32_t seed) : random_(seed) {}

  void draw() {
    integer_ = pick(2) == 0;
    const std::string one = number();
    const std::string other = pick(2) == 0 ? beside(one) : number();
    const bool in_order = exact(one) <= exact(other);
    low_ = pick(4) > 0 ? std::optional(in_order ? one : other) : std::nullopt;
    high_ = !low_ || pick(3) > 0 ? std::optional(in_order ? other : one) : std::nullopt;
    low_exclusive_ = pick(3) == 0;
    high_exclusive_ = pick(3) == 0;
    step_ =
        pick(4) == 0 ? std::optional(std::vector<int>{2, 3, 5, 7, 10, 64}[pick(6)]) : std::nullopt;
  }
  std::string schema() const {
    std::string out = fmt::format(R"({{"type":"{}")", integer_ ? "integer" : "number");
    if (low_)
      out += fmt::format(R"(,"{}":{})", low_exclusive_ ? "exclusiveMinimum" : "minimum", *low_);
    if (high_) {
      out += fmt::format(R"(,"{}":{})", high_exclusive_ ? "exclusiveMaximum" : "maximum", *high_);
    }
    if (step_) out += fmt::format(R"(,"multipleOf":{})", *step_);
    return out + "}";
  }
  // Texts about the bounds.
  std::vector<std::string> texts() {
    std::vector<std::string> out = {"0", "1", "-1"};
    for (const std::optional<std::string>* bound : {&low_, &high_}) {
      if (!*bound) continue;
      const std::string text = plain(**bound);
      out.insert(out.end(), {text, plain(**bound + std::string(has_exponent(**bound) ? "" : "e1")),
                             plain(**bound + std::string(has_exponent(**bound) ? "" : "e-1"))});
      for (int i = 0; i < 4; ++i) out.push_back(plain(beside(**bound)));
      out.push_back(text.starts_with('-') ? text.substr(1) : "-" + text);
    }
    return out;
  }
  bool is_valid(const std::string& text) const {
    const Exact value = exact(text);
    if (low_ && (value < exact(*low_) || (low_exclusive_ && value == exact(*low_)))) return false;
    if (high_ && (value > exact(*high_) || (high_exclusive_ && value == exact(*high_))))
      return false;
    const bool is_whole = denominator(value) == 1;
    if (step_) return is_whole && numerator(value) % *step_ == 0;
    return !integer_ || is_whole;
  }
  bool is_of_any_number() const { return !integer_ && !step_; }
  // Whether there is a number between the bounds.
  bool has_any() const {
    if (!low_ || !high_) return true;
    const Exact low = exact(*low_);
    const Exact high = exact(*high_);
    return low < high || (low == high && !low_exclusive_ && !high_exclusive_);
  }
  // Whether it has few enough digits to be a number of any bounds.
  bool is_short(const std::string& text) const {
    const Decimal number = *Decimal::read(text);
    const auto whole = number.num_whole_digits();
    constexpr int64_t kShort = 7;  // digits that are never too many on one side of the point
    return number.is_whole() ? whole <= 18
                             : whole <= kShort && number.num_fraction_digits() <= kShort;
  }

 private:
  size_t pick(size_t count) { return random_() % count; }
  static bool has_exponent(const std::string& text) { return text.find('e') != std::string::npos; }
  std::string number() {
    static const std::vector<std::string> special = {"0",
                                                     "-0.0",
                                                     "9007199254740993",
                                                     "-9007199254740991",
                                                     "9007199254740992.0",
                                                     "1e14",
                                                     "-1e14",
                                                     "100000000000001",
                                                     "1e18",
                                                     "-1e18",
                                                     "1000000000000000001",
                                                     "18446744073709551616",
                                                     "1e308",
                                                     "-1.7976931348623157e308",
                                                     "5e-324",
                                                     "1e-7",
                                                     "0.1",
                                                     "-0.30000000000000004",
                                                     "999999999999999",
                                                     "-99999999999999.9",
                                                     "1e22",
                                                     "123456789012345678901234567890",
                                                     "-9223372036854775809"};
    if (pick(2) == 0) return special[pick(special.size())];
    std::string out = pick(2) == 0 ? "-" : "";
    const size_t digits = 1 + pick(pick(3) == 0 ? 40 : 8);
    out += static_cast<char>('1' + pick(9));
    for (size_t i = 1; i < digits; ++i) out += static_cast<char>('0' + pick(10));
    if (pick(2) == 0) out += '.' + std::to_string(pick(100'000));
    if (pick(4) == 0) out += "e" + std::to_string(static_cast<int>(pick(60)) - 30);
    return out;
  }
  // One that differs by one in some digit.
  std::string beside(const std::string& text) {
    std::string out = plain(text);
    const size_t at = pick(out.size());
    if (out[at] >= '0' && out[at] <= '9') out[at] = static_cast<char>('0' + pick(10));
    const bool is_negative = out.starts_with('-');
    std::string size = is_negative ? out.substr(1) : out;
    const size_t first = size.find_first_not_of('0');
    if (first != std::string::npos && first > 0 && size[1] != '.') size.erase(0, first);
    if (size.starts_with('.')) size.insert(0, "0");
    if (size.find_first_not_of("0.") == std::string::npos) return "0";
    return (is_negative ? "-" : "") + size;
  }

  std::mt19937 random_;
  bool integer_ = false;
  std::optional<std::string> low_, high_;
  bool low_exclusive_ = false;
  bool high_exclusive_ = false;
  std::optional<int> step_;
};

void try_random_bounds(uint32_t seeds) {
  int num_accepted = 0;
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    Bounds bounds(seed);
    bounds.draw();
    const std::string schema = bounds.schema();
    const auto form = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
    if (!form) {
      // Nothing is valid, or a bound is beyond what is written out.
      const std::string& why = form.error().message;
      const bool is_never = why.find("no output is valid") != std::string::npos;
      const bool is_told = is_never || why.find("multiples between") != std::string::npos ||
                           why.find("more digits than numbers") != std::string::npos;
      EXPECT_TRUE(is_told) << schema << form.error().to_string();
      EXPECT_FALSE(is_never && bounds.is_of_any_number() && bounds.has_any()) << schema;
      continue;
    }
    for (const std::string& text : bounds.texts()) {
      const bool accepted = form->accepts(text);
      num_accepted += accepted ? 1 : 0;
      if (accepted) {
        EXPECT_TRUE(bounds.is_valid(text)) << schema << " takes " << text;
      }
      if (!accepted && bounds.is_short(text) && text != "-0") {
        EXPECT_FALSE(bounds.is_valid(text)) << schema << " refuses " << text;
      }
    }
  }
  EXPECT_GT(num_accepted, static_cast<int>(seeds));
}

TEST(NumberBounds, AreExactAtAnySize) {
  try_random_bounds(300);
}
TEST(NumberBoundsFull, AreExactAtAnySize) {
  try_random_bounds(10'000);
}

// Multiples on an open side may have any number of digits, so no bound is too far to count.
TEST(NumberBounds, FarOnesBesideMultiplesAreRefusedByName) {
  for (const char* bound : {R"("maximum":1e308)", R"("minimum":-1e70)"}) {
    const std::string schema = fmt::format(R"({{"type":"number",{},"multipleOf":10}})", bound);
    const auto form = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
    ASSERT_FALSE(form) << schema;
    EXPECT_NE(form.error().message.find("multiples between"), std::string::npos) << schema;
  }
}

void expect_numbers(const std::string& schema, const std::vector<std::string>& good,
                    const std::vector<std::string>& bad) {
  const auto form = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
  ASSERT_TRUE(form) << schema << form.error().to_string();
  for (const std::string& text : good) EXPECT_TRUE(form->accepts(text)) << schema << text;
  for (const std::string& text : bad) EXPECT_FALSE(form->accepts(text)) << schema << text;
}

TEST(NumberBounds, HoldWhereDoublesEnd) {
  expect_numbers(R"({"minimum":-100000000000000.0})", {"-100000000000000", "-0.55", "7"},
                 {"-1000000000000000", "-100000000000001", "-100000000000000.5"});
  expect_numbers(R"({"type":"integer","minimum":9007199254740993})", {"9007199254740993"},
                 {"9007199254740992"});
  expect_numbers(R"({"type":"integer","maximum":1e18})", {"1000000000000000000"},
                 {"1000000000000000001"});
  expect_numbers(R"({"type":"integer","minimum":18446744073709551617})",
                 {"18446744073709551617", "20000000000000000000"}, {"18446744073709551616"});
  expect_numbers(R"({"type":"number","minimum":1e308})", {"1" + std::string(308, '0')},
                 {std::string(308, '9')});
  expect_numbers(R"({"type":"number","minimum":-1.7976931348623157e308,"maximum":1.8e308})",
                 {"-123456789", "0.25", "1000000"}, {});
  expect_numbers(R"({"type":"number","minimum":1e-20,"maximum":2e-20})",
                 {"0.00000000000000000001", "0.000000000000000000015"},
                 {"0", "0.00000000000000000003", "0.0000000000000000000099"});
  expect_numbers(R"({"type":"number","minimum":0.1234567890123456789})",
                 {"0.1234567890123456789", "0.123456789012346"}, {"0.123456789012345"});
  expect_numbers(R"({"type":"integer","multipleOf":5,"minimum":0})", {"0", "5", "1000"},
                 {"-5", "7"});
  expect_numbers(R"({"type":"integer","multipleOf":10,"exclusiveMinimum":9007199254740990,)"
                 R"("maximum":9007199254741020})",
                 {"9007199254741000"}, {"9007199254740990", "9007199254741030"});
  expect_numbers(
      R"({"allOf":[{"minimum":9007199254740993},{"minimum":9007199254740992}],"type":"integer"})",
      {"9007199254740993"}, {"9007199254740992"});
}

TEST(NumberBounds, BeyondTheirBudgetAreRefusedByName) {
  const auto refused = [](const std::string& schema) {
    const auto made = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
    return made ? "accepted" : made.error().to_string();
  };
  EXPECT_NE(refused(R"({"type":"number","exclusiveMinimum":1e500})").find("exclusiveMinimum"),
            std::string::npos);
  EXPECT_NE(refused(R"({"type":"number","maximum":1e-500})").find("maximum"), std::string::npos);
  EXPECT_EQ(refused(R"({"type":"number","maximum":1e500})"), "accepted");
  EXPECT_NE(refused(R"({"properties":{"a":{"minimum":1e99999999}}})").find(".properties.a.minimum"),
            std::string::npos);
  EXPECT_NE(refused(R"({"const":1e99999999})").find("const"), std::string::npos);
}

}  // namespace
}  // namespace rudder::constraint
