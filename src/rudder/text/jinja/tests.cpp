// The tests: value is name(arguments).
#include <fmt/format.h>

#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/strings.h"

namespace rudder::text::jinja {
namespace {

using Test = bool (*)(Interpreter&, const Value&, const Call&);

const Value& required(const Call& call, std::string_view what) {
  if (call.positional.empty()) raise(fmt::format("{} needs an argument", what));
  return call.positional[0];
}

std::string text_of(Interpreter& in, const Value& value) {
  return to_text(in.budget(), value);
}

int64_t integer_of(const Value& value) {
  if (!value.is_number() || value.is_float()) raise("this test needs an integer");
  return value.integer();
}

struct NamedTest {
  std::string_view name;
  Test test;
};
const NamedTest kTests[] = {
    {"defined", [](Interpreter&, const Value& v, const Call&) { return !v.is_undefined(); }},
    {"undefined", [](Interpreter&, const Value& v, const Call&) { return v.is_undefined(); }},
    {"none", [](Interpreter&, const Value& v, const Call&) { return v.is_none(); }},
    {"string", [](Interpreter&, const Value& v, const Call&) { return v.is_string(); }},
    {"mapping", [](Interpreter&, const Value& v, const Call&) { return v.is_dict(); }},
    {"iterable",
     [](Interpreter&, const Value& v, const Call&) {
       return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined();
     }},
    {"sequence",
     [](Interpreter&, const Value& v, const Call&) {
       return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined();
     }},
    {"number", [](Interpreter&, const Value& v, const Call&) { return v.is_number(); }},
    {"integer", [](Interpreter&, const Value& v, const Call&) { return v.is_int(); }},
    {"float", [](Interpreter&, const Value& v, const Call&) { return v.is_float(); }},
    {"boolean", [](Interpreter&, const Value& v, const Call&) { return v.is_bool(); }},
    {"true", [](Interpreter&, const Value& v, const Call&) { return v.is_bool() && truthy(v); }},
    {"false", [](Interpreter&, const Value& v, const Call&) { return v.is_bool() && !truthy(v); }},
    {"callable", [](Interpreter&, const Value& v,
                    const Call&) { return std::holds_alternative<Function>(v.data); }},
    {"odd", [](Interpreter&, const Value& v, const Call&) { return integer_of(v) % 2 != 0; }},
    {"even", [](Interpreter&, const Value& v, const Call&) { return integer_of(v) % 2 == 0; }},
    {"divisibleby",
     [](Interpreter& in, const Value& v, const Call& c) {
       return integer_of(in.binary("%", v, required(c, "divisibleby"))) == 0;
     }},
    {"lower",
     [](Interpreter& in, const Value& v, const Call&) {
       const std::string text = text_of(in, v);
       return to_lower(text) == text && to_upper(text) != text;
     }},
    {"upper",
     [](Interpreter& in, const Value& v, const Call&) {
       const std::string text = text_of(in, v);
       return to_upper(text) == text && to_lower(text) != text;
     }},
    {"in", [](Interpreter& in, const Value& v,
              const Call& c) { return in.contains(required(c, "in"), v); }},
    {"sameas",
     [](Interpreter& in, const Value& v, const Call& c) {
       const Value& other = required(c, "sameas");
       return v.data.index() == other.data.index() && equal(in.budget(), v, other);
     }},
};

// Tests that are comparisons, by all their names.
struct ComparisonName {
  std::string_view name;
  std::string_view op;
};
constexpr ComparisonName kComparisons[] = {
    {"equalto", "=="},    {"eq", "=="},      {"==", "=="}, {"ne", "!="},
    {"!=", "!="},         {"lessthan", "<"}, {"lt", "<"},  {"le", "<="},
    {"greaterthan", ">"}, {"gt", ">"},       {"ge", ">="},
};

}  // namespace

bool apply_test(Interpreter& in, std::string_view name, const Value& value, const Call& call) {
  in.budget().spend(1);
  for (const NamedTest& known : kTests) {
    if (known.name == name) return known.test(in, value, call);
  }
  for (const ComparisonName& known : kComparisons) {
    if (known.name != name) continue;
    const Value& other = required(call, name);
    if (known.op == "==" || known.op == "!=") {
      return equal(in.budget(), value, other) == (known.op == "==");
    }
    const int order = compare(in.budget(), value, other);
    if (known.op == "<") return order < 0;
    if (known.op == ">") return order > 0;
    return known.op == "<=" ? order <= 0 : order >= 0;
  }
  raise(fmt::format("No test named '{}'", name));
}

}  // namespace rudder::text::jinja
