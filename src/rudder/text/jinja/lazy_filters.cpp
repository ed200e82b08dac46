// The filters that are generators: they compute an item when they are asked for it, and raise what
// is wrong with their arguments then.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/paths.h"

namespace rudder::text::jinja {
namespace {

template <typename Next>
class Generator final : public Iterator {
 public:
  Generator(Interpreter& in, int depth, Next next)
      : Iterator(in.budget(), "generator", depth), in_(in), next_(std::move(next)) {}
  bool next(Value& out) override {
    in_.budget().spend(1);
    return next_(in_, out);
  }

 private:
  Interpreter& in_;
  Next next_;
};

template <typename Next>
Value generator(Interpreter& in, const Value& value, const Call& call, Next next) {
  int depth = value.depth();
  for (const Value& argument : call.positional) depth = std::max(depth, argument.depth());
  for (const auto& [name, argument] : call.named) depth = std::max(depth, argument.depth());
  return std::shared_ptr<Iterator>(std::make_shared<Generator<Next>>(in, depth, std::move(next)));
}

// The items of a value, read only when the first item is asked for; no items if it is false.
class Source {
 public:
  explicit Source(Value value) : value_(std::move(value)) {}
  // At the first call: true if there may be items.
  bool begin(Interpreter& in) {
    if (begun_) return items_ != nullptr;
    begun_ = true;
    if (truthy(value_)) items_ = iterate(in.budget(), value_);
    return items_ != nullptr;
  }
  bool next(Value& out) { return items_->next(out); }

 private:
  Value value_;
  std::shared_ptr<Iterator> items_;
  bool begun_ = false;
};

const Value* find_named(const Call& call, std::string_view name) {
  for (const auto& [known, value] : call.named) {
    if (known == name) return &value;
  }
  return nullptr;
}

Call without_first(const Call& call, size_t count) {
  return {{call.positional.begin() + static_cast<ptrdiff_t>(count), call.positional.end()},
          call.named};
}

Value map_attribute(Interpreter& in, const Value& value, const Call& call) {
  return generator(in, value, call,
                   [source = Source(value), call, path = std::optional<Path>()](
                       Interpreter& inner, Value& out) mutable {
                     if (!source.begin(inner)) return false;
                     const Value* fallback = find_named(call, "default");
                     if (!path) {
                       if (call.named.size() > (fallback != nullptr ? 2 : 1)) {
                         raise("map: an unexpected keyword argument");
                       }
                       path.emplace(inner, *find_named(call, "attribute"));
                     }
                     Value item;
                     if (!source.next(item)) return false;
                     out = path->walk(inner, std::move(item),
                                      fallback != nullptr ? *fallback : Value(None{}));
                     return true;
                   });
}

Value map(Interpreter& in, const Value& value, const Call& call) {
  if (call.positional.empty() && find_named(call, "attribute") != nullptr) {
    return map_attribute(in, value, call);
  }
  return generator(in, value, call,
                   [source = Source(value), call](Interpreter& inner, Value& out) mutable {
                     if (!source.begin(inner)) return false;
                     if (call.positional.empty()) raise("map requires a filter argument");
                     const Value& name = call.positional[0];
                     Value item;
                     if (!source.next(item)) return false;
                     const Filter* filter = name.is_string() ? find_filter(name.text()) : nullptr;
                     if (filter == nullptr) {
                       raise(fmt::format("No filter named '{}'", inner.text(name)));
                     }
                     out = apply_filter(inner, *filter, item, without_first(call, 1));
                     return true;
                   });
}

// select, reject, selectattr, rejectattr: items that pass a test, or whose attribute does.
template <bool kAttribute, bool kWanted>
Value choose(Interpreter& in, const Value& value, const Call& call) {
  return generator(in, value, call,
                   [source = Source(value), call, path = std::optional<Path>()](
                       Interpreter& inner, Value& out) mutable {
                     constexpr size_t kSkip = kAttribute ? 1 : 0;
                     if (!source.begin(inner)) return false;
                     if (!path) {
                       if (kAttribute && call.positional.empty())
                         raise("Missing parameter for attribute name");
                       path.emplace(inner, kAttribute ? call.positional[0] : Value(None{}));
                     }
                     const bool tested = call.positional.size() > kSkip;
                     for (Value item; source.next(item);) {
                       const Value subject = path->walk(inner, item);
                       bool passes = false;
                       if (tested) {
                         const Value& name = call.positional[kSkip];
                         const Test* test = name.is_string() ? find_test(name.text()) : nullptr;
                         if (test == nullptr)
                           raise(fmt::format("No test named '{}'", inner.text(name)));
                         passes = apply_test(inner, *test, subject, without_first(call, kSkip + 1));
                       } else {
                         passes = truthy(subject);
                       }
                       if (passes != kWanted) continue;
                       out = std::move(item);
                       return true;
                     }
                     return false;
                   });
}

Value unique(Interpreter& in, const Value& value, const Call& call) {
  const Args args({"case_sensitive,attribute", 0}, call, "unique");
  return generator(
      in, value, call,
      [items = std::shared_ptr<Iterator>(), value, args,
       seen = std::vector<std::pair<Value, Value>>()](Interpreter& inner, Value& out) mutable {
        const Path path(inner, args.get(1, None{}));
        if (items == nullptr) items = iterate(inner.budget(), value);
        for (Value item; items->next(item);) {
          Value key = sort_key(inner, path.walk(inner, item), args.flag(0));
          check_hashable(key);
          if (find_key(inner.budget(), seen, key) != nullptr) continue;
          inner.budget().check((seen.size() + 1) * 2 * sizeof(Value));
          seen.emplace_back(std::move(key), None{});
          out = std::move(item);
          return true;
        }
        return false;
      });
}

Value items(Interpreter& in, const Value& value, const Call& call) {
  const Args args({}, call, "items");
  return generator(in, value, call,
                   [value, index = size_t{0}](Interpreter& inner, Value& out) mutable {
                     if (value.is_undefined()) return false;
                     if (!value.is_dict()) raise("Can only get item pairs from a mapping.");
                     if (index == value.entries().size()) return false;
                     const auto& [key, held] = value.entries()[index++];
                     out = inner.tuple({key, held});
                     return true;
                   });
}

Value batch(Interpreter& in, const Value& value, const Call& call) {
  const Args args({"linecount,fill_with", 1}, call, "batch");
  return generator(in, value, call,
                   [items = std::shared_ptr<Iterator>(), value, args, held = std::optional<Value>(),
                    done = false](Interpreter& inner, Value& out) mutable {
                     if (done) return false;
                     if (items == nullptr) items = iterate(inner.budget(), value);
                     if (!args[0].is_integral()) raise_unsupported("batch by what is no integer");
                     const Int count = args[0].integer();
                     std::vector<Value> line;
                     if (held) line.push_back(*std::exchange(held, std::nullopt));
                     for (Value item; items->next(item);) {
                       if (static_cast<Int>(line.size()) == count) {
                         held = std::move(item);
                         out = inner.list(std::move(line));
                         return true;
                       }
                       push(inner.budget(), line, std::move(item));
                     }
                     done = true;
                     if (line.empty()) return false;
                     const Int missing = count - static_cast<Int>(line.size());
                     if (args.holds(1) && missing > 0) {
                       if (missing > static_cast<Int>(inner.budget().memory / sizeof(Value))) {
                         raise_limit("memory");
                       }
                       line.insert(line.end(), static_cast<size_t>(missing), args[1]);
                     }
                     out = inner.list(std::move(line));
                     return true;
                   });
}

Value slice(Interpreter& in, const Value& value, const Call& call) {
  const Args args({"slices,fill_with", 1}, call, "slice");
  return generator(in, value, call,
                   [all = std::optional<Value>(), value, args, number = Int{0}](
                       Interpreter& inner, Value& out) mutable {
                     if (!all) all = inner.list(collect(inner.budget(), value));
                     const Int slices = args.integer(0);
                     if (slices == 0) raise("integer division or modulo by zero");
                     if (number >= slices) return false;
                     const auto length = static_cast<Int>(all->items().size());
                     const Int each = length / slices, longer = length % slices;
                     const Int start = number * each + std::min(number, longer);
                     const Int end = start + each + (number < longer ? 1 : 0);
                     std::vector<Value> part(all->items().begin() + static_cast<ptrdiff_t>(start),
                                             all->items().begin() + static_cast<ptrdiff_t>(end));
                     if (args.holds(1) && number >= longer) part.push_back(args[1]);
                     ++number;
                     out = inner.list(std::move(part));
                     return true;
                   });
}

constexpr Filter kLazyFilters[] = {
    {"batch", kNoArguments, nullptr, batch},
    {"items", kNoArguments, nullptr, items},
    {"map", kNoArguments, nullptr, map, true},
    {"reject", kNoArguments, nullptr, choose<false, false>, true},
    {"rejectattr", kNoArguments, nullptr, choose<true, false>, true},
    {"select", kNoArguments, nullptr, choose<false, true>, true},
    {"selectattr", kNoArguments, nullptr, choose<true, true>, true},
    {"slice", kNoArguments, nullptr, slice},
    {"unique", kNoArguments, nullptr, unique},
};

}  // namespace

std::span<const Filter> lazy_filters() {
  return kLazyFilters;
}

}  // namespace rudder::text::jinja
