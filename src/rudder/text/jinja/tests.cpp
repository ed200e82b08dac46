// The tests: value is name(arguments).
#include <fmt/format.h>

#include <algorithm>

#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/strings.h"

namespace rudder::text::jinja {
namespace {

bool rest_is(Interpreter& in, const Value& value, const Value& divisor, int rest) {
  return equal(in.budget(), in.binary("%", value, divisor), rest);
}

bool string_test(Interpreter& in, const Value& value, std::string_view method) {
  const Value text = in.string(in.text(value));
  return truthy(call_method(in, *find_string_method(method), text, {}));
}

bool is_callable(const Value& value) {
  const auto* helper = value.get<HelperBox>();
  return value.is_undefined() || value.get<CallableBox>() != nullptr ||
         value.get<LoopBox>() != nullptr ||
         (helper != nullptr && helper->kind == HelperBox::Kind::kJoiner);
}

// Python's `is`. Whether two equal strings or numbers are one object is its own affair.
bool identical(Interpreter& in, const Value& a, const Value& b) {
  if (a.data.index() != b.data.index()) return false;
  if (a.is_none()) return true;
  if (a.is_bool()) return truthy(a) == truthy(b);
  if (a.is_undefined()) raise_unsupported("'sameas' of what is undefined");
  const auto same_object = [&](const auto& held) {
    using Held = std::decay_t<decltype(held)>;
    if constexpr (requires { held.get(); }) {
      return held == std::get<Held>(b.data);
    } else {
      return false;
    }
  };
  if (std::visit(same_object, a.data)) return true;
  const bool shared = a.is_number() || a.is_string() || a.is_tuple();
  if (!shared || !equal(in.budget(), a, b)) return false;
  constexpr Int kFirst = -5, kLast = 256;  // of the integers that are always one object
  if (a.is_int() && a.integer() >= kFirst && a.integer() <= kLast) return true;
  raise_unsupported("'sameas' of equal values");
}

template <int kRest>
bool parity(Interpreter& in, const Value& v, const Args&) {
  return rest_is(in, v, 2, kRest);
}
bool divisible(Interpreter& in, const Value& v, const Args& args) {
  return rest_is(in, v, args[0], 0);
}
bool is_filter(Interpreter&, const Value& v, const Args&) {
  check_hashable(v);
  return v.is_string() && find_filter(v.text()) != nullptr;
}
bool is_test(Interpreter&, const Value& v, const Args&) {
  check_hashable(v);
  return v.is_string() && find_test(v.text()) != nullptr;
}
bool is_sequence(Interpreter&, const Value& v, const Args&) {
  return v.is_string() || v.is_sequence() || v.is_dict() || v.is_undefined() ||
         v.get<RangeBox>() != nullptr;
}
bool is_same(Interpreter& in, const Value& v, const Args& args) {
  return identical(in, v, args[0]);
}
bool is_in(Interpreter& in, const Value& v, const Args& args) {
  return in.contains(args[0], v);
}

template <bool kEqual>
bool equality(Interpreter& in, const Value& v, const Args& args) {
  return equal(in.budget(), v, args[0]) == kEqual;
}
template <bool kLess, bool kOrEqual>
bool order(Interpreter& in, const Value& v, const Args& args) {
  const auto found = compare(in.budget(), v, args[0]);
  return (kLess ? std::is_lt(found) : std::is_gt(found)) || (kOrEqual && std::is_eq(found));
}

#define RUDDER_VALUE_TEST(condition) \
  [](Interpreter&, const Value& v, const Args&) -> bool { return condition; }
#define RUDDER_TEXT_TEST(method) \
  [](Interpreter& in, const Value& v, const Args&) { return string_test(in, v, method); }

constexpr Signature kOther{"other", 1, false};

constexpr Test kTests[] = {
    {"defined", kNoArguments, RUDDER_VALUE_TEST(!v.is_undefined())},
    {"undefined", kNoArguments, RUDDER_VALUE_TEST(v.is_undefined())},
    {"none", kNoArguments, RUDDER_VALUE_TEST(v.is_none())},
    {"string", kNoArguments, RUDDER_VALUE_TEST(v.is_string())},
    {"mapping", kNoArguments, RUDDER_VALUE_TEST(v.is_dict())},
    {"iterable", kNoArguments, RUDDER_VALUE_TEST(is_iterable(v))},
    {"sequence", kNoArguments, is_sequence},
    {"number", kNoArguments, RUDDER_VALUE_TEST(v.is_number())},
    {"integer", kNoArguments, RUDDER_VALUE_TEST(v.is_int())},
    {"float", kNoArguments, RUDDER_VALUE_TEST(v.is_float())},
    {"boolean", kNoArguments, RUDDER_VALUE_TEST(v.is_bool())},
    {"true", kNoArguments, RUDDER_VALUE_TEST(v.is_bool() && truthy(v))},
    {"false", kNoArguments, RUDDER_VALUE_TEST(v.is_bool() && !truthy(v))},
    {"callable", kNoArguments, RUDDER_VALUE_TEST(is_callable(v))},
    {"escaped", kNoArguments, RUDDER_VALUE_TEST(v.is_markup())},
    {"odd", kNoArguments, parity<1>},
    {"even", kNoArguments, parity<0>},
    {"divisibleby", {"num", 1}, divisible},
    {"lower", kNoArguments, RUDDER_TEXT_TEST("islower")},
    {"upper", kNoArguments, RUDDER_TEXT_TEST("isupper")},
    {"filter", kNoArguments, is_filter},
    {"test", kNoArguments, is_test},
    {"sameas", {"other", 1}, is_same},
    {"in", {"seq", 1}, is_in},
    {"==", kOther, equality<true>},
    {"eq", kOther, equality<true>},
    {"equalto", kOther, equality<true>},
    {"!=", kOther, equality<false>},
    {"ne", kOther, equality<false>},
    {">", kOther, order<false, false>},
    {"gt", kOther, order<false, false>},
    {"greaterthan", kOther, order<false, false>},
    {">=", kOther, order<false, true>},
    {"ge", kOther, order<false, true>},
    {"<", kOther, order<true, false>},
    {"lt", kOther, order<true, false>},
    {"lessthan", kOther, order<true, false>},
    {"<=", kOther, order<true, true>},
    {"le", kOther, order<true, true>},
};

#undef RUDDER_VALUE_TEST
#undef RUDDER_TEXT_TEST

}  // namespace

const Test* find_test(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTests), std::end(kTests),
                                   [name](const Test& test) { return test.name == name; });
  return found != std::end(kTests) ? found : nullptr;
}

bool apply_test(Interpreter& in, const Test& test, const Value& value, const Call& call) {
  in.budget().spend(1);
  return test.run(in, value, Args(test.signature, call, test.name));
}

}  // namespace rudder::text::jinja
