// Python's str(), repr(), pformat() and json.dumps() of a Value.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "rudder/base/utf8.h"
#include "rudder/text/jinja/numbers.h"
#include "rudder/text/jinja/objects.h"
#include "rudder/text/jinja/parser.h"
#include "rudder/text/jinja/value.h"
#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

constexpr size_t kChunk = 4096;  // of quoted text, charged at a time

// Charges a growing text as it grows, so that a limit stops it early.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}
  void put(std::string_view text) {
    budget_.spend(1 + text.size() / 64);
    if (out_.size() + text.size() > budget_.memory) raise_limit("memory");
    out_ += text;
  }
  std::string take() { return std::move(out_); }
  Budget& budget() { return budget_; }

 private:
  Budget& budget_;
  std::string out_;
};

bool printable(char32_t c) {
  const Category kind = category(c);
  return c == ' ' || !(kind == Category::kCc || kind == Category::kCf || kind == Category::kCs ||
                       kind == Category::kCo || kind == Category::kCn || kind == Category::kZs ||
                       kind == Category::kZl || kind == Category::kZp);
}

void put_repr(std::string_view text, Writer& out) {
  const bool single = text.find('\'') == std::string_view::npos;
  const bool use_double = !single && text.find('"') == std::string_view::npos;
  const char quote = use_double ? '"' : '\'';
  std::string quoted(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = next_char(text, pos);
    if (quoted.size() > kChunk) out.put(std::exchange(quoted, {}));
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      quoted += {'\\', static_cast<char>(c)};
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\r') {
      quoted += "\\r";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (printable(c)) {
      quoted += text.substr(start, pos - start);
    } else if (c < 0x100) {
      quoted += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      quoted += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      quoted += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  quoted.push_back(quote);
  out.put(quoted);
}

enum class Style { kText, kRepr, kSorted };  // kSorted: repr with the keys of dicts in order

void put_value(const Value& value, Style style, int depth, Writer& out);

void put_items(const std::vector<Value>& items, std::string_view open, std::string_view close,
               Style style, int depth, Writer& out) {
  out.put(open);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.put(", ");
    put_value(items[i], style, depth + 1, out);
  }
  out.put(items.size() == 1 && open == "(" ? ",)" : close);
}

std::vector<const std::pair<Value, Value>*> sorted(
    Budget& budget, const std::vector<std::pair<Value, Value>>& entries) {
  std::vector<const std::pair<Value, Value>*> order;
  order.reserve(entries.size());
  for (const auto& entry : entries) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [&budget](const auto* a, const auto* b) {
    return less(budget, a->first, b->first);
  });
  return order;
}

void put_entries(const std::vector<std::pair<Value, Value>>& entries, Style style, int depth,
                 Writer& out) {
  auto put_entry = [&, first = true](const std::pair<Value, Value>& entry) mutable {
    if (!std::exchange(first, false)) out.put(", ");
    put_value(entry.first, style, depth + 1, out);
    out.put(": ");
    put_value(entry.second, style, depth + 1, out);
  };
  out.put("{");
  if (style == Style::kSorted) {
    const bool texts = std::all_of(entries.begin(), entries.end(),
                                   [](const auto& entry) { return entry.first.is_string(); });
    if (!texts && entries.size() > 1) raise_unsupported("pprint of keys that are no strings");
    for (const auto* entry : sorted(out.budget(), entries)) put_entry(*entry);
  } else {
    for (const auto& entry : entries) put_entry(entry);
  }
  out.put("}");
}

void put_range(const RangeBox& range, Writer& out) {
  out.put(fmt::format("range({}, {}", range.start, range.stop));
  if (range.step != 1) out.put(fmt::format(", {}", range.step));
  out.put(")");
}

void put_view(const ViewBox& view, Style style, int depth, Writer& out) {
  static constexpr std::array<std::string_view, 3> kOpen = {"dict_keys([", "dict_values([",
                                                            "dict_items(["};
  std::vector<Value> items;
  items.reserve(view.dict->entries.size());
  for (size_t i = 0; i < view.dict->entries.size(); ++i) items.push_back(view.at(out.budget(), i));
  put_items(items, kOpen[static_cast<size_t>(view.kind)], "])", style, depth, out);
}

void put_callable(const CallableBox& callable, Writer& out) {
  if (callable.kind == CallableBox::Kind::kMacro) {
    const std::string& name = callable.macro->name;
    return out.put(name.empty() ? "<Macro anonymous>" : fmt::format("<Macro '{}'>", name));
  }
  if (callable.kind == CallableBox::Kind::kGlobal) {
    if (callable.name == "dict") return out.put("<class 'dict'>");
    if (callable.name == "namespace") return out.put("<class 'jinja2.utils.Namespace'>");
    if (callable.name == "cycler") return out.put("<class 'jinja2.utils.Cycler'>");
    if (callable.name == "joiner") return out.put("<class 'jinja2.utils.Joiner'>");
  }
  raise_unsupported("the text of a function");
}

void put_string(const Value& value, Style style, Writer& out) {
  if (style == Style::kText) return out.put(value.text());
  if (value.is_markup()) out.put("Markup(");
  put_repr(value.text(), out);
  if (value.is_markup()) out.put(")");
}

void put_value(const Value& value, Style style, int depth, Writer& out) {
  if (depth > kMaxNesting) raise_limit("nesting");
  const Style inner = style == Style::kText ? Style::kRepr : style;
  if (value.is_undefined()) {
    if (style != Style::kText) out.put("Undefined");
  } else if (value.is_none()) {
    out.put("None");
  } else if (value.is_bool()) {
    out.put(std::get<bool>(value.data) ? "True" : "False");
  } else if (value.is_int()) {
    out.put(int_text(value.integer()));
  } else if (value.is_float()) {
    out.put(float_text(value.number()));
  } else if (value.is_string()) {
    put_string(value, style, out);
  } else if (value.is_sequence()) {
    const bool list = value.is_list();
    put_items(value.items(), list ? "[" : "(", list ? "]" : ")", inner, depth, out);
  } else if (value.is_dict()) {
    put_entries(value.entries(), inner, depth, out);
  } else if (const auto* range = value.get<RangeBox>()) {
    put_range(*range, out);
  } else if (const auto* view = value.get<ViewBox>()) {
    put_view(*view, inner, depth, out);
  } else if (const auto* space = value.get<NamespaceBox>()) {
    out.put("<Namespace ");
    put_entries(space->fields, inner, depth, out);
    out.put(">");
  } else if (auto* loop = value.get<LoopBox>()) {
    out.put(fmt::format("<LoopContext {}/{}>", loop->index0 + 1, loop->length(out.budget())));
  } else if (const auto* callable = value.get<CallableBox>()) {
    put_callable(*callable, out);
  } else {  // Python shows where it is in memory
    raise_unsupported(fmt::format("the text of a '{}'", type_name(value)));
  }
}

void put_json_string(std::string_view text, bool ascii, Writer& out) {
  std::string quoted = "\"";
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = next_char(text, pos);
    if (quoted.size() > kChunk) out.put(std::exchange(quoted, {}));
    static constexpr std::string_view kNamed = "\"\\\n\r\t\b\f";
    static constexpr std::string_view kLetters = "\"\\nrtbf";
    const size_t named = c < 0x80 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
    if (named != std::string_view::npos) {
      quoted += {'\\', kLetters[named]};
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
      quoted += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else if (ascii && c >= 0x10000) {
      const auto high = static_cast<uint32_t>(0xD800 + ((c - 0x10000) >> 10));
      const auto low = static_cast<uint32_t>(0xDC00 + (c & 0x3FF));
      quoted += fmt::format("\\u{:04x}\\u{:04x}", high, low);
    } else {
      quoted += text.substr(start, pos - start);
    }
  }
  quoted.push_back('"');
  out.put(quoted);
}

void put_json_scalar(const Value& value, Writer& out) {
  if (value.is_none()) {
    out.put("null");
  } else if (value.is_bool()) {
    out.put(truthy(value) ? "true" : "false");
  } else if (value.is_int()) {
    out.put(int_text(value.integer()));
  } else {
    const double number = value.number();
    out.put(std::isnan(number)   ? "NaN"
            : std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                 : float_text(number));
  }
}

void put_newline(const JsonStyle& style, int depth, Writer& out) {
  if (!style.pretty) return;
  out.put("\n");
  for (int i = 0; i < depth; ++i) out.put(style.indent);
}

// Keys of other types are written as they would be as values.
void put_json_key(const Value& key, bool ascii, Writer& out) {
  if (key.is_string()) return put_json_string(key.text(), ascii, out);
  if (!key.is_number() && !key.is_none()) {
    raise(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
  }
  out.put("\"");
  put_json_scalar(key, out);
  out.put("\"");
}

void put_json(const Value& value, const JsonStyle& style, int depth, Writer& out);

void put_json_dict(const Value& value, const JsonStyle& style, int depth, Writer& out) {
  std::vector<const std::pair<Value, Value>*> entries;
  if (style.sort_keys) {
    entries = sorted(out.budget(), value.entries());
  } else {
    entries.reserve(value.entries().size());
    for (const auto& entry : value.entries()) entries.push_back(&entry);
  }
  out.put("{");
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out.put(style.item_separator);
    put_newline(style, depth + 1, out);
    put_json_key(entries[i]->first, style.ascii, out);
    out.put(style.key_separator);
    put_json(entries[i]->second, style, depth + 1, out);
  }
  if (!entries.empty()) put_newline(style, depth, out);
  out.put("}");
}

void put_json(const Value& value, const JsonStyle& style, int depth, Writer& out) {
  if (depth > kMaxNesting) raise_limit("nesting");
  if (value.is_none() || value.is_number()) {
    put_json_scalar(value, out);
  } else if (value.is_string()) {
    put_json_string(value.text(), style.ascii, out);
  } else if (value.is_sequence()) {
    out.put("[");
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) out.put(style.item_separator);
      put_newline(style, depth + 1, out);
      put_json(value.items()[i], style, depth + 1, out);
    }
    if (!value.items().empty()) put_newline(style, depth, out);
    out.put("]");
  } else if (value.is_dict()) {
    put_json_dict(value, style, depth, out);
  } else {
    raise(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
  }
}

}  // namespace

std::string to_text(Budget& budget, const Value& value) {
  Writer out(budget);
  put_value(value, Style::kText, 0, out);
  return out.take();
}

std::string to_repr(Budget& budget, const Value& value) {
  Writer out(budget);
  put_value(value, Style::kRepr, 0, out);
  return out.take();
}

std::string to_pprint(Budget& budget, const Value& value) {
  constexpr size_t kWidth = 80;
  Writer out(budget);
  put_value(value, Style::kSorted, 0, out);
  std::string text = out.take();
  if (text_length(text) > kWidth && (value.is_string() || value.is_sequence() || value.is_dict())) {
    raise_unsupported("pprint of more than one line");
  }
  return text;
}

std::string to_json(Budget& budget, const Value& value, const JsonStyle& style) {
  Writer out(budget);
  put_json(value, style, 0, out);
  return out.take();
}

std::string_view type_name(const Value& value) {
  static constexpr std::array<std::string_view, 16> kNames = {
      "missing",     "Undefined", "NoneType",  "bool",
      "int",         "float",     "str",       "list",
      "dict",        "range",     "dict view", "Namespace",
      "LoopContext", "iterator",  "function",  "Cycler or Joiner"};
  if (value.is_tuple()) return "tuple";
  if (const auto* iterator = value.get<Iterator>()) return iterator->type();
  return kNames[value.data.index()];
}

}  // namespace rudder::text::jinja
