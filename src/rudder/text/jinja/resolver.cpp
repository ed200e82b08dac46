#include "rudder/text/jinja/resolver.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <optional>

#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/symbols.h"

namespace rudder::text::jinja {
namespace {

// Where a node stands: its frame, its function, and whether an unknown filter is only found out
// when it is used (inside an if).
struct Scope {
  Symbols& symbols;
  FunctionScope& function;
  bool soft = false;
};

// Of an expression that the reference computes at load.
std::optional<bool> constant_truth(const Expr& expr) {
  Budget budget{10'000, size_t{1} << 20, size_t{1} << 20, 0};
  const boost::json::object nothing;
  Interpreter in(budget, nothing, {});
  try {
    return truthy(in.constant(expr));
  } catch (const TemplateError&) {
    return std::nullopt;
  }
}

// The reference writes a constant base without brackets, so that Python, for which a power binds
// tighter than a sign, gives -(3 ** n) for (-3) ** n where n is no constant. Which power of the
// chain that is, or -1.
int power_of_negative(const Expr& chain) {
  Budget budget{10'000, size_t{1} << 20, size_t{1} << 20, 0};
  const boost::json::object nothing;
  Interpreter in(budget, nothing, {});
  const auto constant = [&in](const Expr& expr) -> std::optional<Value> {
    try {
      return in.constant(expr);
    } catch (const TemplateError&) {
      return std::nullopt;
    }
  };
  std::optional<Value> base = constant(*chain.operands[0]);
  for (size_t i = 1; base && i < chain.operands.size(); ++i) {
    const std::optional<Value> exponent = constant(*chain.operands[i]);
    if (!exponent) {
      const bool negative = (base->is_int() && base->integer() < 0) ||
                            (base->is_float() && std::signbit(base->number()));
      return negative ? static_cast<int>(i) - 1 : -1;
    }
    try {
      base = in.binary("**", *base, *exponent);
    } catch (const TemplateError&) {
      return -1;
    }
  }
  return -1;
}

class Resolver {
 public:
  Result<void> run(Template& parsed) {
    if (parsed.names.contains("self") && find_reads(parsed.body, {"self"}).contains("self")) {
      return fail(ErrorCode::kUnsupported,
                  "chat template: the variable 'self' is not in the "
                  "supported subset of Jinja");
    }
    Symbols symbols;
    FunctionScope function;
    symbols.analyze(parsed.body);
    parsed.frame = symbols.frame(function);
    RUDDER_TRY_VOID(block(parsed.body, {symbols, function}));
    parsed.slots = static_cast<int>(function.slots.size());
    return {};
  }

 private:
  static tl::unexpected<Error> error(std::string_view what, int line) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("chat template: {}", what),
                fmt::format("line {}", line));
  }

  Result<void> block(Block& nodes, const Scope& scope) {
    for (Node& node : nodes) RUDDER_TRY_VOID(statement(node, scope));
    return {};
  }

  Result<void> statement(Node& node, const Scope& scope) {
    switch (node.kind) {
      case Node::Kind::kOutput:
        return expression(*node.expr, scope);
      case Node::Kind::kIf:
        for (auto& [condition, body] : node.branches) {
          const Scope inside{scope.symbols, scope.function, true};
          if (condition != nullptr) RUDDER_TRY_VOID(expression(*condition, inside));
          RUDDER_TRY_VOID(block(body, inside));
        }
        return {};
      case Node::Kind::kFor:
        return loop(node, scope);
      case Node::Kind::kSet:
        RUDDER_TRY_VOID(target(node.target, scope, node.line));
        return expression(*node.expr, scope);
      case Node::Kind::kSetBlock:
      case Node::Kind::kFilter: {
        Symbols inner(&scope.symbols);
        inner.analyze(node.body);
        if (node.kind == Node::Kind::kFilter) {
          for (const Postfix& filter : node.filters) inner.analyze(filter.arguments);
        } else {
          RUDDER_TRY_VOID(target(node.target, scope, node.line));
        }
        const Scope inside{inner, scope.function};
        node.frame = inner.frame(scope.function);
        RUDDER_TRY_VOID(block(node.body, inside));
        for (Postfix& filter : node.filters) RUDDER_TRY_VOID(postfix(filter, inside));
        return {};
      }
      case Node::Kind::kMacro:
        RUDDER_TRY_VOID(macro(*node.macro, scope));
        return variable(node.macro->name, scope, node.variable, node.line);
      case Node::Kind::kCallBlock:
        RUDDER_TRY_VOID(macro(*node.macro, scope));
        if (node.expr != nullptr) RUDDER_TRY_VOID(expression(*node.expr, scope));
        return arguments(node.arguments, scope);
      case Node::Kind::kWith:
        return with(node, scope);
      case Node::Kind::kText:
      case Node::Kind::kBreak:
      case Node::Kind::kContinue:
        break;
    }
    return {};
  }

  Result<void> with(Node& node, const Scope& scope) {
    Symbols inner(&scope.symbols);
    for (const auto& [bound, value] : node.bindings) inner.analyze(bound, true);
    inner.analyze(node.body);
    const Scope inside{inner, scope.function};
    node.frame = inner.frame(scope.function);
    for (auto& [bound, value] : node.bindings) {
      RUDDER_TRY_VOID(target(bound, inside, node.line));
      RUDDER_TRY_VOID(expression(*value, scope));
    }
    return block(node.body, inside);
  }

  Result<void> loop(Node& node, const Scope& scope) {
    if (assigns(node.target, "loop") || assigns(node.body, "loop") ||
        assigns(node.otherwise, "loop")) {
      return error("'loop' cannot be assigned to in a loop", node.line);
    }
    RUDDER_TRY_VOID(expression(*node.expr, scope));
    Symbols body(&scope.symbols), otherwise(&scope.symbols), test(&scope.symbols);
    FunctionScope own{body.level(), &scope.function, {}};
    FunctionScope condition{body.level(), &scope.function, {}};
    FunctionScope& function = node.recursive ? own : scope.function;
    if (node.recursive || find_reads(node.body, {"loop"}).contains("loop")) {
      body.declare_parameter("loop");
      node.loop_slot = function.locate(body.level(), "loop").slot;
    }
    body.analyze(node.target, true);
    body.analyze(node.body);
    otherwise.analyze(node.otherwise);
    if (node.condition != nullptr) {
      test.analyze(node.target, true);
      test.analyze(*node.condition);
      node.test_frame = test.frame(condition);
      node.test_target = copy(node.target);
      RUDDER_TRY_VOID(target(node.test_target, {test, condition}, node.line));
      RUDDER_TRY_VOID(expression(*node.condition, {test, condition}));
      node.test_slots = static_cast<int>(condition.slots.size());
    }
    RUDDER_TRY_VOID(target(node.target, {body, function}, node.line));
    node.frame = body.frame(function);
    RUDDER_TRY_VOID(block(node.body, {body, function}));
    node.else_frame = otherwise.frame(function);
    RUDDER_TRY_VOID(block(node.otherwise, {otherwise, function}));
    node.function_slots = static_cast<int>(own.slots.size());
    return {};
  }

  static Target copy(const Target& from) {
    Target to;
    to.name = from.name;
    to.is_tuple = from.is_tuple;
    for (const Target& item : from.items) to.items.push_back(copy(item));
    return to;
  }

  Result<void> macro(MacroNode& node, const Scope& scope) {
    Symbols symbols(&scope.symbols);
    FunctionScope function{symbols.level(), &scope.function, {}};
    const auto slot = [&](const std::string& name) {
      symbols.declare_parameter(name);
      return function.locate(symbols.level(), name).slot;
    };
    std::set<std::string> special = {"caller", "kwargs", "varargs"};
    for (const auto& [name, value] : node.parameters) {
      node.parameter_slots.push_back(slot(name));
      if (name == "kwargs" || name == "varargs") special.erase(name);
      if (name != "caller") continue;
      node.names_caller = true;
      if (value == nullptr && find_reads(node.body, {"caller"}).contains("caller")) {
        return error("the parameter 'caller' must be left out or have a default", node.line);
      }
    }
    for (const std::string& name : find_reads(node.body, {"caller", "kwargs", "varargs"})) {
      if (name == "caller") node.takes_caller = true;
      if (!special.contains(name) || (name == "caller" && node.names_caller)) continue;
      (name == "caller"   ? node.caller_slot
       : name == "kwargs" ? node.kwargs_slot
                          : node.varargs_slot) = slot(name);
    }
    const Scope inside{symbols, function};
    for (const auto& [name, value] : node.parameters) {
      if (value != nullptr) symbols.analyze(*value);
    }
    symbols.analyze(node.body);
    node.frame = symbols.frame(function);
    for (auto& [name, value] : node.parameters) {
      if (value != nullptr) RUDDER_TRY_VOID(expression(*value, inside));
    }
    RUDDER_TRY_VOID(block(node.body, inside));
    node.slots = static_cast<int>(function.slots.size());
    return {};
  }

  static Result<void> variable(const std::string& name, const Scope& scope, SlotRef& out,
                               int line) {
    const auto level = scope.symbols.find(name);
    // The filter of a set block is the one node whose names the reference overlooks.
    if (!level) return error(fmt::format("'{}' is not known here", name), line);
    out = scope.function.locate(*level, name);
    return {};
  }

  static Result<void> target(Target& node, const Scope& scope, int line) {
    for (Target& item : node.items) RUDDER_TRY_VOID(target(item, scope, line));
    if (node.is_tuple) return {};
    return variable(node.name, scope, node.variable, line);
  }

  Result<void> arguments(Arguments& node, const Scope& scope) {
    for (const ExprPtr& expr : node.positional) RUDDER_TRY_VOID(expression(*expr, scope));
    for (const auto& [name, expr] : node.named) RUDDER_TRY_VOID(expression(*expr, scope));
    for (const ExprPtr* expr : {&node.unpacked, &node.unpacked_named}) {
      if (*expr != nullptr) RUDDER_TRY_VOID(expression(**expr, scope));
    }
    return {};
  }

  Result<void> postfix(Postfix& node, const Scope& scope) {
    for (const ExprPtr* expr : {&node.item, &node.begin, &node.end, &node.step}) {
      if (*expr != nullptr) RUDDER_TRY_VOID(expression(**expr, scope));
    }
    if (node.kind == Postfix::Kind::kFilter) {
      node.filter = find_filter(node.name);
      if (node.filter == nullptr && !scope.soft) {
        return error(fmt::format("No filter named '{}'", node.name), node.line);
      }
    } else if (node.kind == Postfix::Kind::kTest) {
      node.test = find_test(node.name);
      if (node.test == nullptr && !scope.soft) {
        return error(fmt::format("No test named '{}'", node.name), node.line);
      }
    }
    return arguments(node.arguments, scope);
  }

  Result<void> expression(Expr& expr, const Scope& scope) {
    if (expr.kind == Expr::Kind::kName) return variable(expr.text, scope, expr.variable, expr.line);
    Scope inside{scope.symbols, scope.function, scope.soft || expr.kind == Expr::Kind::kTernary};
    for (const ExprPtr& operand : expr.operands) {
      RUDDER_TRY_VOID(expression(*operand, inside));
      // The reference computes constants at load, and never looks at what they decide against.
      const bool decides = expr.kind == Expr::Kind::kOr || expr.kind == Expr::Kind::kAnd;
      if (!decides || inside.soft) continue;
      inside.soft = constant_truth(*operand) == (expr.kind == Expr::Kind::kOr);
    }
    for (Postfix& node : expr.postfixes) RUDDER_TRY_VOID(postfix(node, inside));
    if (expr.kind == Expr::Kind::kChain && expr.operators[0] == "**") {
      expr.negative_power = power_of_negative(expr);
    }
    return {};
  }
};

}  // namespace

Result<void> resolve(Template& parsed) {
  return Resolver().run(parsed);
}

}  // namespace rudder::text::jinja
