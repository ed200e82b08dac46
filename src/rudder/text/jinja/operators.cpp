// The interpreter's operators, after Python: iteration, attributes, items, slices, arithmetic.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

double number(const Value& value) {
  return value.is_float() ? std::get<double>(value.data) : static_cast<double>(value.integer());
}

// Byte offset of the code point number `index`.
size_t byte_offset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) {
    pos += utf8_length(static_cast<unsigned char>(text[pos]));
  }
  return pos;
}

// Code points from, from + step, ... up to `to`, all within the text.
Value slice_text(Interpreter& in, std::string_view text, int64_t from, int64_t to, int64_t step) {
  if (step == 1) {
    const size_t begin = byte_offset(text, static_cast<size_t>(from));
    const size_t end = from < to ? byte_offset(text, static_cast<size_t>(to)) : begin;
    return in.string(std::string(text.substr(begin, end - begin)));
  }
  std::u32string chars;
  for (size_t pos = 0; pos < text.size();) chars.push_back(next_char(text, pos));
  std::string out;
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    append_utf8(out, chars[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return in.string(std::move(out));
}

Value loop_attribute(Interpreter& in, const LoopBox& loop, std::string_view name) {
  const auto& items = loop.items->items;
  const auto index = static_cast<int64_t>(loop.index);
  const auto count = static_cast<int64_t>(items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return count - index;
  if (name == "revindex0") return count - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index == count - 1;
  if (name == "length") return count;
  if (name == "depth") return int64_t{1};  // of recursive loops, which are refused
  if (name == "depth0") return int64_t{0};
  if (name == "previtem") return index > 0 ? items[loop.index - 1] : Value();
  if (name == "nextitem") return index + 1 < count ? items[loop.index + 1] : Value();
  in.budget().spend(1);
  return {};
}

Value integer_op(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  const auto checked = [&result](bool overflow) -> Value {
    if (overflow) raise("integer overflow");
    return result;
  };
  if (op == "+") return checked(__builtin_add_overflow(a, b, &result));
  if (op == "-") return checked(__builtin_sub_overflow(a, b, &result));
  if (op == "*") return checked(__builtin_mul_overflow(a, b, &result));
  if (op == "**") {
    if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
    result = 1;
    bool overflow = false;
    for (int64_t i = 0; i < b && !overflow && result != 0 && (a > 1 || a < -1); ++i) {
      overflow = __builtin_mul_overflow(result, a, &result);
    }
    if (a == -1 && b % 2 != 0) return int64_t{-1};
    if (a == 0 && b > 0) return int64_t{0};
    return checked(overflow);
  }
  if (b == 0) raise("division by zero");
  if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) {
    if (op == "%") return int64_t{0};
    return checked(__builtin_sub_overflow(int64_t{0}, a, &result));
  }
  int64_t quotient = a / b, rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    --quotient;
    rest += b;
  }
  return op == "//" ? quotient : rest;
}

Value float_op(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  if (b == 0) raise("division by zero");
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  return a - b * std::floor(a / b);
}

Value repeat(Interpreter& in, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  const size_t unit =
      value.is_string() ? value.text().size() : value.items().size() * sizeof(Value);
  if (unit > 0 && static_cast<uint64_t>(times) > in.budget().memory / unit) raise_limit("memory");
  if (unit == 0) times = 0;
  if (value.is_string()) {
    std::string text;
    text.reserve(unit * static_cast<size_t>(times));
    for (int64_t i = 0; i < times; ++i) text += value.text();
    return in.string(std::move(text));
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < times; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return Value::list(in.budget(), std::move(items), value.get<ListBox>()->tuple);
}

}  // namespace

Items Interpreter::iterate(const Value& value) {
  if (const auto* list = std::get_if<std::shared_ptr<const ListBox>>(&value.data)) return {*list};
  std::vector<Value> items;
  if (value.is_dict()) {
    for (const auto& [key, held] : value.entries()) items.push_back(key);
  } else if (value.is_string()) {
    const std::string_view text = value.text();
    for (size_t pos = 0; pos < text.size();) {
      const size_t start = pos;
      next_char(text, pos);
      items.push_back(string(std::string(text.substr(start, pos - start))));
    }
  } else if (!value.is_undefined()) {
    raise(fmt::format("'{}' object is not iterable", type_name(value)));
  }
  return {std::make_shared<const ListBox>(budget_, std::move(items), false)};
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  if (const auto* undefined = std::get_if<Undefined>(&object.data)) {
    raise(fmt::format("'{}' is undefined: it has no attribute '{}'", undefined->name, name));
  }
  if (object.is_dict()) {
    budget_.spend(object.entries().size() / 8);
    const Value* found = object.find(name);
    return found != nullptr ? *found : Value();
  }
  if (const auto* space = object.get<NamespaceBox>()) {
    for (const auto& [key, value] : space->fields) {
      if (key == name) return value;
    }
  }
  if (const auto* loop = object.get<LoopBox>()) return loop_attribute(*this, *loop, name);
  return {};
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_dict()) {
    for (const auto& [known, value] : object.entries()) {
      if (equal(budget_, known, key)) return value;
    }
    return {};
  }
  if (key.is_string()) return attribute(object, key.text());
  if (object.is_undefined()) return attribute(object, to_text(budget_, key));
  if (!key.is_int() && !key.is_bool()) return {};
  int64_t index = key.integer();
  if (object.is_list()) {
    const auto count = static_cast<int64_t>(object.items().size());
    if (index < 0) index += count;
    return index >= 0 && index < count ? object.items()[static_cast<size_t>(index)] : Value();
  }
  if (object.is_string()) {
    const std::string_view text = object.text();
    budget_.spend(text.size() / 64);
    const auto count = static_cast<int64_t>(text_length(text));
    if (index < 0) index += count;
    if (index < 0 || index >= count) return {};
    const size_t start = byte_offset(text, static_cast<size_t>(index));
    const size_t length = utf8_length(static_cast<unsigned char>(text[start]));
    return string(std::string(text.substr(start, length)));
  }
  return {};
}

Value Interpreter::slice(const Value& base, const Postfix& postfix, Scope& scope) {
  const auto bound = [&](const ExprPtr& expr) -> std::optional<int64_t> {
    if (expr == nullptr) return std::nullopt;
    const Value value = evaluate(*expr, scope);
    if (value.is_none()) return std::nullopt;
    if (!value.is_int() && !value.is_bool()) raise("slice indices must be integers");
    return value.integer();
  };
  const auto begin = bound(postfix.begin), end = bound(postfix.end);
  const int64_t step = bound(postfix.step).value_or(1);
  if (step == 0) raise("slice step cannot be zero");
  if (base.is_undefined() || !(base.is_list() || base.is_string())) {
    raise(fmt::format("'{}' object cannot be sliced", type_name(base)));
  }
  if (base.is_string()) budget_.spend(1 + base.text().size() / 16);
  const auto count =
      static_cast<int64_t>(base.is_string() ? text_length(base.text()) : base.items().size());
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? count : count - 1;
  const auto place = [&](std::optional<int64_t> given, int64_t fallback) {
    if (!given) return fallback;
    return std::clamp(*given < 0 ? *given + count : *given, low, high);
  };
  const int64_t from = place(begin, step > 0 ? 0 : count - 1);
  const int64_t to = place(end, step > 0 ? count : -1);
  if (base.is_string()) return slice_text(*this, base.text(), from, to, step);
  std::vector<Value> items;
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    items.push_back(base.items()[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(budget_, std::move(items), base.get<ListBox>()->tuple);
}

bool Interpreter::contains(const Value& container, const Value& value) {
  if (container.is_string()) {
    if (!value.is_string()) {
      raise(fmt::format("'in <string>' requires string, not {}", type_name(value)));
    }
    budget_.spend(1 + container.text().size() / 64);
    return container.text().find(value.text()) != std::string_view::npos;
  }
  const Items items = iterate(container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& held) { return equal(budget_, held, value); });
}

Value Interpreter::binary(std::string_view op, const Value& left, const Value& right) {
  if (op == "~") {
    std::string text = to_text(budget_, left);
    text += to_text(budget_, right);
    return string(std::move(text));
  }
  for (const Value* side : {&left, &right}) {
    if (const auto* undefined = std::get_if<Undefined>(&side->data)) {
      raise(fmt::format("'{}' is undefined", undefined->name));
    }
  }
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float()) return float_op(op, number(left), number(right));
    return integer_op(op, left.integer(), right.integer());
  }
  if (op == "+" && left.is_string() && right.is_string()) {
    budget_.check(left.text().size() + right.text().size());
    std::string text;
    text.reserve(left.text().size() + right.text().size());
    text.append(left.text()).append(right.text());
    return string(std::move(text));
  }
  if (op == "+" && left.is_list() && right.is_list()) {
    budget_.check((left.items().size() + right.items().size()) * sizeof(Value));
    std::vector<Value> items = left.items();
    items.insert(items.end(), right.items().begin(), right.items().end());
    return Value::list(budget_, std::move(items), left.get<ListBox>()->tuple);
  }
  const bool repeats_left =
      (left.is_string() || left.is_list()) && (right.is_int() || right.is_bool());
  const bool repeats_right =
      (right.is_string() || right.is_list()) && (left.is_int() || left.is_bool());
  if (op == "*" && repeats_left) return repeat(*this, left, right.integer());
  if (op == "*" && repeats_right) return repeat(*this, right, left.integer());
  raise(fmt::format("unsupported operand types for {}: '{}' and '{}'", op, type_name(left),
                    type_name(right)));
}

}  // namespace rudder::text::jinja
