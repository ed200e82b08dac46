// text.format(values), and the little language of format specifications.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "rudder/base/utf8.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/numbers.h"
#include "rudder/text/jinja/printf.h"

namespace rudder::text::jinja {
namespace {

// [[fill]align][sign][z][#][0][width][grouping][.precision][type]
struct Spec {
  std::string fill = " ";
  char align = '\0';
  char sign = '\0';
  bool alternate = false;
  bool zero = false;
  Int width = 0;
  char grouping = '\0';
  std::optional<Int> precision;
  char type = '\0';
};

bool is_align(char c) {
  return c == '<' || c == '>' || c == '=' || c == '^';
}

Int take_number(std::string_view text, size_t& pos) {
  Int value = 0;
  for (; pos < text.size() && text[pos] >= '0' && text[pos] <= '9'; ++pos) {
    value = value * 10 + (text[pos] - '0');
    if (value > kMostWidth) raise_limit("memory");
  }
  return value;
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t pos = 0;
  const auto at = [&](size_t i) { return i < text.size() ? text[i] : '\0'; };
  const size_t first = text.empty() ? 0 : utf8_length(static_cast<unsigned char>(text[0]));
  if (is_align(at(first)) && first > 0) {
    spec.fill = text.substr(0, first);
    spec.align = at(first);
    pos = first + 1;
  } else if (is_align(at(0))) {
    spec.align = at(pos++);
  }
  if (at(pos) == '+' || at(pos) == '-' || at(pos) == ' ') spec.sign = at(pos++);
  if (at(pos) == 'z') raise_unsupported("the format option 'z'");
  if (at(pos) == '#') {
    spec.alternate = true;
    ++pos;
  }
  if (at(pos) == '0') {
    spec.zero = spec.align == '\0';
    if (spec.zero) spec.fill = "0";
    ++pos;
  }
  spec.width = take_number(text, pos);
  if (at(pos) == ',' || at(pos) == '_') spec.grouping = at(pos++);
  if (at(pos) == ',' || at(pos) == '_') raise("Cannot specify both ',' and '_'.");
  if (at(pos) == '.') {
    const size_t start = ++pos;
    spec.precision = take_number(text, pos);
    if (pos == start) raise("Format specifier missing precision");
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos < text.size()) raise("Invalid format specifier");
  return spec;
}

// `body` after `sign`, padded to the width; "=" pads between the two.
std::string padded(Interpreter& in, const Spec& spec, const std::string& sign,
                   const std::string& body, char align) {
  const size_t length = text_length(sign) + text_length(body);
  const auto pad = static_cast<size_t>(std::max<Int>(spec.width - static_cast<Int>(length), 0));
  in.budget().spend(1 + pad / 64);
  in.budget().check(pad * spec.fill.size() + body.size());
  const auto fill = [&spec](size_t count) {
    std::string out;
    out.reserve(count * spec.fill.size());
    for (size_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  if (align == '<') return sign + body + fill(pad);
  if (align == '=') return sign + fill(pad) + body;
  if (align == '^') return fill(pad / 2) + sign + body + fill(pad - pad / 2);
  return fill(pad) + sign + body;
}

std::string grouped(std::string digits, char separator, size_t width) {
  for (size_t at = digits.size(); at > width; at -= width) {
    digits.insert(at - width, 1, separator);
  }
  return digits;
}

std::string sign_of(const Spec& spec, bool negative) {
  if (negative) return "-";
  return spec.sign == '+' || spec.sign == ' ' ? std::string(1, spec.sign) : std::string();
}

[[noreturn]] void raise_type(char type, std::string_view of) {
  raise(fmt::format("Unknown format code '{}' for object of type '{}'", type, of));
}

std::string format_text(Interpreter& in, std::string_view text, const Spec& spec) {
  if (spec.type != '\0' && spec.type != 's') raise_type(spec.type, "str");
  if (spec.sign != '\0') raise("Sign not allowed in string format specifier");
  if (spec.alternate) raise("Alternate form (#) not allowed in string format specifier");
  if (spec.grouping != '\0') raise("Cannot specify ',' with 's'.");
  if (spec.align == '=') raise("'=' alignment not allowed in string format specifier");
  size_t end = text.size();
  if (spec.precision) {
    end = 0;
    for (Int i = 0; i < *spec.precision && end < text.size(); ++i) {
      end += utf8_length(static_cast<unsigned char>(text[end]));
    }
  }
  return padded(in, spec, "", std::string(text.substr(0, end)),
                spec.align == '\0' ? '<' : spec.align);
}

// Without a type: as repr, or with a precision as %g, always with a point or an exponent.
std::string short_digits(Budget& budget, double value, const Spec& spec) {
  if (!spec.precision || !std::isfinite(value)) return float_text(std::fabs(value));
  const Int precision = std::max<Int>(*spec.precision, 1);
  const std::string scientific = float_digits(budget, value, 'e', precision - 1, false);
  const Int exponent = *parse_int(scientific.substr(scientific.find('e') + 1));
  std::string text = float_digits(budget, value, 'g', precision, false);
  if (exponent == precision - 1) {  // %g would write it without a point
    std::string digits = scientific.substr(0, scientific.find('e'));
    if (digits.find('.') != std::string::npos) {
      while (digits.back() == '0') digits.pop_back();
      if (digits.back() == '.') digits.pop_back();
    }
    return digits + scientific.substr(scientific.find('e'));
  }
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string format_float(Interpreter& in, double value, const Spec& spec) {
  if (spec.type != '\0' && std::string_view("eEfFgGn%").find(spec.type) == std::string_view::npos) {
    raise_type(spec.type, "float");
  }
  if (spec.type == 'n') raise_unsupported("the format type 'n'");
  if (spec.grouping != '\0' && spec.zero) raise_unsupported("grouped digits after zeros");
  const bool negative = std::signbit(value) && !std::isnan(value);
  const bool percent = spec.type == '%';
  std::string digits = spec.type == '\0' ? short_digits(in.budget(), value, spec)
                                         : float_digits(in.budget(), percent ? value * 100 : value,
                                                        percent ? 'f' : spec.type,
                                                        spec.precision.value_or(6), spec.alternate);
  if (spec.grouping != '\0') {
    const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    digits = grouped(digits.substr(0, whole), spec.grouping, 3) + digits.substr(whole);
  }
  if (percent) digits += '%';
  return padded(in, spec, sign_of(spec, negative), digits,
                spec.align != '\0' ? spec.align
                : spec.zero        ? '='
                                   : '>');
}

std::string format_integer(Interpreter& in, Int value, const Spec& spec) {
  if (std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != '\0') {
    return format_float(in, static_cast<double>(value), spec);
  }
  if (spec.type == 'n') raise_unsupported("the format type 'n'");
  if (spec.precision) raise("Precision not allowed in integer format specifier");
  const char align = spec.align != '\0' ? spec.align : spec.zero ? '=' : '>';
  if (spec.type == 'c') {
    if (spec.sign != '\0' || spec.alternate) raise("Sign not allowed with integer format 'c'");
    if (value < 0 || value > 0x10FFFF) raise("%c arg not in range(0x110000)");
    if (value >= 0xD800 && value < 0xE000) raise_unsupported("a surrogate in a string");
    std::string text;
    append_utf8(text, static_cast<char32_t>(value));
    return padded(in, spec, "", text, align);
  }
  const char type = spec.type == '\0' ? 'd' : spec.type;
  if (std::string_view("bdoxX").find(type) == std::string_view::npos) raise_type(type, "int");
  if (spec.grouping == ',' && type != 'd') raise("Cannot specify ',' with this type.");
  if (spec.grouping != '\0' && spec.zero) raise_unsupported("grouped digits after zeros");
  const int base = type == 'd' ? 10 : type == 'b' ? 2 : type == 'o' ? 8 : 16;
  std::string digits = integer_digits(value, base, type == 'X');
  if (spec.grouping != '\0') digits = grouped(std::move(digits), spec.grouping, base == 10 ? 3 : 4);
  std::string sign = sign_of(spec, value < 0);
  if (spec.alternate && type != 'd') sign += {'0', type};
  return padded(in, spec, sign, digits, align);
}

// The fields of one text.format(): numbered by hand or by themselves.
class Braces {
 public:
  Braces(Interpreter& in, const Call& call) : in_(in), call_(call) {}

  std::string run(std::string_view format, int depth) {
    if (depth < 0) raise("Max string recursion exceeded");
    std::string out;
    for (size_t pos = 0; pos < format.size();) {
      const char c = format[pos++];
      const bool doubled = pos < format.size() && format[pos] == c;
      if (c != '{' && c != '}') {
        out.push_back(c);
      } else if (doubled) {
        out.push_back(c);
        ++pos;
      } else if (c == '}') {
        raise("Single '}' encountered in format string");
      } else {
        out += field(take_field(format, pos), depth);
      }
      if (c == '{' || pos % 64 == 0) in_.budget().spend(1 + out.size() / 64);
      in_.budget().check(out.size());
    }
    return out;
  }

 private:
  // Up to the brace that closes it, which is taken as well.
  static std::string_view take_field(std::string_view format, size_t& pos) {
    const size_t start = pos;
    int open = 1;
    for (; pos < format.size(); ++pos) {
      open += format[pos] == '{' ? 1 : format[pos] == '}' ? -1 : 0;
      if (open == 0) return format.substr(start, pos++ - start);
    }
    raise("expected '}' before end of string");
  }

  std::string field(std::string_view text, int depth) {
    // The name ends at the first ! or : that is not inside brackets.
    size_t end = 0;
    for (bool inside = false; end < text.size(); ++end) {
      if (text[end] == '[') inside = true;
      if (text[end] == ']') inside = false;
      if (text[end] == '{') raise("unexpected '{' in field name");
      if (!inside && (text[end] == '!' || text[end] == ':')) break;
    }
    const std::string_view name = text.substr(0, end);
    char conversion = '\0';
    std::string_view spec = text.substr(end);
    if (spec.starts_with('!')) {
      if (spec.size() < 2) raise("end of string while looking for conversion specifier");
      conversion = spec[1];
      spec.remove_prefix(2);
      if (!spec.empty() && spec[0] != ':') raise("expected ':' after conversion specifier");
    }
    if (!spec.empty()) spec.remove_prefix(1);
    Value value = find(name);
    if (conversion == 's') {
      value = in_.string(in_.text(value));
    } else if (conversion == 'r') {
      value = in_.string(to_repr(in_.budget(), value));
    } else if (conversion == 'a') {
      value = in_.string(to_ascii(in_.budget(), value));
    } else if (conversion != '\0') {
      raise("Unknown conversion specifier");
    }
    return format_value(in_, value, run(spec, depth - 1));
  }

  // name.attribute[item]...
  Value find(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = first(path.substr(0, end));
    path.remove_prefix(end);
    while (!path.empty()) {
      if (path[0] == '.') {
        const size_t stop = std::min(path.find_first_of(".[", 1), path.size());
        if (stop == 1) raise("Empty attribute in format string");
        value = in_.attribute(value, path.substr(1, stop - 1));
        path.remove_prefix(stop);
        continue;
      }
      const size_t stop = path.find(']');
      if (path[0] != '[' || stop == std::string_view::npos) raise("Missing ']' in format string");
      const std::string_view key = path.substr(1, stop - 1);
      if (key.empty()) raise("Empty attribute in format string");
      const bool digits = key.find_first_not_of("0123456789") == std::string_view::npos;
      value = in_.item(value, digits ? Value(*parse_int(key)) : in_.string(std::string(key)));
      path.remove_prefix(stop + 1);
      if (!path.empty() && path[0] != '.' && path[0] != '[') {
        raise("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Value first(std::string_view name) {
    const bool numbered = name.find_first_not_of("0123456789") == std::string_view::npos;
    if (!numbered) {
      for (const auto& [known, value] : call_.named) {
        if (known == name) return value;
      }
      raise(fmt::format("KeyError: '{}'", name));
    }
    const bool automatic = name.empty();
    if (numbering_ && *numbering_ != automatic) {
      raise("cannot switch between manual field specification and automatic field numbering");
    }
    numbering_ = automatic;
    const Int index = automatic ? next_++ : *parse_int(name);
    if (index >= static_cast<Int>(call_.positional.size())) {
      raise(fmt::format("Replacement index {} out of range", index));
    }
    return call_.positional[static_cast<size_t>(index)];
  }

  Interpreter& in_;
  const Call& call_;
  std::optional<bool> numbering_;
  Int next_ = 0;
};

}  // namespace

std::string format_value(Interpreter& in, const Value& value, std::string_view spec) {
  if (spec.empty()) return in.text(value);
  if (value.is_markup()) raise_unsupported("formatting of text marked as safe");
  if (value.is_string()) return format_text(in, value.text(), parse_spec(spec));
  if (value.is_integral()) return format_integer(in, value.integer(), parse_spec(spec));
  if (value.is_float()) return format_float(in, value.number(), parse_spec(spec));
  raise(fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
}

Value format_braces(Interpreter& in, const Value& format, const Call& call) {
  if (format.is_markup()) raise_unsupported("formatting of text marked as safe");
  return in.string(Braces(in, call).run(format.text(), 2));
}

}  // namespace rudder::text::jinja
