// The filters that give text.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "rudder/base/utf8.h"
#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/paths.h"
#include "rudder/text/jinja/printf.h"
#include "rudder/text/jinja/strings.h"
#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

// The value as a string: one that is safe stays so.
Value soft(Interpreter& in, const Value& value) {
  return value.is_string() ? value : in.string(in.text(value));
}

// A method of the value as a string.
Value through(Interpreter& in, const Value& value, std::string_view method, const Call& call = {}) {
  return call_method(in, *find_string_method(method), soft(in, value), call);
}

Value upper(Interpreter& in, const Value& value, const Args&) {
  return through(in, value, "upper");
}
Value lower(Interpreter& in, const Value& value, const Args&) {
  return through(in, value, "lower");
}
Value capitalize_filter(Interpreter& in, const Value& value, const Args&) {
  return through(in, value, "capitalize");
}
Value trim(Interpreter& in, const Value& value, const Args& args) {
  return through(in, value, "strip", {{args.get(0, None{})}, {}});
}
Value center(Interpreter& in, const Value& value, const Args& args) {
  return through(in, value, "center", {{args.get(0, 80)}, {}});
}
Value string_filter(Interpreter& in, const Value& value, const Args&) {
  return soft(in, value);
}

// Words begin after blanks, dashes and opening brackets.
Value title_filter(Interpreter& in, const Value& value, const Args&) {
  const std::string text = in.text(value);
  in.budget().spend(1 + text.size() / 8);
  std::string out;
  const auto is_separator = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const bool separator = is_separator(next_char(text, pos));
    const size_t first = pos;
    for (size_t next = pos; next < text.size(); pos = next) {
      if (is_separator(next_char(text, next)) != separator) break;
    }
    const std::string_view view(text);
    out += to_upper(view.substr(start, first - start));
    out += to_lower(view.substr(first, pos - first));
  }
  return in.string(std::move(out));
}

Value replace_filter(Interpreter& in, const Value& value, const Args& args) {
  const Value text = in.string(in.text(value));
  Call call{{in.string(in.text(args[0])), in.string(in.text(args[1]))}, {}};
  if (args.holds(2)) call.positional.push_back(args[2]);
  return through(in, text, "replace", call);
}

Value escape(Interpreter& in, const Value& value, const Args&) {
  if (value.is_markup()) return value;
  return in.string(escape_html(in.text(value)), true);
}
Value force_escape(Interpreter& in, const Value& value, const Args&) {
  return in.string(escape_html(in.text(value)), true);
}
Value safe(Interpreter& in, const Value& value, const Args&) {
  return in.string(in.text(value), true);
}

Value join(Interpreter& in, const Value& value, const Args& args) {
  const std::string separator = args.has(0) ? in.text(args[0]) : "";
  const Path path(in, args.get(1, None{}));
  std::string out;
  const auto items = iterate(in.budget(), value);
  bool first = true;
  for (Value item; items->next(item); first = false) {
    if (!first) out += separator;
    out += in.text(path.walk(in, item));
    in.budget().spend(1 + separator.size() / 64);
    in.budget().check(out.size());
  }
  return in.string(std::move(out));
}

Value indent(Interpreter& in, const Value& value, const Args& args) {
  if (!value.is_string()) raise(fmt::format("cannot indent a '{}'", type_name(value)));
  std::string pad;
  if (args.has(0) && args[0].is_string()) {
    const bool escapes = value.is_markup() && !args[0].is_markup();
    pad = escapes ? escape_html(args[0].text()) : std::string(args[0].text());
  } else {
    const Int width = std::max<Int>(args.integer(0, 4), 0);
    if (width > static_cast<Int>(in.budget().memory)) raise_limit("memory");
    pad.assign(static_cast<size_t>(width), ' ');
  }
  const std::string text = std::string(value.text()) + "\n";
  std::string out = args.flag(1) ? pad : std::string();
  bool first = true;
  for (const std::string_view line : split_lines(text, false)) {
    if (!first) out.push_back('\n');
    if (!first && (args.flag(2) || !line.empty())) out += pad;
    first = false;
    out += line;
    in.budget().spend(1 + pad.size() / 64);
    in.budget().check(out.size());
  }
  return in.string(std::move(out), value.is_markup());
}

Value truncate_filter(Interpreter& in, const Value& value, const Args& args) {
  const Int length = args.integer(0, 255);
  const std::string_view end = args.has(2) ? args.text(2) : "...";
  const Int leeway = args.holds(3) ? args.integer(3) : 5;
  const Int kept = length - static_cast<Int>(text_length(end));
  if (kept < 0 || leeway < 0) raise("truncate: the length or the leeway is too small");
  const auto count = length_of(in.budget(), value);
  if (!count) raise(fmt::format("object of type '{}' has no len()", type_name(value)));
  if (*count <= length + leeway) return value;
  if (!value.is_string()) raise(fmt::format("cannot truncate a '{}'", type_name(value)));
  size_t pos = 0;
  for (Int i = 0; i < kept; ++i) {
    pos += utf8_length(static_cast<unsigned char>(value.text()[pos]));
  }
  std::string_view text = value.text().substr(0, pos);
  if (!args.flag(1)) text = text.substr(0, text.rfind(' '));
  const bool escapes = value.is_markup() && !(args.has(2) && args[2].is_markup());
  return in.string(std::string(text) + (escapes ? escape_html(end) : std::string(end)),
                   value.is_markup());
}

bool is_word(char32_t c) {
  return c == '_' || (char_flags()[c] & (kLetter | kNumber)) != 0;
}

Value word_count(Interpreter& in, const Value& value, const Args&) {
  const std::string text = in.text(value);
  Int count = 0;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    const bool word = is_word(next_char(text, pos));
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  return count;
}

// Words and the blanks between them.
std::vector<std::string_view> chunks_of(std::string_view line) {
  const auto is_blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  std::vector<std::string_view> chunks;
  for (size_t pos = 0; pos < line.size();) {
    size_t end = pos;
    while (end < line.size() && is_blank(line[end]) == is_blank(line[pos])) ++end;
    chunks.push_back(line.substr(pos, end - pos));
    pos = end;
  }
  return chunks;
}

// How Python's textwrap fills lines with words that have no hyphens, with its one oddity: a word
// that is broken where a line is full leaves an empty piece behind, and the blank before it.
std::vector<std::string> wrap(std::string_view text, size_t width, bool break_long) {
  const auto is_blank = [](std::string_view chunk) {
    return strip(chunk, nullptr, true, true).empty();
  };
  std::vector<std::string_view> chunks = chunks_of(text);
  std::vector<std::string> lines;
  for (size_t next = 0; next < chunks.size();) {
    std::vector<std::string_view> line;
    size_t length = 0;
    if (!lines.empty() && is_blank(chunks[next])) ++next;
    for (; next < chunks.size() && length + text_length(chunks[next]) <= width; ++next) {
      length += text_length(chunks[next]);
      line.push_back(chunks[next]);
    }
    if (next < chunks.size() && text_length(chunks[next]) > width) {
      if (break_long) {
        size_t cut = 0;
        for (size_t i = length; i < width; ++i) {
          cut += utf8_length(static_cast<unsigned char>(chunks[next][cut]));
        }
        line.push_back(chunks[next].substr(0, cut));
        chunks[next].remove_prefix(cut);
      } else if (line.empty()) {
        line.push_back(chunks[next++]);
      }
    }
    if (!line.empty() && is_blank(line.back())) line.pop_back();
    if (line.empty()) continue;
    lines.emplace_back();
    for (const std::string_view chunk : line) lines.back() += chunk;
  }
  return lines;
}

Value word_wrap(Interpreter& in, const Value& value, const Args& args) {
  if (!value.is_string()) raise(fmt::format("cannot wrap a '{}'", type_name(value)));
  const Int width = args.integer(0, 79);
  if (width <= 0) raise("invalid width (must be > 0)");
  const bool hyphens = !args.has(3) || args.flag(3);
  if (hyphens && value.text().find('-') != std::string_view::npos) {
    raise_unsupported("wordwrap of text with hyphens");
  }
  const std::string_view newline = args.holds(2) ? args.text(2) : "\n";
  std::string out;
  bool first = true;
  for (const std::string_view line : split_lines(value.text(), false)) {
    in.budget().check(line.size() * sizeof(std::string_view) + line.size() * sizeof(std::string));
    auto lines = wrap(line, static_cast<size_t>(std::min<Int>(width, Int{1} << 40)),
                      !args.has(1) || args.flag(1));
    if (lines.empty()) lines.emplace_back();
    for (const std::string& part : lines) {
      if (!first) out += newline;
      first = false;
      out += part;
      in.budget().spend(1 + newline.size() / 64);
      in.budget().check(out.size());
    }
  }
  return in.string(std::move(out));
}

// Character references, as html.unescape reads them: numbers, and the names that escaping writes.
std::string unescape(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kNames = {
      {{"amp;", "&"}, {"lt;", "<"}, {"gt;", ">"}, {"quot;", "\""}, {"nbsp;", "\u00A0"}}};
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    if (text[pos] != '&') {
      out.push_back(text[pos++]);
      continue;
    }
    const std::string_view rest = text.substr(pos + 1);
    const auto* named = std::find_if(kNames.begin(), kNames.end(), [rest](const auto& entry) {
      return rest.starts_with(entry.first);
    });
    const size_t digits = rest.find_first_not_of("0123456789", 1);
    if (named != kNames.end()) {
      out += named->second;
      pos += 1 + named->first.size();
    } else if (rest.starts_with('#') && digits != std::string_view::npos && digits > 1 &&
               digits < 5 && rest[digits] == ';') {
      char32_t code = 0;
      for (const char c : rest.substr(1, digits - 1))
        code = code * 10 + static_cast<char32_t>(c - '0');
      if (code < 0x20 || (code >= 0x7F && code < 0xA0)) raise_unsupported("this HTML character");
      append_utf8(out, code);
      pos += 2 + digits;
    } else if (!rest.empty() &&
               (rest[0] == '#' || std::isalpha(static_cast<unsigned char>(rest[0])))) {
      raise_unsupported("this HTML character");
    } else {
      out.push_back(text[pos++]);
    }
  }
  return out;
}

Value strip_tags(Interpreter& in, const Value& value, const Args&) {
  const std::string text = in.text(value);
  std::string without;
  size_t pos = 0;
  for (size_t start; (start = text.find('<', pos)) != std::string::npos;) {
    const bool comment = text.compare(start, 4, "<!--") == 0;
    const size_t end = comment ? text.find("-->", start + 4) : text.find('>', start);
    if (end == std::string::npos) break;
    without += text.substr(pos, start - pos);
    pos = end + (comment ? 3 : 1);
  }
  without += text.substr(pos);
  in.budget().check(count_parts(without, nullptr) * sizeof(std::string_view));
  std::string out;
  for (const std::string_view part : split(without, nullptr, -1)) {
    if (!out.empty()) out.push_back(' ');
    out += part;
  }
  return in.string(unescape(out));
}

std::string url_quote(Interpreter& in, const Value& value, bool query) {
  std::string out;
  for (const char c : in.text(value)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 || c == '_' || c == '.' || c == '-' || c == '~';
    if (plain || (c == '/' && !query)) {
      out.push_back(c);
    } else if (c == ' ' && query) {
      out.push_back('+');
    } else {
      out += fmt::format("%{:02X}", byte);
    }
  }
  return out;
}

Value url_encode(Interpreter& in, const Value& value, const Args&) {
  if (value.is_string() || !is_iterable(value)) return in.string(url_quote(in, value, false));
  std::string out;
  const auto put_pair = [&](const Value& key, const Value& held) {
    if (!out.empty()) out.push_back('&');
    out += url_quote(in, key, true) + "=" + url_quote(in, held, true);
    in.budget().check(out.size());
  };
  if (value.is_dict()) {
    for (const auto& [key, held] : value.entries()) put_pair(key, held);
    return in.string(std::move(out));
  }
  const auto pairs = iterate(in.budget(), value);
  for (Value pair; pairs->next(pair);) {
    const std::vector<Value> both = collect(in.budget(), pair);
    if (both.size() != 2) raise("urlencode takes pairs");
    put_pair(both[0], both[1]);
  }
  return in.string(std::move(out));
}

Value xml_attributes(Interpreter& in, const Value& value, const Args& args) {
  if (!value.is_dict()) raise(fmt::format("'{}' has no attribute 'items'", type_name(value)));
  std::string out;
  for (const auto& [key, held] : value.entries()) {
    if (held.is_none() || held.is_undefined()) continue;
    if (!key.is_string()) raise("an attribute's name must be a string");
    if (key.text().find_first_of(" \t\n\r\v\f/>=") != std::string_view::npos) {
      raise(fmt::format("Invalid character in attribute name: '{}'", key.text()));
    }
    const auto escaped = [&in](const Value& part) {
      return part.is_markup() ? std::string(part.text()) : escape_html(in.text(part));
    };
    if (!out.empty()) out.push_back(' ');
    out += escaped(key) + "=\"" + escaped(held) + "\"";
    in.budget().check(out.size());
  }
  const bool space = !args.has(0) || args.flag(0);
  return in.string(space && !out.empty() ? " " + out : out);
}

Value format_filter(Interpreter& in, const Value& value, const Call& call) {
  if (!call.positional.empty() && !call.named.empty()) {
    raise("can't handle positional and keyword arguments at the same time");
  }
  Value values = in.tuple(call.positional);
  if (!call.named.empty()) {
    std::vector<std::pair<Value, Value>> named;
    named.reserve(call.named.size());
    for (const auto& [name, held] : call.named) named.emplace_back(in.string(name), held);
    values = Value::dict(in.budget(), std::move(named));
  }
  return format_percent(in, soft(in, value), values);
}

Value pretty(Interpreter& in, const Value& value, const Args&) {
  return in.string(to_pprint(in.budget(), value));
}

Value to_json_filter(Interpreter& in, const Value& value, const Args& args) {
  JsonStyle style;
  style.ascii = args.flag(0);
  if (args.holds(1)) {
    style.pretty = true;
    style.item_separator = ",";
    if (args[1].is_string()) {
      style.indent = args.text(1);
    } else {
      const Int width = std::max<Int>(args.integer(1), 0);
      if (width > static_cast<Int>(in.budget().memory)) raise_limit("memory");
      style.indent.assign(static_cast<size_t>(width), ' ');
    }
  }
  if (args.holds(2)) {
    const std::vector<Value> both = collect(in.budget(), args[2]);
    if (both.size() != 2 || !both[0].is_string() || !both[1].is_string()) {
      raise("separators must be two strings");
    }
    style.item_separator = both[0].text();
    style.key_separator = both[1].text();
  }
  style.sort_keys = args.flag(3);
  return in.string(to_json(in.budget(), value, style));
}

Value urlize(Interpreter&, const Value&, const Call&) {
  raise_unsupported("the filter 'urlize'");
}

constexpr Filter kTextFilters[] = {
    {"capitalize", kNoArguments, capitalize_filter},
    {"center", {"width", 0}, center},
    {"e", kNoArguments, escape},
    {"escape", kNoArguments, escape},
    {"forceescape", kNoArguments, force_escape},
    {"format", kNoArguments, nullptr, format_filter},
    {"indent", {"width,first,blank", 0}, indent},
    {"join", {"d,attribute", 0}, join},
    {"lower", kNoArguments, lower},
    {"pprint", kNoArguments, pretty},
    {"replace", {"old,new,count", 2}, replace_filter},
    {"safe", kNoArguments, safe},
    {"string", kNoArguments, string_filter},
    {"striptags", kNoArguments, strip_tags},
    {"title", kNoArguments, title_filter},
    {"tojson", {"ensure_ascii,indent,separators,sort_keys", 0}, to_json_filter},
    {"trim", {"chars", 0}, trim},
    {"truncate", {"length,killwords,end,leeway", 0}, truncate_filter},
    {"upper", kNoArguments, upper},
    {"urlencode", kNoArguments, url_encode},
    {"urlize", kNoArguments, nullptr, urlize},
    {"wordcount", kNoArguments, word_count},
    {"wordwrap", {"width,break_long_words,wrapstring,break_on_hyphens", 0}, word_wrap},
    {"xmlattr", {"autospace", 0}, xml_attributes},
};

}  // namespace

std::span<const Filter> text_filters() {
  return kTextFilters;
}

}  // namespace rudder::text::jinja
