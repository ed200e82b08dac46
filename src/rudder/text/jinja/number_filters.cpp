// The filters that give numbers, and the table of all filters.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/numbers.h"

namespace rudder::text::jinja {
namespace {

void check_defined(const Value& value) {
  if (const auto* undefined = std::get_if<Undefined>(&value.data)) {
    raise(fmt::format("'{}' is undefined", undefined->name));
  }
}

Value absolute(Interpreter&, const Value& value, const Args&) {
  if (!value.is_number()) raise(fmt::format("bad operand for abs(): '{}'", type_name(value)));
  if (value.is_float()) return std::fabs(value.number());
  return value.integer() < 0 ? negated(value) : Value(value.integer());
}

Value to_int(Interpreter&, const Value& value, const Args& args) {
  Value otherwise = args.get(0, 0);
  check_defined(value);
  if (value.is_integral()) return value.integer();
  if (value.is_float()) {
    return std::isnan(value.number()) ? otherwise : Value(truncate(value.number()));
  }
  if (!value.is_string()) return otherwise;
  const Value base = args.get(1, 10);
  if (base.is_integral() && base.integer() >= 0 && base.integer() <= 36) {
    if (const auto number = parse_int(value.text(), static_cast<int>(base.integer()))) {
      return *number;
    }
  }
  const auto number = parse_float(value.text());
  return number && std::isfinite(*number) ? Value(truncate(*number)) : otherwise;
}

Value to_float(Interpreter&, const Value& value, const Args& args) {
  check_defined(value);
  if (value.is_number()) return value.number();
  if (value.is_string()) {
    if (const auto number = parse_float(value.text())) return *number;
  }
  return args.get(0, 0.0);
}

Value round_filter(Interpreter&, const Value& value, const Args& args) {
  const std::string_view method = args.has(1) && args[1].is_string() ? args[1].text() : "";
  if (args.has(1) && method != "common" && method != "ceil" && method != "floor") {
    raise("method must be common, ceil or floor");
  }
  if (!value.is_number()) raise(fmt::format("'{}' cannot be rounded", type_name(value)));
  if (!args.has(1) || method == "common") {
    if (!args.has(0) || !args[0].is_none()) return round_number(value, args.integer(0, 0));
    const Value whole = round_number(value, 0);
    return whole.is_float() ? Value(truncate(whole.number())) : whole;
  }
  const Value scale = arithmetic("**", 10, args.integer(0, 0));
  Value scaled = arithmetic("*", value, scale);
  if (scaled.is_float()) {
    const double number = scaled.number();
    scaled = truncate(method == "ceil" ? std::ceil(number) : std::floor(number));
  }
  return arithmetic("/", scaled, scale);
}

Value file_size_text(Interpreter& in, double bytes, bool binary) {
  static constexpr std::array<std::string_view, 8> kPrefixes = {"k", "M", "G", "T",
                                                                "P", "E", "Z", "Y"};
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return in.string("1 Byte");
  if (bytes < base) return in.string(int_text(truncate(bytes)) + " Bytes");
  for (size_t i = 0;; ++i) {
    const double unit = std::pow(base, static_cast<double>(i + 2));
    if (bytes >= unit && i + 1 < kPrefixes.size()) continue;
    const std::string_view prefix = binary && i == 0 ? "K" : kPrefixes[i];
    return in.string(fmt::format("{:.1f} {}{}B", base * bytes / unit, prefix, binary ? "i" : ""));
  }
}

Value file_size(Interpreter& in, const Value& value, const Args& args) {
  check_defined(value);
  if (value.is_number()) return file_size_text(in, value.number(), args.flag(0));
  const auto number = value.is_string() ? parse_float(value.text()) : std::nullopt;
  if (!number) raise(fmt::format("could not convert a '{}' to a number", type_name(value)));
  return file_size_text(in, *number, args.flag(0));
}

constexpr Filter kNumberFilters[] = {
    {"abs", {"", 0, false}, absolute},
    {"filesizeformat", {"binary", 0}, file_size},
    {"float", {"default", 0}, to_float},
    {"int", {"default,base", 0}, to_int},
    {"round", {"precision,method", 0}, round_filter},
};

}  // namespace

std::span<const Filter> number_filters() {
  return kNumberFilters;
}

const Filter* find_filter(std::string_view name) {
  for (const auto table : {text_filters(), item_filters(), lazy_filters(), number_filters()}) {
    for (const Filter& filter : table) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

Value apply_filter(Interpreter& in, const Filter& filter, const Value& value, const Call& call) {
  in.budget().spend(1);
  if (filter.free != nullptr) return filter.free(in, value, call);
  return filter.bound(in, value, Args(filter.signature, call, filter.name));
}

}  // namespace rudder::text::jinja
