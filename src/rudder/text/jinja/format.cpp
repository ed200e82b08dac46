// Python's str(), repr() and json.dumps() of a Value.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "rudder/text/jinja/value.h"
#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

constexpr int kMaxNesting = 100;

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

 private:
  Budget& budget_;
  std::string out_;
};

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

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

void put_text(const Value& value, bool repr, int depth, Writer& out) {
  if (depth > kMaxNesting) raise_limit("nesting");
  if (value.is_undefined()) {
    if (repr) out.put("Undefined");
  } else if (value.is_none()) {
    out.put("None");
  } else if (value.is_bool()) {
    out.put(std::get<bool>(value.data) ? "True" : "False");
  } else if (value.is_int()) {
    out.put(fmt::format("{}", value.integer()));
  } else if (value.is_float()) {
    out.put(float_text(std::get<double>(value.data)));
  } else if (value.is_string()) {
    if (repr) {
      put_repr(value.text(), out);
    } else {
      out.put(value.text());
    }
  } else if (value.is_list()) {
    const bool tuple = value.get<ListBox>()->tuple;
    out.put(tuple ? "(" : "[");
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) out.put(", ");
      put_text(value.items()[i], true, depth + 1, out);
    }
    out.put(!tuple ? "]" : value.items().size() == 1 ? ",)" : ")");
  } else if (value.is_dict()) {
    out.put("{");
    bool first = true;
    for (const auto& [key, item] : value.entries()) {
      if (!first) out.put(", ");
      first = false;
      put_text(key, true, depth + 1, out);
      out.put(": ");
      put_text(item, true, depth + 1, out);
    }
    out.put("}");
  } else {
    out.put(fmt::format("<{}>", type_name(value)));
  }
}

void put_json_string(std::string_view text, bool ascii, Writer& out) {
  std::string quoted = "\"";
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = next_char(text, pos);
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

void put_newline(const JsonStyle& style, int depth, Writer& out) {
  if (style.indent < 0) return;
  out.put("\n");
  out.put(std::string(static_cast<size_t>(style.indent) * static_cast<size_t>(depth), ' '));
}

void put_json(const Value& value, const JsonStyle& style, int depth, Writer& out);

void put_json_dict(const Value& value, const JsonStyle& style, int depth, Writer& out) {
  std::vector<const std::pair<Value, Value>*> entries;
  for (const auto& entry : value.entries()) {
    if (!entry.first.is_string()) raise("tojson: keys must be strings");
    entries.push_back(&entry);
  }
  if (style.sort_keys) {
    std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
      return a->first.text() < b->first.text();
    });
  }
  out.put("{");
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out.put(style.item_separator);
    put_newline(style, depth + 1, out);
    put_json_string(entries[i]->first.text(), style.ascii, out);
    out.put(style.key_separator);
    put_json(entries[i]->second, style, depth + 1, out);
  }
  if (!entries.empty()) put_newline(style, depth, out);
  out.put("}");
}

void put_json(const Value& value, const JsonStyle& style, int depth, Writer& out) {
  if (depth > kMaxNesting) raise_limit("nesting");
  if (value.is_none()) {
    out.put("null");
  } else if (value.is_bool()) {
    out.put(std::get<bool>(value.data) ? "true" : "false");
  } else if (value.is_float()) {
    const double number = std::get<double>(value.data);
    out.put(std::isnan(number)   ? "NaN"
            : std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                 : float_text(number));
  } else if (value.is_int()) {
    out.put(fmt::format("{}", value.integer()));
  } else if (value.is_string()) {
    put_json_string(value.text(), style.ascii, out);
  } else if (value.is_list()) {
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
  put_text(value, false, 0, out);
  return out.take();
}

std::string to_json(Budget& budget, const Value& value, const JsonStyle& style) {
  Writer out(budget);
  put_json(value, style, 0, out);
  return out.take();
}

}  // namespace rudder::text::jinja
