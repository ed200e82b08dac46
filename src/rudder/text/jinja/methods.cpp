// The methods and properties of everything but strings. Methods that change their object are
// unsafe, as in the reference's sandbox.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/interpreter.h"

namespace rudder::text::jinja {
namespace {

template <ViewBox::Kind kKind>
Value view(Interpreter&, const Value& self, const Args&) {
  return std::make_shared<const ViewBox>(
      ViewBox{kKind, std::get<std::shared_ptr<const DictBox>>(self.data)});
}

Value dict_get(Interpreter& in, const Value& self, const Args& args) {
  check_hashable(args[0]);
  const Value* found = find_key(in.budget(), self.entries(), args[0]);
  return found != nullptr ? *found : args.get(1, None{});
}

Value itself(Interpreter&, const Value& self, const Args&) {
  return self.is_bool() ? Value(self.integer()) : self;
}

Value unsupported(Interpreter&, const Value& self, const Call&) {
  raise_unsupported(fmt::format("this method of a '{}'", type_name(self)));
}

Value count_items(Interpreter& in, const Value& self, const Args& args) {
  Int count = 0;
  const auto items = iterate(in.budget(), self);
  for (Value item; items->next(item);) count += equal(in.budget(), item, args[0]) ? 1 : 0;
  return count;
}

Value index_of(Interpreter& in, const Value& self, const Args& args) {
  const Int length = *length_of(in.budget(), self);
  const auto from_start = [length](Int given) {
    return given < 0 ? std::max<Int>(given + length, 0) : given;
  };
  const Int start = from_start(args.integer(1, 0)), end = from_start(args.integer(2, length));
  const auto items = iterate(in.budget(), self);
  Int index = 0;
  for (Value item; items->next(item); ++index) {
    if (index >= start && index < end && equal(in.budget(), item, args[0])) return index;
  }
  raise("value is not in the sequence");
}

Value bit_length(Interpreter&, const Value& self, const Args&) {
  auto rest = static_cast<unsigned __int128>(self.integer());
  if (self.integer() < 0) rest = -rest;
  int count = 0;
  for (; rest != 0; rest >>= 1) ++count;
  return count;
}

Value is_integer(Interpreter&, const Value& self, const Args&) {
  return std::isfinite(self.number()) && self.number() == std::floor(self.number());
}

Value loop_cycle(Interpreter&, const Value& self, const Call& call) {
  if (!call.named.empty()) raise("cycle() takes no named arguments");
  if (call.positional.empty()) raise("no items for cycling given");
  const auto index = static_cast<size_t>(self.get<LoopBox>()->index0);
  return call.positional[index % call.positional.size()];
}

Value loop_changed(Interpreter& in, const Value& self, const Call& call) {
  if (!call.named.empty()) raise("changed() takes no named arguments");
  return in.changed(*self.get<LoopBox>(), in.tuple(call.positional));
}

Value cycler_next(Interpreter&, const Value& self, const Args&) {
  auto* cycler = self.get<HelperBox>();
  const auto& items = cycler->items.items();
  const Value& value = items[cycler->position];
  cycler->position = (cycler->position + 1) % items.size();
  return value;
}

Value cycler_reset(Interpreter&, const Value& self, const Args&) {
  self.get<HelperBox>()->position = 0;
  return None{};
}

constexpr Signature kOneValue{"value", 1, false};
constexpr Signature kIndex{"value,start,stop", 1, false};

constexpr Method kDictMethods[] = {
    {"items", kNoArguments, view<ViewBox::Kind::kItems>},
    {"keys", kNoArguments, view<ViewBox::Kind::kKeys>},
    {"values", kNoArguments, view<ViewBox::Kind::kValues>},
    {"get", {"key,default", 1, false}, dict_get},
    {"copy", kNoArguments, itself},
    {"fromkeys", kNoArguments, nullptr, unsupported},
    {"clear", kNoArguments, nullptr},
    {"pop", kNoArguments, nullptr},
    {"popitem", kNoArguments, nullptr},
    {"setdefault", kNoArguments, nullptr},
    {"update", kNoArguments, nullptr},
};
constexpr Method kListMethods[] = {
    {"index", kIndex, index_of},       {"count", kOneValue, count_items},
    {"copy", kNoArguments, itself},    {"append", kNoArguments, nullptr},
    {"clear", kNoArguments, nullptr},  {"extend", kNoArguments, nullptr},
    {"insert", kNoArguments, nullptr}, {"pop", kNoArguments, nullptr},
    {"remove", kNoArguments, nullptr}, {"reverse", kNoArguments, nullptr},
    {"sort", kNoArguments, nullptr},
};
constexpr Method kTupleMethods[] = {{"index", kIndex, index_of}, {"count", kOneValue, count_items}};
constexpr Method kRangeMethods[] = {{"index", kOneValue, index_of},
                                    {"count", kOneValue, count_items}};
constexpr Method kViewMethods[] = {{"isdisjoint", kNoArguments, nullptr, unsupported}};
constexpr Method kIntMethods[] = {
    {"is_integer", kNoArguments, is_integer},  // as Python has it from 3.12 on
    {"bit_length", kNoArguments, bit_length},
    {"conjugate", kNoArguments, itself},
    {"bit_count", kNoArguments, nullptr, unsupported},
    {"as_integer_ratio", kNoArguments, nullptr, unsupported},
    {"to_bytes", kNoArguments, nullptr, unsupported},
    {"from_bytes", kNoArguments, nullptr, unsupported},
};
constexpr Method kFloatMethods[] = {
    {"is_integer", kNoArguments, is_integer},
    {"conjugate", kNoArguments, itself},
    {"as_integer_ratio", kNoArguments, nullptr, unsupported},
    {"hex", kNoArguments, nullptr, unsupported},
    {"fromhex", kNoArguments, nullptr, unsupported},
};
constexpr Method kLoopMethods[] = {{"cycle", kNoArguments, nullptr, loop_cycle},
                                   {"changed", kNoArguments, nullptr, loop_changed}};
constexpr Method kCyclerMethods[] = {{"next", kNoArguments, cycler_next},
                                     {"reset", kNoArguments, cycler_reset}};
constexpr Method kIteratorMethods[] = {{"send", kNoArguments, nullptr, unsupported},
                                       {"throw", kNoArguments, nullptr, unsupported},
                                       {"close", kNoArguments, nullptr, unsupported}};

std::span<const Method> methods_of(const Value& object) {
  if (object.is_dict()) return kDictMethods;
  if (object.is_list()) return kListMethods;
  if (object.is_tuple()) return kTupleMethods;
  if (object.is_integral()) return kIntMethods;
  if (object.is_float()) return kFloatMethods;
  if (object.get<RangeBox>() != nullptr) return kRangeMethods;
  if (object.get<LoopBox>() != nullptr) return kLoopMethods;
  if (const auto* view = object.get<ViewBox>()) {
    if (view->kind != ViewBox::Kind::kValues) return kViewMethods;
    return {};
  }
  if (const auto* iterator = object.get<Iterator>()) {
    if (iterator->type() == "generator") return kIteratorMethods;
    return {};
  }
  const auto* helper = object.get<HelperBox>();
  if (helper != nullptr && helper->kind == HelperBox::Kind::kCycler) return kCyclerMethods;
  return {};
}

Value loop_property(Interpreter& in, LoopBox& loop, std::string_view name) {
  if (name == "index") return loop.index0 + 1;
  if (name == "index0") return loop.index0;
  if (name == "first") return loop.first();
  if (name == "last") return loop.peek().is_missing();
  if (name == "length") return loop.length(in.budget());
  if (name == "revindex") return loop.length(in.budget()) - loop.index0;
  if (name == "revindex0") return loop.length(in.budget()) - loop.index0 - 1;
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "previtem") return loop.first() || loop.before.is_missing() ? Value() : loop.before;
  if (name == "nextitem") return loop.peek().is_missing() ? Value() : loop.peek();
  return Missing{};
}

Value macro_property(Interpreter& in, const MacroNode& macro, std::string_view name) {
  if (name == "name") return macro.name.empty() ? Value(None{}) : in.string(macro.name);
  if (name == "catch_kwargs") return macro.kwargs_slot >= 0;
  if (name == "catch_varargs") return macro.varargs_slot >= 0;
  if (name == "caller") return macro.takes_caller;
  if (name == "explicit_caller") return macro.names_caller;
  if (name != "arguments") return Missing{};
  std::vector<Value> names;
  names.reserve(macro.parameters.size());
  for (const auto& [parameter, value] : macro.parameters) names.push_back(in.string(parameter));
  return in.tuple(std::move(names));
}

Value number_property(const Value& number, std::string_view name) {
  if (name == "real") return number.is_bool() ? Value(number.integer()) : number;
  if (name == "imag") return number.is_float() ? Value(0.0) : Value(0);
  if (number.is_float()) return Missing{};
  if (name == "numerator") return number.integer();
  return name == "denominator" ? Value(1) : Value(Missing{});
}

}  // namespace

const Method* find_method(const Value& object, std::string_view name) {
  if (object.is_string()) return find_string_method(name);
  for (const Method& method : methods_of(object)) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

Value call_method(Interpreter& in, const Method& method, const Value& object, const Call& call) {
  in.budget().spend(1 + (object.is_string() ? object.text().size() / 8 : 0));
  if (method.free != nullptr) return method.free(in, object, call);
  return method.bound(in, object, Args(method.signature, call, method.name));
}

Value property(Interpreter& in, const Value& object, std::string_view name) {
  if (auto* loop = object.get<LoopBox>()) return loop_property(in, *loop, name);
  if (object.is_number()) return number_property(object, name);
  if (const auto* space = object.get<NamespaceBox>()) {
    for (const auto& [key, value] : space->fields) {
      if (key.is_string() && key.text() == name) return value;
    }
    return Missing{};
  }
  if (const auto* range = object.get<RangeBox>()) {
    if (name == "start") return range->start;
    if (name == "stop") return range->stop;
    return name == "step" ? Value(range->step) : Value(Missing{});
  }
  if (const auto* list = object.get<ListBox>();
      list != nullptr && list->kind == ListBox::Kind::kGroup) {
    if (name == "grouper") return list->items[0];
    if (name == "list") return list->items[1];
  }
  if (const auto* callable = object.get<CallableBox>();
      callable != nullptr && callable->macro != nullptr) {
    return macro_property(in, *callable->macro, name);
  }
  const auto* helper = object.get<HelperBox>();
  if (helper == nullptr) return Missing{};
  if (helper->kind == HelperBox::Kind::kJoiner) {
    if (name == "sep") return helper->items;
    return name == "used" ? Value(helper->used) : Value(Missing{});
  }
  if (name == "items") return helper->items;
  if (name == "pos") return helper->position;
  if (name == "current") return helper->items.items()[helper->position];
  return Missing{};
}

}  // namespace rudder::text::jinja
