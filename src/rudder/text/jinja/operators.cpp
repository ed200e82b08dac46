// Attributes, items, slices and arithmetic, after Python and the reference's sandbox.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "rudder/base/utf8.h"
#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/numbers.h"
#include "rudder/text/jinja/printf.h"
#include "rudder/text/jinja/strings.h"

namespace rudder::text::jinja {
namespace {

// Names that every object of Python has.
bool is_internal(std::string_view name) {
  static constexpr std::array<std::string_view, 14> kNames = {
      "__class__", "__doc__", "__init__",    "__new__",     "__str__",    "__repr__",   "__eq__",
      "__hash__",  "__len__", "__getattr__", "__getitem__", "__module__", "__reduce__", "__dir__"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Byte offset of the code point number `index`.
size_t byte_offset(std::string_view text, Int index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) {
    pos += utf8_length(static_cast<unsigned char>(text[pos]));
  }
  return pos;
}

// The elements from, from + step, ... that a slice takes: all within the value.
struct Cut {
  Int from, to, step;
  Int count() const {
    const Int span = step > 0 ? to - from : from - to;
    const Int width = step > 0 ? step : -step;
    return span <= 0 ? 0 : (span - 1) / width + 1;
  }
};

Value slice_text(Interpreter& in, const Value& value, const Cut& cut) {
  const std::string_view text = value.text();
  std::string out;
  if (cut.step == 1) {
    const size_t begin = byte_offset(text, cut.from);
    const size_t end = cut.from < cut.to ? byte_offset(text, cut.to) : begin;
    out = text.substr(begin, end - begin);
  } else {
    in.budget().check(text.size() * sizeof(char32_t));
    std::u32string chars;
    for (size_t pos = 0; pos < text.size();) chars.push_back(next_char(text, pos));
    for (Int i = 0; i < cut.count(); ++i) {
      append_utf8(out, chars[static_cast<size_t>(cut.from + i * cut.step)]);
    }
  }
  return in.string(std::move(out), value.is_markup());
}

Value repeat(Interpreter& in, const Value& value, Int times) {
  times = std::max<Int>(times, 0);
  const size_t unit =
      value.is_string() ? value.text().size() : value.items().size() * sizeof(Value);
  if (unit > 0 && times > static_cast<Int>(in.budget().memory / unit)) raise_limit("memory");
  if (unit == 0) times = 0;
  if (value.is_string()) {
    std::string text;
    text.reserve(unit * static_cast<size_t>(times));
    for (Int i = 0; i < times; ++i) text += value.text();
    return in.string(std::move(text), value.is_markup());
  }
  std::vector<Value> items;
  items.reserve(value.items().size() * static_cast<size_t>(times));
  for (Int i = 0; i < times; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.is_list() ? in.list(std::move(items)) : in.tuple(std::move(items));
}

Value add_text(Interpreter& in, const Value& left, const Value& right) {
  const bool markup = left.is_markup() || right.is_markup();
  const auto part = [markup](const Value& side) {
    const bool escapes = markup && !side.is_markup();
    return escapes ? escape_html(side.text()) : std::string(side.text());
  };
  in.budget().check(left.text().size() + right.text().size());
  return in.string(part(left) + part(right), markup);
}

Value add_items(Interpreter& in, const Value& left, const Value& right) {
  in.budget().check((left.items().size() + right.items().size()) * sizeof(Value));
  std::vector<Value> items = left.items();
  items.insert(items.end(), right.items().begin(), right.items().end());
  return left.is_list() ? in.list(std::move(items)) : in.tuple(std::move(items));
}

bool range_contains(Interpreter& in, const RangeBox& range, const Value& value) {
  if (!value.is_number()) return false;
  if (!value.is_integral()) {
    const double number = value.number();
    return std::abs(number) < 1e15 && number == static_cast<double>(static_cast<Int>(number)) &&
           range_contains(in, range, static_cast<Int>(number));
  }
  const Int offset = value.integer() - range.start;
  return offset % range.step == 0 && offset / range.step >= 0 && offset / range.step < range.count;
}

}  // namespace

Value Interpreter::attribute(const Value& object, std::string_view name) {
  // The sandbox: what begins with an underscore is undefined, but for the keys of a dict.
  if (is_internal(name)) return {};
  if (const auto* undefined = std::get_if<Undefined>(&object.data)) {
    raise(fmt::format("'{}' is undefined: it has no attribute '{}'", undefined->name, name));
  }
  budget_.spend(1);
  if (name.starts_with('_') && !object.is_dict()) return {};
  if (const Method* method = find_method(object, name)) {
    if (method->bound == nullptr && method->free == nullptr) return {};
    auto box =
        std::make_shared<CallableBox>(budget_, CallableBox::Kind::kMethod, method->name, object);
    box->method = method;
    return std::shared_ptr<const CallableBox>(std::move(box));
  }
  Value value = property(*this, object, name);
  if (!value.is_missing()) return value;
  if (!object.is_dict()) return {};
  budget_.spend(object.entries().size() / 8);
  const Value* found = object.find(name);
  return found != nullptr ? *found : Value();
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) return attribute(object, key.is_string() ? key.text() : "");
  if (object.is_dict()) {
    const bool hashable = !key.is_list() && !key.is_dict();
    const Value* found = hashable ? find_key(budget_, object.entries(), key) : nullptr;
    if (found != nullptr) return *found;
  }
  if (key.is_string()) return attribute(object, key.text());
  if (!key.is_integral()) return {};
  Int index = key.integer();
  const auto* range = object.get<RangeBox>();
  if (!object.is_sequence() && !object.is_string() && range == nullptr) return {};
  const Int count = *length_of(budget_, object);
  if (index < 0) index += count;
  if (index < 0 || index >= count) return {};
  if (range != nullptr) return range->at(index);
  if (object.is_sequence()) return object.items()[static_cast<size_t>(index)];
  const std::string_view text = object.text();
  const size_t start = byte_offset(text, index);
  const size_t length = utf8_length(static_cast<unsigned char>(text[start]));
  return string(std::string(text.substr(start, length)), object.is_markup());
}

Value Interpreter::slice(const Value& base, const Postfix& postfix) {
  const auto bound = [&](const ExprPtr& expr) -> std::optional<Int> {
    if (expr == nullptr) return std::nullopt;
    const Value value = evaluate(*expr);
    if (value.is_none()) return std::nullopt;
    if (!value.is_integral()) raise("slice indices must be integers or None");
    return std::clamp<Int>(value.integer(), -(Int{1} << 62), Int{1} << 62);
  };
  const auto begin = bound(postfix.begin), end = bound(postfix.end);
  const Int step = bound(postfix.step).value_or(1);
  const auto* range = base.get<RangeBox>();
  if (!base.is_sequence() && !base.is_string() && range == nullptr) {
    raise(fmt::format("'{}' object cannot be sliced", type_name(base)));
  }
  if (step == 0) raise("slice step cannot be zero");
  if (base.is_string()) budget_.spend(1 + base.text().size() / 16);
  const Int count = *length_of(budget_, base);
  const Int low = step > 0 ? 0 : -1, high = step > 0 ? count : count - 1;
  const auto index_or = [&](std::optional<Int> given, Int fallback) {
    if (!given) return fallback;
    return std::clamp(*given < 0 ? *given + count : *given, low, high);
  };
  const Cut cut{index_or(begin, step > 0 ? 0 : count - 1), index_or(end, step > 0 ? count : -1),
                step};
  if (base.is_string()) return slice_text(*this, base, cut);
  if (range != nullptr) {
    return std::make_shared<const RangeBox>(
        RangeBox{range->at(cut.from), range->step * step, cut.count(), range->at(cut.to)});
  }
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(cut.count()));
  for (Int i = 0; i < cut.count(); ++i) {
    items.push_back(base.items()[static_cast<size_t>(cut.from + i * step)]);
  }
  return base.is_list() ? list(std::move(items)) : tuple(std::move(items));
}

bool Interpreter::contains(const Value& container, const Value& value) {
  if (container.is_string()) {
    if (!value.is_string()) {
      raise(fmt::format("'in <string>' requires string, not {}", type_name(value)));
    }
    budget_.spend(1 + container.text().size() / 64);
    return find_text(container.text(), value.text()) != std::string_view::npos;
  }
  if (container.is_dict()) {
    check_hashable(value);
    return find_key(budget_, container.entries(), value) != nullptr;
  }
  if (const auto* range = container.get<RangeBox>()) return range_contains(*this, *range, value);
  if (const auto* view = container.get<ViewBox>();
      view != nullptr && view->kind == ViewBox::Kind::kKeys) {
    check_hashable(value);
  }
  const auto items = iterate(budget_, container);
  for (Value held; items->next(held);) {
    if (equal(budget_, held, value)) return true;
  }
  return false;
}

Value Interpreter::binary(std::string_view op, const Value& left, const Value& right) {
  if (op == "~") {
    std::string text = to_text(budget_, left);
    text += to_text(budget_, right);
    return string(std::move(text));
  }
  if (op == "%" && left.is_string()) return format_percent(*this, left, right);
  for (const Value* side : {&left, &right}) {
    if (const auto* undefined = std::get_if<Undefined>(&side->data)) {
      raise(fmt::format("'{}' is undefined", undefined->name));
    }
  }
  if (left.is_number() && right.is_number()) return arithmetic(op, left, right);
  if (op == "+" && left.is_string() && right.is_string()) return add_text(*this, left, right);
  if (op == "+" && left.is_sequence() && right.is_sequence() && left.is_list() == right.is_list()) {
    return add_items(*this, left, right);
  }
  if (op == "*" && (left.is_string() || left.is_sequence()) && right.is_integral()) {
    return repeat(*this, left, right.integer());
  }
  if (op == "*" && (right.is_string() || right.is_sequence()) && left.is_integral()) {
    return repeat(*this, right, left.integer());
  }
  if (op == "-" && left.get<ViewBox>() != nullptr) raise_unsupported("a set");
  raise(fmt::format("unsupported operand types for {}: '{}' and '{}'", op, type_name(left),
                    type_name(right)));
}

}  // namespace rudder::text::jinja
