// The filters: value | name(arguments).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/strings.h"
#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

using Filter = Value (*)(Interpreter&, const Value&, const Call&);

std::string text_of(Interpreter& in, const Value& value) {
  return to_text(in.budget(), value);
}

Value make_list(Interpreter& in, std::vector<Value> items) {
  return Value::list(in.budget(), std::move(items));
}

const Value& required(const Call& call, size_t index, std::string_view what) {
  if (index >= call.positional.size()) raise(fmt::format("{} needs an argument", what));
  return call.positional[index];
}

int64_t int_argument(const Call& call, size_t index, std::string_view name, int64_t fallback) {
  const Value value = call.get(index, name, fallback);
  if (!value.is_int() && !value.is_bool()) raise(fmt::format("{} must be an integer", name));
  return value.integer();
}

// "a.b.0": the attribute path of map, selectattr, sort and the like.
Value walk(Interpreter& in, Value value, std::string_view path) {
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string_view part = path.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = error == std::errc() && end == part.data() + part.size();
    value = is_index ? in.item(value, index) : in.attribute(value, part);
    path.remove_prefix(std::min(path.size(), dot + 1));
  }
  return value;
}

Value length(Interpreter& in, const Value& value, const Call&) {
  if (value.is_string()) {
    in.budget().spend(1 + value.text().size() / 64);
    return static_cast<int64_t>(text_length(value.text()));
  }
  if (value.is_dict()) return static_cast<int64_t>(value.entries().size());
  if (value.is_list()) return static_cast<int64_t>(value.items().size());
  if (value.is_undefined()) return int64_t{0};
  raise(fmt::format("object of type '{}' has no len()", type_name(value)));
}

Value tojson(Interpreter& in, const Value& value, const Call& call) {
  JsonStyle style;
  style.ascii = truthy(call.get(0, "ensure_ascii", false));
  const Value indent = call.get(1, "indent", None{});
  if (!indent.is_none()) {
    if (!indent.is_int()) raise("indent must be an integer");
    style.indent = static_cast<int>(std::clamp<int64_t>(indent.integer(), 0, 64));
    style.item_separator.resize(1);  // ","
  }
  const Value separators = call.get(2, "separators", None{});
  if (separators.is_list() && separators.items().size() == 2) {
    style.item_separator = text_of(in, separators.items()[0]);
    style.key_separator = text_of(in, separators.items()[1]);
  }
  style.sort_keys = truthy(call.get(3, "sort_keys", false));
  return in.string(to_json(in.budget(), value, style));
}

Value join_items(Interpreter& in, const Value& value, std::string_view separator,
                 std::string_view path) {
  std::string out;
  bool first = true;
  for (const Value& item : in.iterate(value)) {
    if (!first) out += separator;
    first = false;
    out += text_of(in, path.empty() ? item : walk(in, item, path));
    if (out.size() > in.budget().memory) raise_limit("memory");
  }
  return in.string(std::move(out));
}

Value join(Interpreter& in, const Value& value, const Call& call) {
  const Value path = call.get(1, "attribute", None{});
  return join_items(in, value, text_of(in, call.get(0, "d", Value())),
                    path.is_string() ? path.text() : std::string_view());
}

Value joined_by(Interpreter& in, const Value& separator, const Call& call) {
  for (const Value& item : in.iterate(required(call, 0, "join"))) {
    if (!item.is_string()) raise("join() needs strings");
  }
  return join_items(in, call.positional[0], separator.text(), {});
}

Value trim(Interpreter& in, const Value& value, const Call& call) {
  const std::string text = text_of(in, value);
  const Value chars = call.get(0, "chars", None{});
  const std::string_view set = chars.is_string() ? chars.text() : std::string_view();
  in.budget().spend(1 + text.size() * (set.size() + 1) / 64);
  return in.string(std::string(strip(text, chars.is_string() ? &set : nullptr, true, true)));
}

Value replace_filter(Interpreter& in, const Value& value, const Call& call) {
  const std::string text = text_of(in, value);
  const std::string from = text_of(in, required(call, 0, "replace"));
  const std::string to = text_of(in, required(call, 1, "replace"));
  const Value given = call.get(2, "count", None{});
  const int64_t limit = given.is_none() ? -1 : int_argument(call, 2, "count", -1);
  const size_t most = from.empty() ? text.size() + 1 : text.size() / from.size();
  if (to.size() > 0 && most > in.budget().memory / to.size()) raise_limit("memory");
  return in.string(replace(text, from, to, limit));
}

Value first(Interpreter& in, const Value& value, const Call&) {
  const Items items = in.iterate(value);
  return items.empty() ? Value() : items.front();
}

Value last(Interpreter& in, const Value& value, const Call&) {
  const Items items = in.iterate(value);
  return items.empty() ? Value() : items.back();
}

Value fallback(Interpreter&, const Value& value, const Call& call) {
  const bool replaces =
      value.is_undefined() || (truthy(call.get(1, "boolean", false)) && !truthy(value));
  return replaces ? call.get(0, "default_value", Value()) : value;
}

Value to_int(Interpreter& in, const Value& value, const Call& call) {
  Value otherwise = call.get(0, "default", int64_t{0});
  if (value.is_float()) {
    const double number = std::get<double>(value.data);
    if (!(std::fabs(number) < 9e18)) return otherwise;
    return static_cast<int64_t>(number);
  }
  if (value.is_number()) return value.integer();
  if (!value.is_string()) return otherwise;
  const std::string_view text = strip(value.text(), nullptr, true, true);
  int64_t integer = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  if (const auto r = std::from_chars(begin, end, integer); r.ec == std::errc() && r.ptr == end) {
    return integer;
  }
  double number = 0;
  if (const auto r = std::from_chars(begin, end, number); r.ec == std::errc() && r.ptr == end) {
    return to_int(in, number, call);
  }
  return otherwise;
}

Value to_float(Interpreter&, const Value& value, const Call& call) {
  if (value.is_float()) return value;
  if (value.is_number()) return static_cast<double>(value.integer());
  if (value.is_string()) {
    const std::string_view text = strip(value.text(), nullptr, true, true);
    double number = 0;
    const char* end = text.data() + text.size();
    const auto r = std::from_chars(text.data(), end, number);
    if (r.ec == std::errc() && r.ptr == end && !text.empty()) return number;
  }
  return call.get(0, "default", 0.0);
}

Value absolute(Interpreter& in, const Value& value, const Call&) {
  if (value.is_float()) return std::fabs(std::get<double>(value.data));
  if (!value.is_number()) raise("abs needs a number");
  return value.integer() < 0 ? in.binary("-", int64_t{0}, value) : value;
}

Value round_filter(Interpreter&, const Value& value, const Call& call) {
  if (!value.is_number()) raise("round needs a number");
  const double number =
      value.is_float() ? std::get<double>(value.data) : static_cast<double>(value.integer());
  const double scale = std::pow(10.0, static_cast<double>(int_argument(call, 0, "precision", 0)));
  const Value method = call.get(1, "method", Value());
  const std::string_view how = method.is_string() ? method.text() : "common";
  const double scaled = number * scale;
  return (how == "ceil"    ? std::ceil(scaled)
          : how == "floor" ? std::floor(scaled)
                           : std::nearbyint(scaled)) /
         scale;
}

Value items_filter(Interpreter& in, const Value& value, const Call& call) {
  if (value.is_undefined()) return make_list(in, {});
  if (!value.is_dict()) raise("Can only get item pairs from a mapping.");
  return call_method(in, value, "items", call);
}

Value list_filter(Interpreter& in, const Value& value, const Call&) {
  return make_list(in, in.iterate(value).copy());
}

Value reverse(Interpreter& in, const Value& value, const Call&) {
  if (value.is_string()) {
    std::string out;
    const std::string_view text = value.text();
    for (size_t pos = text.size(); pos > 0;) append_utf8(out, previous_char(text, pos));
    return in.string(std::move(out));
  }
  std::vector<Value> items = in.iterate(value).copy();
  std::reverse(items.begin(), items.end());
  return make_list(in, std::move(items));
}

Value map(Interpreter& in, const Value& value, const Call& call) {
  std::vector<Value> out;
  if (const Value* path = call.find(static_cast<size_t>(-1), "attribute")) {
    const std::string name = text_of(in, *path);
    for (const Value& item : in.iterate(value)) {
      Value found = walk(in, item, name);
      if (found.is_undefined()) found = call.get(static_cast<size_t>(-1), "default", found);
      out.push_back(std::move(found));
    }
    return make_list(in, std::move(out));
  }
  const std::string name = text_of(in, required(call, 0, "map"));
  const Call rest{{call.positional.begin() + 1, call.positional.end()}, call.named};
  for (const Value& item : in.iterate(value)) {
    out.push_back(apply_filter(in, name, item, rest));
  }
  return make_list(in, std::move(out));
}

// select, reject, selectattr, rejectattr: items (or an attribute of them) that pass a test.
Value filter_items(Interpreter& in, const Value& value, const Call& call, bool by_attribute,
                   bool wanted) {
  const size_t skip = by_attribute ? 1 : 0;
  const std::string path =
      by_attribute ? text_of(in, required(call, 0, "selectattr")) : std::string();
  const bool tested = call.positional.size() > skip;
  const std::string name = tested ? text_of(in, call.positional[skip]) : std::string();
  Call rest{{}, call.named};
  if (tested) {
    rest.positional.assign(call.positional.begin() + static_cast<ptrdiff_t>(skip) + 1,
                           call.positional.end());
  }
  std::vector<Value> out;
  for (const Value& item : in.iterate(value)) {
    const Value subject = by_attribute ? walk(in, item, path) : item;
    const bool passes = tested ? apply_test(in, name, subject, rest) : truthy(subject);
    if (passes == wanted) out.push_back(item);
  }
  return make_list(in, std::move(out));
}

Value unique(Interpreter& in, const Value& value, const Call&) {
  std::vector<Value> out;
  for (const Value& item : in.iterate(value)) {
    const bool known = std::any_of(
        out.begin(), out.end(), [&](const Value& held) { return equal(in.budget(), held, item); });
    if (!known) out.push_back(item);
  }
  return make_list(in, std::move(out));
}

// Sort keys ignore case unless asked otherwise.
Value sort_key(Interpreter& in, const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? in.string(to_lower(value.text())) : value;
}

Value sort(Interpreter& in, const Value& value, const Call& call) {
  const bool descending = truthy(call.get(0, "reverse", false));
  const bool case_sensitive = truthy(call.get(1, "case_sensitive", false));
  const Value path = call.get(2, "attribute", None{});
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : in.iterate(value)) {
    const Value key = path.is_string() ? walk(in, item, path.text()) : item;
    keyed.emplace_back(sort_key(in, key, case_sensitive), item);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return descending ? compare(in.budget(), b.first, a.first) < 0
                      : compare(in.budget(), a.first, b.first) < 0;
  });
  std::vector<Value> out;
  out.reserve(keyed.size());
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return make_list(in, std::move(out));
}

Value dictsort(Interpreter& in, const Value& value, const Call& call) {
  if (!value.is_dict()) raise("dictsort needs a mapping");
  const bool case_sensitive = truthy(call.get(0, "case_sensitive", false));
  const Value by = call.get(1, "by", Value());
  const bool by_value = by.is_string() && by.text() == "value";
  auto entries = value.entries();
  std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
    return compare(in.budget(), sort_key(in, by_value ? a.second : a.first, case_sensitive),
                   sort_key(in, by_value ? b.second : b.first, case_sensitive)) < 0;
  });
  std::vector<Value> out;
  out.reserve(entries.size());
  for (const auto& [key, item] : entries)
    out.push_back(Value::list(in.budget(), {key, item}, true));
  return make_list(in, std::move(out));
}

Value extreme(Interpreter& in, const Value& value, int sign) {
  Value best;
  for (const Value& item : in.iterate(value)) {
    if (best.is_undefined() || compare(in.budget(), item, best) * sign > 0) best = item;
  }
  return best;
}

Value sum(Interpreter& in, const Value& value, const Call& call) {
  Value total = call.get(1, "start", int64_t{0});
  const Value path = call.get(0, "attribute", None{});
  for (const Value& item : in.iterate(value)) {
    total = in.binary("+", total, path.is_string() ? walk(in, item, path.text()) : item);
  }
  return total;
}

Value indent(Interpreter& in, const Value& value, const Call& call) {
  const Value width = call.get(0, "width", int64_t{4});
  const std::string pad = width.is_string()
                              ? std::string(width.text())
                              : std::string(static_cast<size_t>(std::clamp<int64_t>(
                                                int_argument(call, 0, "width", 4), 0, 1024)),
                                            ' ');
  const bool pad_first = truthy(call.get(1, "first", false));
  const bool pad_blank = truthy(call.get(2, "blank", false));
  const std::string text = text_of(in, value);
  const std::string_view newline = "\n";
  std::string out;
  bool is_first = true;
  for (const std::string_view line : split(text, &newline, -1)) {
    if (!is_first) out.push_back('\n');
    if (is_first ? pad_first : pad_blank || !line.empty()) out += pad;
    is_first = false;
    out += line;
    if (out.size() > in.budget().memory) raise_limit("memory");
  }
  return in.string(std::move(out));
}

Value escape(Interpreter& in, const Value& value, const Call&) {
  std::string out;
  for (const char c : text_of(in, value)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
  }
  return in.string(std::move(out));
}

struct NamedFilter {
  std::string_view name;
  Filter filter;
};
const NamedFilter kFilters[] = {
    {"trim", trim},
    {"length", length},
    {"count", length},
    {"tojson", tojson},
    {"join", join},
    {"joined_by", joined_by},
    {"replace", replace_filter},
    {"first", first},
    {"last", last},
    {"default", fallback},
    {"d", fallback},
    {"int", to_int},
    {"float", to_float},
    {"abs", absolute},
    {"round", round_filter},
    {"items", items_filter},
    {"list", list_filter},
    {"reverse", reverse},
    {"map", map},
    {"unique", unique},
    {"sort", sort},
    {"dictsort", dictsort},
    {"sum", sum},
    {"indent", indent},
    {"escape", escape},
    {"e", escape},
    {"safe",
     [](Interpreter& in, const Value& v, const Call&) { return in.string(text_of(in, v)); }},
    {"string",
     [](Interpreter& in, const Value& v, const Call&) { return in.string(text_of(in, v)); }},
    {"upper", [](Interpreter& in, const Value& v,
                 const Call&) { return in.string(to_upper(text_of(in, v))); }},
    {"lower", [](Interpreter& in, const Value& v,
                 const Call&) { return in.string(to_lower(text_of(in, v))); }},
    {"title",
     [](Interpreter& in, const Value& v, const Call&) { return in.string(title(text_of(in, v))); }},
    {"capitalize", [](Interpreter& in, const Value& v,
                      const Call&) { return in.string(capitalize(text_of(in, v))); }},
    {"select", [](Interpreter& in, const Value& v,
                  const Call& c) { return filter_items(in, v, c, false, true); }},
    {"reject", [](Interpreter& in, const Value& v,
                  const Call& c) { return filter_items(in, v, c, false, false); }},
    {"selectattr", [](Interpreter& in, const Value& v,
                      const Call& c) { return filter_items(in, v, c, true, true); }},
    {"rejectattr", [](Interpreter& in, const Value& v,
                      const Call& c) { return filter_items(in, v, c, true, false); }},
    {"min", [](Interpreter& in, const Value& v, const Call&) { return extreme(in, v, -1); }},
    {"max", [](Interpreter& in, const Value& v, const Call&) { return extreme(in, v, 1); }},
    {"attr",
     [](Interpreter& in, const Value& v, const Call& c) {
       return v.is_dict() ? Value() : in.attribute(v, text_of(in, required(c, 0, "attr")));
     }},
};

}  // namespace

Value apply_filter(Interpreter& in, std::string_view name, const Value& value, const Call& call) {
  in.budget().spend(1);
  for (const NamedFilter& known : kFilters) {
    if (known.name == name) return known.filter(in, value, call);
  }
  raise(fmt::format("No filter named '{}'", name));
}

}  // namespace rudder::text::jinja
