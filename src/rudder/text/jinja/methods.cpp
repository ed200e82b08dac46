// Methods of strings, dicts, lists and loops, and the global functions. Methods that change their
// object are refused, as the sandbox of the reference does.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/strings.h"
#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // of the reference's sandbox

constexpr std::array<std::string_view, 26> kStringMethods = {
    "split",   "rsplit",     "strip",     "lstrip",  "rstrip",      "startswith", "endswith",
    "upper",   "lower",      "title",     "replace", "join",        "find",       "rfind",
    "count",   "capitalize", "isdigit",   "isalpha", "isalnum",     "isspace",    "isupper",
    "islower", "splitlines", "partition", "index",   "removeprefix"};
constexpr std::array<std::string_view, 8> kDictMethods = {
    "items", "keys", "values", "get", "copy", "update", "pop", "setdefault"};
constexpr std::array<std::string_view, 7> kListMethods = {"index",  "count", "append", "extend",
                                                          "insert", "pop",   "remove"};

template <size_t kSize>
bool has(const std::array<std::string_view, kSize>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string_view string_argument(const Call& call, size_t index, std::string_view method) {
  if (index >= call.positional.size() || !call.positional[index].is_string()) {
    raise(fmt::format("{}() needs a string", method));
  }
  return call.positional[index].text();
}

Value string_list(Interpreter& in, const std::vector<std::string_view>& parts, bool tuple = false) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(in.string(std::string(part)));
  return Value::list(in.budget(), std::move(items), tuple);
}

// str.startswith and endswith take one string or a tuple of them.
bool has_affix(const Call& call, std::string_view method, std::string_view text, bool front) {
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) raise(fmt::format("{}() needs a string", method));
    return front ? text.starts_with(affix.text()) : text.ends_with(affix.text());
  };
  if (call.positional.empty()) raise(fmt::format("{}() needs a string", method));
  const Value& affix = call.positional[0];
  if (!affix.is_list()) return matches(affix);
  return std::any_of(affix.items().begin(), affix.items().end(), matches);
}

bool all_chars(std::string_view text, bool (*test)(char32_t)) {
  if (text.empty()) return false;
  for (size_t pos = 0; pos < text.size();) {
    if (!test(next_char(text, pos))) return false;
  }
  return true;
}

// isupper and islower: some cased character, and none of the other case.
bool is_cased(std::string_view text, Category wanted, Category other) {
  bool found = false;
  for (size_t pos = 0; pos < text.size();) {
    const Category kind = category(next_char(text, pos));
    if (kind == other || kind == Category::kLt) return false;
    found |= kind == wanted;
  }
  return found;
}

Value split_method(Interpreter& in, std::string_view text, std::string_view name,
                   const Call& call) {
  const Value separator = call.get(0, "sep", None{});
  const Value limit = call.get(1, "maxsplit", int64_t{-1});
  if (!limit.is_int()) raise("maxsplit must be an integer");
  const auto check = [&in, text](const std::string_view* at) {
    in.budget().check(count_parts(text, at) * (sizeof(Value) + sizeof(StringBox)));
  };
  if (separator.is_none()) {
    check(nullptr);
    if (name == "rsplit" && limit.integer() >= 0) raise("rsplit() with maxsplit needs a separator");
    return string_list(in, split(text, nullptr, limit.integer()));
  }
  if (!separator.is_string() || separator.text().empty()) raise("empty separator");
  const std::string_view mark = separator.text();
  check(&mark);
  if (name == "split" || limit.integer() < 0) {
    return string_list(in, split(text, &mark, limit.integer()));
  }
  std::vector<std::string_view> parts;
  for (int64_t left = limit.integer(); left > 0; --left) {
    const size_t at = text.rfind(mark);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(at + mark.size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return string_list(in, parts);
}

Value find_method(std::string_view text, std::string_view name, const Call& call) {
  const std::string_view needle = string_argument(call, 0, name);
  const size_t at = name == "rfind" ? text.rfind(needle) : text.find(needle);
  if (at != std::string_view::npos) return static_cast<int64_t>(text_length(text.substr(0, at)));
  if (name == "index") raise("substring not found");
  return int64_t{-1};
}

Value strip_method(Interpreter& in, std::string_view text, std::string_view name,
                   const Call& call) {
  const bool left = name != "rstrip", right = name != "lstrip";
  const Value chars = call.get(0, "chars", None{});
  if (chars.is_none()) return in.string(std::string(strip(text, nullptr, left, right)));
  if (!chars.is_string()) raise("strip arg must be None or str");
  const std::string_view set = chars.text();
  in.budget().spend(1 + text.size() * set.size() / 64);
  return in.string(std::string(strip(text, &set, left, right)));
}

Value test_method(std::string_view text, std::string_view name) {
  const auto digit = [](char32_t c) { return category(c) == Category::kNd; };
  const auto letter = [](char32_t c) { return (char_flags()[c] & kLetter) != 0; };
  const auto alnum = [](char32_t c) { return (char_flags()[c] & (kLetter | kNumber)) != 0; };
  const auto space = [](char32_t c) { return (char_flags()[c] & kSpace) != 0; };
  if (name == "isdigit") return all_chars(text, digit);
  if (name == "isalpha") return all_chars(text, letter);
  if (name == "isalnum") return all_chars(text, alnum);
  if (name == "isspace") return all_chars(text, space);
  if (name == "isupper") return is_cased(text, Category::kLu, Category::kLl);
  return is_cased(text, Category::kLl, Category::kLu);
}

Value split_lines(Interpreter& in, std::string_view text) {
  const std::string_view newline = "\n";
  in.budget().check(count_parts(text, &newline) * (sizeof(Value) + sizeof(StringBox)));
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    lines.push_back(text.substr(0, end));
    const bool pair = text.substr(end, 2) == "\r\n";
    text.remove_prefix(std::min(text.size(), end + (pair ? 2 : 1)));
  }
  return string_list(in, lines);
}

Value string_method(Interpreter& in, const Value& self, std::string_view name, const Call& call) {
  const std::string_view text = self.text();
  in.budget().spend(1 + text.size() / 8);
  if (name == "split" || name == "rsplit") return split_method(in, text, name, call);
  if (name.ends_with("strip")) return strip_method(in, text, name, call);
  if (name == "startswith") return has_affix(call, name, text, true);
  if (name == "endswith") return has_affix(call, name, text, false);
  if (name == "upper") return in.string(to_upper(text));
  if (name == "lower") return in.string(to_lower(text));
  if (name == "title") return in.string(title(text));
  if (name == "capitalize") return in.string(capitalize(text));
  if (name == "find" || name == "rfind" || name == "index") return find_method(text, name, call);
  if (name == "splitlines") return split_lines(in, text);
  if (name == "replace" || name == "join")
    return apply_filter(in, name == "join" ? "joined_by" : name, self, call);
  if (name == "removeprefix") {
    const std::string_view prefix = string_argument(call, 0, name);
    return in.string(std::string(text.starts_with(prefix) ? text.substr(prefix.size()) : text));
  }
  if (name == "partition") {
    const std::string_view mark = string_argument(call, 0, name);
    const size_t at = mark.empty() ? std::string_view::npos : text.find(mark);
    if (at == std::string_view::npos) return string_list(in, {text, "", ""}, true);
    return string_list(in, {text.substr(0, at), mark, text.substr(at + mark.size())}, true);
  }
  if (name == "count") {
    const std::string_view needle = string_argument(call, 0, name);
    if (needle.empty()) return static_cast<int64_t>(text_length(text)) + 1;
    return static_cast<int64_t>(count_parts(text, &needle)) - 1;
  }
  return test_method(text, name);
}

Value dict_method(Interpreter& in, const Value& self, std::string_view name, const Call& call) {
  if (name == "get") {
    if (call.positional.empty()) raise("get() needs a key");
    const Value found = in.item(self, call.positional[0]);
    return found.is_undefined() ? call.get(1, "default", None{}) : found;
  }
  if (name == "copy") return self;
  std::vector<Value> items;
  for (const auto& [key, value] : self.entries()) {
    if (name == "items") {
      items.push_back(Value::list(in.budget(), {key, value}, true));
    } else if (name == "keys" || name == "values") {
      items.push_back(name == "keys" ? key : value);
    } else {
      raise(
          fmt::format("access to method '{}' of a dict is unsafe: values cannot be changed", name));
    }
  }
  return Value::list(in.budget(), std::move(items));
}

Value list_method(Interpreter& in, const Value& self, std::string_view name, const Call& call) {
  if (name != "index" && name != "count") {
    raise(fmt::format("access to method '{}' of a list is unsafe: values cannot be changed", name));
  }
  if (call.positional.empty()) raise(fmt::format("{}() needs a value", name));
  int64_t count = 0;
  for (size_t i = 0; i < self.items().size(); ++i) {
    if (!equal(in.budget(), self.items()[i], call.positional[0])) continue;
    if (name == "index") return static_cast<int64_t>(i);
    ++count;
  }
  if (name == "index") raise("value is not in list");
  return count;
}

Value cycle(const LoopBox& loop, const Call& call) {
  if (call.positional.empty()) raise("no items for cycling given");
  return call.positional[loop.index % call.positional.size()];
}

Value range(Interpreter& in, const Call& call) {
  int64_t bounds[3] = {0, 0, 1};
  const size_t count = call.positional.size();
  if (count == 0 || count > 3) raise("range expected 1 to 3 arguments");
  for (size_t i = 0; i < count; ++i) {
    if (!call.positional[i].is_int() && !call.positional[i].is_bool()) {
      raise("range needs integers");
    }
    bounds[count == 1 ? 1 : i] = call.positional[i].integer();
  }
  const auto [start, stop, step] = bounds;
  if (step == 0) raise("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      raise(fmt::format("range is larger than {}", kMaxRange));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(in.budget(), std::move(items));
}

Value strftime_now(Interpreter& in, const Call& call) {
  const std::string format(string_argument(call, 0, "strftime_now"));
  const std::time_t seconds = std::chrono::system_clock::to_time_t(in.now());
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[256];
  const size_t size = std::strftime(text, sizeof text, format.c_str(), &parts);
  return in.string(std::string(text, size));
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  if (object.is_string()) return has(kStringMethods, name) || name == "removesuffix";
  if (object.is_dict()) return has(kDictMethods, name);
  if (object.is_list()) return has(kListMethods, name);
  return object.get<LoopBox>() != nullptr && name == "cycle";
}

Value call_method(Interpreter& in, const Value& object, std::string_view name, const Call& call) {
  if (object.is_string()) {
    if (name == "removesuffix") {
      const std::string_view suffix = string_argument(call, 0, name);
      const std::string_view text = object.text();
      return in.string(
          std::string(text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text));
    }
    return string_method(in, object, name, call);
  }
  if (object.is_dict()) return dict_method(in, object, name, call);
  if (object.is_list()) return list_method(in, object, name, call);
  return cycle(*object.get<LoopBox>(), call);
}

bool is_global(std::string_view name) {
  return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception" ||
         name == "strftime_now";
}

Value call_global(Interpreter& in, std::string_view name, const Call& call) {
  if (name == "range") return range(in, call);
  if (name == "strftime_now") return strftime_now(in, call);
  if (name == "raise_exception") {
    raise(call.positional.empty() ? std::string() : to_text(in.budget(), call.positional[0]));
  }
  if (name == "namespace") {
    Value space = in.make_namespace();
    for (const auto& [key, value] : call.named) {
      space.get<NamespaceBox>()->fields.emplace_back(key, value);
    }
    if (!call.positional.empty() && call.positional[0].is_dict()) {
      for (const auto& [key, value] : call.positional[0].entries()) {
        if (!key.is_string()) raise("a namespace needs string keys");
        space.get<NamespaceBox>()->fields.emplace_back(key.text(), value);
      }
    }
    return space;
  }
  if (name == "dict") {
    std::vector<std::pair<Value, Value>> entries;
    if (!call.positional.empty() && call.positional[0].is_dict()) {
      entries = call.positional[0].entries();
    }
    for (const auto& [key, value] : call.named) {
      entries.emplace_back(in.string(std::string(key)), value);
    }
    return Value::dict(in.budget(), std::move(entries));
  }
  raise(fmt::format("'{}' cannot be called without its object", name));
}

}  // namespace rudder::text::jinja
