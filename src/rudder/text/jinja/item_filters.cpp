// The filters that take sequences, and those that choose between values.
#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/utf8.h"
#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/paths.h"
#include "rudder/text/jinja/strings.h"

namespace rudder::text::jinja {
namespace {

Value length(Interpreter& in, const Value& value, const Args&) {
  const auto count = length_of(in.budget(), value);
  if (!count) raise(fmt::format("object of type '{}' has no len()", type_name(value)));
  return *count;
}

Value first(Interpreter& in, const Value& value, const Args&) {
  Value item;
  iterate(in.budget(), value)->next(item);
  return item;
}

Value last(Interpreter& in, const Value& value, const Args&) {
  const auto items = iterate_back(in.budget(), value);
  if (items == nullptr) raise(fmt::format("'{}' object is not reversible", type_name(value)));
  Value item;
  items->next(item);
  return item;
}

Value reverse(Interpreter& in, const Value& value, const Args&) {
  if (value.is_string()) {
    std::string out;
    for (size_t pos = value.text().size(); pos > 0;) {
      append_utf8(out, previous_char(value.text(), pos));
    }
    return in.string(std::move(out), value.is_markup());
  }
  if (auto items = iterate_back(in.budget(), value)) return items;
  std::vector<Value> items = collect(in.budget(), value);
  std::reverse(items.begin(), items.end());
  return in.list(std::move(items));
}

Value list(Interpreter& in, const Value& value, const Args&) {
  return in.list(collect(in.budget(), value));
}

Value fallback(Interpreter& in, const Value& value, const Args& args) {
  const bool replaces = value.is_undefined() || (args.flag(1) && !truthy(value));
  if (!replaces) return value;
  return args.has(0) ? args[0] : in.string("");
}

Value attr(Interpreter& in, const Value& value, const Args& args) {
  const std::string_view name = args.text(0);
  const bool key = value.is_dict() && find_method(value, name) == nullptr;
  return key ? Value() : in.attribute(value, name);
}

// Items with what they are compared by.
using Keyed = std::vector<std::pair<Value, Value>>;

template <typename Key>
Keyed keyed(Interpreter& in, const Value& value, const Key& key) {
  Keyed out;
  const auto items = iterate(in.budget(), value);
  for (Value item; items->next(item);) {
    if (out.size() == out.capacity()) in.budget().check((out.size() * 2 + 8) * 2 * sizeof(Value));
    Value by = key(item);
    out.emplace_back(std::move(by), std::move(item));
  }
  return out;
}

void sort_keyed(Interpreter& in, Keyed& items, bool descending) {
  std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
    return descending ? less(in.budget(), b.first, a.first) : less(in.budget(), a.first, b.first);
  });
}

Value values_of(Interpreter& in, Keyed& items) {
  std::vector<Value> out;
  out.reserve(items.size());
  for (auto& [key, item] : items) out.push_back(std::move(item));
  return in.list(std::move(out));
}

// By one attribute or by several: "a,b.c".
Value sort(Interpreter& in, const Value& value, const Args& args) {
  const bool case_sensitive = args.flag(1);
  std::vector<Path> paths;
  if (args.has(2) && args[2].is_string()) {
    const std::string_view comma = ",";
    for (const std::string_view part : split(args.text(2), &comma, -1)) {
      paths.emplace_back(in, in.string(std::string(part)));
    }
  } else {
    paths.emplace_back(in, args.get(2, None{}));
  }
  Keyed items = keyed(in, value, [&](const Value& item) {
    std::vector<Value> key;
    key.reserve(paths.size());
    for (const Path& path : paths) {
      key.push_back(sort_key(in, path.walk(in, item), case_sensitive));
    }
    return in.list(std::move(key));
  });
  sort_keyed(in, items, args.flag(0));
  return values_of(in, items);
}

Value dictsort(Interpreter& in, const Value& value, const Args& args) {
  const bool by_value = args.has(1) && args[1].is_string() && args.text(1) == "value";
  if (args.has(1) && !by_value && !(args[1].is_string() && args.text(1) == "key")) {
    raise("You can only sort by either \"key\" or \"value\"");
  }
  if (!value.is_dict()) raise(fmt::format("'{}' has no attribute 'items'", type_name(value)));
  Keyed items;
  for (const auto& [key, held] : value.entries()) {
    items.emplace_back(sort_key(in, by_value ? held : key, args.flag(0)), in.tuple({key, held}));
  }
  sort_keyed(in, items, args.flag(2));
  return values_of(in, items);
}

Value group_by(Interpreter& in, const Value& value, const Args& args) {
  const Path path(in, args[0]);
  const Value otherwise = args.get(1, None{});
  const bool case_sensitive = args.flag(2);
  Keyed items = keyed(in, value, [&](const Value& item) {
    return sort_key(in, path.walk(in, item, otherwise), case_sensitive);
  });
  sort_keyed(in, items, false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < items.size();) {
    std::vector<Value> members;
    size_t end = begin;
    for (; end < items.size() && equal(in.budget(), items[begin].first, items[end].first); ++end) {
      members.push_back(items[end].second);
    }
    const Value key = case_sensitive ? items[begin].first : path.walk(in, members[0], otherwise);
    std::vector<Value> both{key, in.list(std::move(members))};
    groups.emplace_back(
        std::make_shared<const ListBox>(in.budget(), std::move(both), ListBox::Kind::kGroup));
    begin = end;
  }
  return in.list(std::move(groups));
}

template <bool kMost>
Value extreme(Interpreter& in, const Value& value, const Args& args) {
  const Path path(in, args.get(1, None{}));
  Value best, best_key;
  bool any = false;
  const auto items = iterate(in.budget(), value);
  for (Value item; items->next(item);) {
    Value key = sort_key(in, path.walk(in, item), args.flag(0));
    const bool better =
        !any || (kMost ? less(in.budget(), best_key, key) : less(in.budget(), key, best_key));
    any = true;
    if (!better) continue;
    best = std::move(item);
    best_key = std::move(key);
  }
  return best;
}

Value sum(Interpreter& in, const Value& value, const Args& args) {
  const Path path(in, args.get(0, None{}));
  Value total = args.get(1, 0);
  if (total.is_string()) raise("sum() can't sum strings");
  const auto items = iterate(in.budget(), value);
  for (Value item; items->next(item);) {
    total = in.binary("+", total, path.walk(in, std::move(item)));
  }
  return total;
}

Value random_filter(Interpreter&, const Value&, const Call&) {
  raise_unsupported("the filter 'random'");
}

constexpr Signature kExtreme{"case_sensitive,attribute", 0};

constexpr Filter kItemFilters[] = {
    {"attr", {"name", 1}, attr},
    {"count", kNoArguments, length},
    {"d", {"default_value,boolean", 0}, fallback},
    {"default", {"default_value,boolean", 0}, fallback},
    {"dictsort", {"case_sensitive,by,reverse", 0}, dictsort},
    {"first", kNoArguments, first},
    {"groupby", {"attribute,default,case_sensitive", 1}, group_by},
    {"last", kNoArguments, last},
    {"length", kNoArguments, length},
    {"list", kNoArguments, list},
    {"max", kExtreme, extreme<true>},
    {"min", kExtreme, extreme<false>},
    {"random", kNoArguments, nullptr, random_filter, true},
    {"reverse", kNoArguments, reverse},
    {"sort", {"reverse,case_sensitive,attribute", 0}, sort},
    {"sum", {"attribute,start", 0}, sum},
};

}  // namespace

std::span<const Filter> item_filters() {
  return kItemFilters;
}

}  // namespace rudder::text::jinja
