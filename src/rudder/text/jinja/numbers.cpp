#include "rudder/text/jinja/numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "rudder/text/jinja/strings.h"

namespace rudder::text::jinja {
namespace {

constexpr Int kExact = Int{1} << 53;  // integers up to here are doubles

[[noreturn]] void raise_big() {
  raise_unsupported("an integer of more than 128 bits");
}

// Digits with single underscores between them; they are removed.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out.push_back(text[i]);
      continue;
    }
    const auto is_digit = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
    if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return out;
}

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 32);
  return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
}

Int power(Int base, Int exponent) {
  Int result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (Int i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) raise_big();
  }
  return result;
}

double divide(Int a, Int b) {
  const auto small = [](Int value) { return value <= kExact && value >= -kExact; };
  if (small(a) && small(b)) return static_cast<double>(a) / static_cast<double>(b);
  const Int quotient = a / b;
  if (quotient * b == a) return static_cast<double>(quotient);
  raise_unsupported("a division of integers beyond 2**53");
}

Value float_power(double a, double b) {
  if (a == 0 && b < 0) raise("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
    raise_unsupported("a complex number");
  }
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) raise("result too large");
  return result;
}

Value integer_op(std::string_view op, Int a, Int b) {
  Int result = 0;
  const auto checked = [&result](bool overflow) -> Value {
    if (overflow) raise_big();
    return result;
  };
  if (op == "+") return checked(__builtin_add_overflow(a, b, &result));
  if (op == "-") return checked(__builtin_sub_overflow(a, b, &result));
  if (op == "*") return checked(__builtin_mul_overflow(a, b, &result));
  if (op == "**") {
    if (b >= 0) return power(a, b);
    return float_power(static_cast<double>(a), static_cast<double>(b));
  }
  if (b == 0) raise("division by zero");
  if (op == "/") return divide(a, b);
  if (b == -1) {
    if (op == "%") return 0;
    return checked(__builtin_sub_overflow(Int{0}, a, &result));
  }
  Int quotient = a / b, rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    --quotient;
    rest += b;
  }
  return op == "//" ? quotient : rest;
}

// Python's float_divmod: the rest has the sign of the divisor.
Value float_op(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return float_power(a, b);
  if (b == 0) raise("float division by zero");
  if (op == "/") return a / b;
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest == 0) {
    rest = std::copysign(0.0, b);
  } else if ((b < 0) != (rest < 0)) {
    rest += b;
    quotient -= 1;
  }
  if (op == "%") return rest;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

}  // namespace

std::string int_text(Int value) {
  return fmt::format("{}", value);
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::optional<Int> parse_int(std::string_view given, int base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  std::string_view text = strip(given, nullptr, true, true);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  bool prefixed = false;
  if (text.size() > 1 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 32);
    const int meant = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (meant != 0 && (base == 0 || base == meant)) {
      base = meant;
      text.remove_prefix(2);
      if (text.starts_with('_')) text.remove_prefix(1);
      prefixed = true;
    }
  }
  const auto digits = without_underscores(text);
  if (!digits || digits->empty()) return std::nullopt;
  const bool decimal = base == 0;
  if (decimal) base = 10;
  Int value = 0;
  bool overflows = false;
  for (const char c : *digits) {
    const int digit = digit_value(c);
    if (digit >= base) return std::nullopt;
    overflows |= __builtin_mul_overflow(value, Int{base}, &value);
    overflows |= __builtin_add_overflow(value, Int{digit}, &value);
  }
  const bool leading_zero = !prefixed && decimal && (*digits)[0] == '0';
  if (leading_zero && digits->find_first_not_of('0') != std::string::npos) return std::nullopt;
  if (overflows) raise_big();
  return negative ? -value : value;
}

std::optional<double> parse_float(std::string_view given) {
  std::string_view text = strip(given, nullptr, true, true);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const auto digits = without_underscores(text);
  if (!digits || digits->empty() || (*digits)[0] == '-' || (*digits)[0] == '+') return std::nullopt;
  const std::string lower = to_lower(*digits);
  if (lower.starts_with("nan(")) return std::nullopt;
  double value = 0;
  const char* end = lower.data() + lower.size();
  const auto parsed = std::from_chars(lower.data(), end, value);
  if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) value = std::strtod(lower.c_str(), nullptr);
  return negative ? -value : value;
}

Int truncate(double value) {
  if (std::isnan(value)) raise("cannot convert float NaN to integer");
  if (std::isinf(value)) raise("cannot convert float infinity to integer");
  if (std::fabs(value) > 1.7e38) raise_big();
  return static_cast<Int>(value);
}

Value round_number(const Value& value, Int digits) {
  if (value.is_integral()) {
    const Int number = value.integer();
    if (digits >= 0) return number;
    if (digits < -37) return 0;
    const Int unit = power(10, -digits);
    const Int rest = ((number % unit) + unit) % unit;
    const Int down = number - rest;
    const bool up = rest * 2 > unit || (rest * 2 == unit && (down / unit) % 2 != 0);
    return up ? down + unit : down;
  }
  const double number = value.number();
  if (!std::isfinite(number) || digits > 323) return number;
  if (digits < -308) return 0.0 * number;
  if (digits >= 0) {
    // Correctly rounded from the exact value, as Python does.
    const std::string text = fmt::format("{:.{}f}", number, static_cast<int>(digits));
    return std::strtod(text.c_str(), nullptr);
  }
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(number / unit) * unit;
}

Value arithmetic(std::string_view op, const Value& left, const Value& right) {
  if (left.is_float() || right.is_float()) return float_op(op, left.number(), right.number());
  return integer_op(op, left.integer(), right.integer());
}

Value negated(const Value& value) {
  if (value.is_float()) return -value.number();
  return integer_op("-", 0, value.integer());
}

}  // namespace rudder::text::jinja
