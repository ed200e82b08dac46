#include "rudder/text/jinja/printf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "rudder/base/utf8.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/numbers.h"

namespace rudder::text::jinja {
namespace {

// text % values, conversion by conversion.
class Percent {
 public:
  Percent(Interpreter& in, std::string_view format, const Value& values)
      : in_(in), format_(format), values_(values) {
    // What has items by a key may be left unused: lists as well.
    mapping_ = values.is_dict() || values.is_list() || values.is_undefined() ||
               values.get<RangeBox>() != nullptr;
  }

  std::string run() {
    std::string out;
    while (pos_ < format_.size()) {
      const size_t end = std::min(format_.find('%', pos_), format_.size());
      out += format_.substr(pos_, end - pos_);
      pos_ = end;
      if (pos_ == format_.size()) break;
      ++pos_;
      conversion(out);
      in_.budget().spend(1 + out.size() / 64);
      in_.budget().check(out.size());
    }
    const size_t count = values_.is_tuple() ? values_.items().size() : 1;
    if (used_ < count && !mapping_) raise("not all arguments converted during string formatting");
    return out;
  }

 private:
  struct Flags {
    bool left = false, plus = false, blank = false, alternate = false, zero = false;
    Int width = 0;
    std::optional<Int> precision;
  };

  char take() {
    if (pos_ == format_.size()) raise("incomplete format");
    return format_[pos_++];
  }

  const Value& next_value() {
    if (keyed_) return *keyed_;
    if (values_.is_tuple()) {
      if (used_ == values_.items().size()) raise("not enough arguments for format string");
      return values_.items()[used_++];
    }
    if (used_ == 1) raise("not enough arguments for format string");
    ++used_;
    return values_;
  }

  // (key)
  void key() {
    if (!mapping_) raise("format requires a mapping");
    const size_t start = pos_;
    for (int depth = 1; depth > 0;) {
      const char c = take();
      depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    }
    const std::string_view name = format_.substr(start, pos_ - 1 - start);
    if (!values_.is_dict()) raise("format requires a mapping with string keys");
    const Value* found = values_.find(name);
    if (found == nullptr) raise(fmt::format("KeyError: '{}'", name));
    keyed_ = *found;
  }

  Int number(char c) {
    Int value = c - '0';
    while (pos_ < format_.size() && format_[pos_] >= '0' && format_[pos_] <= '9') {
      value = value * 10 + (format_[pos_++] - '0');
      if (value > kMostWidth) raise_limit("memory");
    }
    return value;
  }

  // A number, or one of the values for "*".
  Int size(char c) {
    if (c != '*') return number(c);
    const Value& value = next_value();
    if (!value.is_integral()) raise("* wants int");
    const Int given = value.integer();
    if (given > kMostWidth || given < -kMostWidth) raise_limit("memory");
    return given;
  }

  void conversion(std::string& out) {
    keyed_.reset();
    Flags flags;
    char c = take();
    if (c == '(') {
      key();
      c = take();
    }
    for (bool more = true; more;) {
      switch (c) {
        case '-':
          flags.left = true;
          break;
        case '+':
          flags.plus = true;
          break;
        case ' ':
          flags.blank = true;
          break;
        case '#':
          flags.alternate = true;
          break;
        case '0':
          flags.zero = true;
          break;
        default:
          more = false;
      }
      if (more) c = take();
    }
    const auto is_size = [](char at) { return at == '*' || (at >= '0' && at <= '9'); };
    if (is_size(c)) {
      flags.width = size(c);
      if (flags.width < 0) {
        flags.left = true;
        flags.width = -flags.width;
      }
      c = take();
    }
    if (c == '.') {
      c = take();
      flags.precision = 0;
      if (is_size(c)) {
        flags.precision = std::max<Int>(size(c), 0);
        c = take();
      }
    }
    if (c == 'l' || c == 'h' || c == 'L') c = take();
    if (c == '%') {
      out.push_back('%');
    } else {
      value(c, flags, out);
    }
  }

  void value(char type, const Flags& flags, std::string& out) {
    std::string sign, digits;
    bool numeric = true;
    switch (type) {
      case 's':
      case 'r':
      case 'a': {
        const Value& given = next_value();
        digits = type == 's'   ? in_.text(given)
                 : type == 'r' ? to_repr(in_.budget(), given)
                               : to_ascii(in_.budget(), given);
        cut(digits, flags.precision);
        numeric = false;
        break;
      }
      case 'c':
        digits = character(next_value());
        numeric = false;
        break;
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        integer(type, flags, sign, digits);
        break;
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        const Value& given = next_value();
        if (!given.is_number()) raise("must be real number");
        const double number = given.number();
        if (std::signbit(number) && !std::isnan(number)) sign = "-";
        digits =
            float_digits(in_.budget(), number, type, flags.precision.value_or(6), flags.alternate);
        break;
      }
      default:
        raise(fmt::format("unsupported format character '{}'", type));
    }
    if (numeric && sign.empty() && flags.plus) sign = "+";
    if (numeric && sign.empty() && flags.blank) sign = " ";
    put(sign, digits, flags, numeric, out);
  }

  static void cut(std::string& text, const std::optional<Int>& precision) {
    if (!precision) return;
    size_t pos = 0;
    for (Int i = 0; i < *precision && pos < text.size(); ++i) {
      pos += utf8_length(static_cast<unsigned char>(text[pos]));
    }
    text.resize(pos);
  }

  static std::string character(const Value& given) {
    std::string out;
    if (given.is_string()) {
      if (text_length(given.text()) != 1) raise("%c requires int or char");
      return std::string(given.text());
    }
    if (!given.is_integral()) raise("%c requires int or char");
    const Int code = given.integer();
    if (code < 0 || code > 0x10FFFF) raise("%c arg not in range(0x110000)");
    if (code >= 0xD800 && code < 0xE000) raise_unsupported("a surrogate in a string");
    append_utf8(out, static_cast<char32_t>(code));
    return out;
  }

  void integer(char type, const Flags& flags, std::string& sign, std::string& digits) {
    const Value& given = next_value();
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (!given.is_number() || (given.is_float() && !decimal)) {
      raise(fmt::format("%{} format: a number is required, not {}", type, type_name(given)));
    }
    const Int number = given.is_float() ? truncate(given.number()) : given.integer();
    const int base = decimal ? 10 : type == 'o' ? 8 : 16;
    digits = integer_digits(number, base, type == 'X');
    if (flags.precision && *flags.precision > static_cast<Int>(digits.size())) {
      in_.budget().check(static_cast<size_t>(*flags.precision));
      digits.insert(0, static_cast<size_t>(*flags.precision) - digits.size(), '0');
    }
    if (number < 0) sign = "-";
    if (flags.alternate && !decimal) prefix_ = type == 'o' ? "0o" : type == 'x' ? "0x" : "0X";
  }

  void put(const std::string& sign, const std::string& digits, const Flags& flags, bool numeric,
           std::string& out) {
    const std::string prefix = std::exchange(prefix_, "");
    const size_t length = sign.size() + prefix.size() + text_length(digits);
    const auto pad = static_cast<size_t>(std::max<Int>(flags.width - static_cast<Int>(length), 0));
    in_.budget().check(out.size() + pad + digits.size() + 8);
    const bool zeros = flags.zero && numeric && !flags.left;
    if (!flags.left && !zeros) out.append(pad, ' ');
    out += sign;
    out += prefix;
    if (zeros) out.append(pad, '0');
    out += digits;
    if (flags.left) out.append(pad, ' ');
  }

  Interpreter& in_;
  std::string_view format_;
  const Value& values_;
  bool mapping_;
  size_t pos_ = 0;
  size_t used_ = 0;
  std::optional<Value> keyed_;
  std::string prefix_;
};

}  // namespace

std::string float_digits(Budget& budget, double value, char type, Int precision, bool alternate) {
  const bool capitals = type == 'E' || type == 'F' || type == 'G';
  if (!std::isfinite(value)) {
    return std::string(std::isnan(value) ? (capitals ? "NAN" : "nan") : (capitals ? "INF" : "inf"));
  }
  if (precision > kMostWidth) raise_limit("memory");
  budget.check(static_cast<size_t>(precision) + 400);
  budget.spend(1 + static_cast<size_t>(precision) / 16);
  const char format[] = {'%',
                         alternate ? '#' : '.',
                         alternate ? '.' : '*',
                         alternate ? '*' : type,
                         alternate ? type : '\0',
                         '\0'};
  const auto digits = static_cast<int>(precision);
  const int size = std::snprintf(nullptr, 0, format, digits, std::fabs(value));
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), format, digits, std::fabs(value));
  text.pop_back();
  return text;
}

std::string integer_digits(Int value, int base, bool capitals) {
  auto rest = static_cast<unsigned __int128>(value);
  if (value < 0) rest = -rest;
  std::string text;
  do {
    const auto digit = static_cast<size_t>(rest % static_cast<unsigned>(base));
    text.push_back((capitals ? "0123456789ABCDEF" : "0123456789abcdef")[digit]);
    rest /= static_cast<unsigned>(base);
  } while (rest != 0);
  std::reverse(text.begin(), text.end());
  return text;
}

std::string to_ascii(Budget& budget, const Value& value) {
  const std::string text = to_repr(budget, value);
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<uint32_t>(next_char(text, pos));
    if (c < 0x80) {
      out.push_back(static_cast<char>(c));
    } else {
      out += c < 0x100     ? fmt::format("\\x{:02x}", c)
             : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                           : fmt::format("\\U{:08x}", c);
    }
    budget.check(out.size());
  }
  return out;
}

Value format_percent(Interpreter& in, const Value& format, const Value& values) {
  if (format.is_markup()) raise_unsupported("formatting of text marked as safe");
  return in.string(Percent(in, format.text(), values).run());
}

}  // namespace rudder::text::jinja
