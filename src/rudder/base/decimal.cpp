#include "rudder/base/decimal.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace rudder {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The digits at the beginning of the text, which lose them.
std::string_view take_digits(std::string_view& text) {
  size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  const std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  return digits;
}

// An exponent and its sign. What has too many digits is beyond any bound.
std::optional<int64_t> read_exponent(std::string_view text) {
  constexpr size_t kMaxDigits = 15;
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  std::string_view rest = text;
  if (take_digits(rest).empty() || !rest.empty()) return std::nullopt;
  text.remove_prefix(std::min(text.find_first_not_of('0'), text.size() - 1));
  int64_t size = int64_t{1} << 60;
  if (text.size() <= kMaxDigits) std::from_chars(text.data(), text.data() + text.size(), size);
  return is_negative ? -size : size;
}

}  // namespace

Decimal::Decimal(bool negative, std::string digits, int64_t point) {
  const size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return;
  digits.erase(digits.find_last_not_of('0') + 1);
  digits.erase(0, first);
  negative_ = negative;
  digits_ = std::move(digits);
  point_ = point - static_cast<int64_t>(first);
}

Decimal::Decimal(int64_t value) {
  std::string digits = fmt::format("{}", value);
  if (value < 0) digits.erase(0, 1);
  const auto point = static_cast<int64_t>(digits.size());
  *this = Decimal(value < 0, std::move(digits), point);
}

std::optional<Decimal> Decimal::read(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  std::string digits(take_digits(text));
  if (digits.empty()) return std::nullopt;
  auto point = static_cast<int64_t>(digits.size());
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    const std::string_view fraction = take_digits(text);
    if (fraction.empty()) return std::nullopt;
    digits += fraction;
  }
  int64_t exponent = 0;
  if (text.starts_with('e') || text.starts_with('E')) {
    const std::optional<int64_t> read = read_exponent(text.substr(1));
    if (!read) return std::nullopt;
    exponent = *read;
  } else if (!text.empty()) {
    return std::nullopt;
  }
  Decimal number(is_negative, std::move(digits), point);
  if (number.is_zero()) return number;
  number.point_ += exponent;
  const int64_t last = number.point_ - static_cast<int64_t>(number.digits_.size());
  if (number.point_ > kMaxExponent || last < -kMaxExponent) return std::nullopt;
  return number;
}

std::optional<int64_t> Decimal::to_int64() const {
  constexpr int64_t kMostDigits = 19;
  if (!is_whole() || point_ > kMostDigits) return std::nullopt;
  const std::string text = (negative_ ? "-" : "") + whole_digits();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::string Decimal::whole_digits() const {
  if (point_ <= 0) return "0";
  const auto size = static_cast<size_t>(point_);
  std::string out = digits_.substr(0, size);
  out.resize(size, '0');
  return out;
}

int64_t Decimal::num_fraction_digits() const {
  return std::max<int64_t>(static_cast<int64_t>(digits_.size()) - point_, 0);
}

std::string Decimal::fraction_digits() const {
  if (is_whole()) return "";
  if (point_ >= 0) return digits_.substr(static_cast<size_t>(point_));
  return std::string(static_cast<size_t>(-point_), '0') + digits_;
}

Decimal Decimal::negated() const {
  Decimal out = *this;
  out.negative_ = !negative_ && !is_zero();
  return out;
}

Decimal Decimal::floor() const {
  if (is_whole()) return *this;
  const std::string whole = whole_digits();
  const Decimal towards_zero(negative_, whole, static_cast<int64_t>(whole.size()));
  return negative_ ? towards_zero.minus_one() : towards_zero;
}

Decimal Decimal::plus_one() const {
  std::string digits = whole_digits();
  size_t i = digits.size();
  if (!negative_) {
    while (i > 0 && digits[i - 1] == '9') digits[--i] = '0';
    if (i == 0) {
      digits.insert(0, 1, '1');
    } else {
      ++digits[i - 1];
    }
  } else {  // a smaller size, which is not zero
    while (digits[i - 1] == '0') digits[--i] = '9';
    --digits[i - 1];
  }
  const auto point = static_cast<int64_t>(digits.size());
  return {negative_, std::move(digits), point};
}

std::string Decimal::text() const {
  constexpr int64_t kLongest = 21;  // of digits that are written out
  constexpr int64_t kSmallest = -6;
  if (is_zero()) return "0";
  std::string out = negative_ ? "-" : "";
  if (point_ > kLongest || point_ <= kSmallest) {
    out += digits_[0];
    if (digits_.size() > 1) out += '.' + digits_.substr(1);
    return out + fmt::format("e{}", point_ - 1);
  }
  out += whole_digits();
  return is_whole() ? out : out + '.' + fraction_digits();
}

std::strong_ordering operator<=>(const Decimal& a, const Decimal& b) {
  const auto sign = [](const Decimal& one) { return one.is_zero() ? 0 : one.negative_ ? -1 : 1; };
  if (sign(a) != sign(b)) return sign(a) <=> sign(b);
  const Decimal& small = a.negative_ ? b : a;  // sizes the other way round
  const Decimal& large = a.negative_ ? a : b;
  if (small.point_ != large.point_) return small.point_ <=> large.point_;
  return small.digits_.compare(large.digits_) <=> 0;
}

}  // namespace rudder
