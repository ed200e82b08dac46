// The interpreter's expressions.
#include <fmt/format.h>

#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/depth.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/numbers.h"

namespace rudder::text::jinja {
namespace {

const Value& defined(const Value& value) {
  if (const auto* undefined = std::get_if<Undefined>(&value.data)) {
    raise(fmt::format("'{}' is undefined", undefined->name));
  }
  return value;
}

Value signed_number(const Value& value, bool negative) {
  if (!defined(value).is_number()) {
    raise(fmt::format("bad operand type for a sign: '{}'", type_name(value)));
  }
  if (negative) return negated(value);
  return value.is_bool() ? Value(value.integer()) : value;
}

}  // namespace

void Interpreter::check_running() const {
  if (here_ == nullptr) raise("not a constant");
}

Value Interpreter::evaluate(const Expr& expr) {
  const Depth depth(*this);
  switch (expr.kind) {
    case Expr::Kind::kNone:
      return None{};
    case Expr::Kind::kBool:
      return expr.boolean;
    case Expr::Kind::kInteger:
      return expr.integer;
    case Expr::Kind::kFloat:
      return expr.number;
    case Expr::Kind::kString:
      return string(expr.text);
    case Expr::Kind::kName: {
      check_running();
      const Value& value = variable(expr.variable);
      return value.is_missing() ? Value(Undefined{expr.text}) : value;
    }
    case Expr::Kind::kList:
    case Expr::Kind::kTuple:
    case Expr::Kind::kDict:
      return collection(expr);
    case Expr::Kind::kNot:
      return !truthy(evaluate(*expr.operands[0]));
    case Expr::Kind::kNegate:
    case Expr::Kind::kPlus:
      return signed_number(evaluate(*expr.operands[0]), expr.kind == Expr::Kind::kNegate);
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      Value value;
      for (const ExprPtr& operand : expr.operands) {
        value = evaluate(*operand);
        if (truthy(value) == (expr.kind == Expr::Kind::kOr)) break;
      }
      return value;
    }
    case Expr::Kind::kChain: {
      Value value = evaluate(*expr.operands[0]);
      for (size_t i = 0; i < expr.operators.size(); ++i) {
        const bool negative = static_cast<int>(i) == expr.negative_power;
        if (negative) value = negated(value);
        value = binary(expr.operators[i], value, evaluate(*expr.operands[i + 1]));
        if (negative) value = negated(value);
      }
      return value;
    }
    case Expr::Kind::kCompare:
      return compare_chain(expr);
    case Expr::Kind::kTernary:
      if (truthy(evaluate(*expr.operands[0]))) return evaluate(*expr.operands[1]);
      return expr.operands.size() > 2 ? evaluate(*expr.operands[2]) : Value();
    case Expr::Kind::kPostfix:
      return postfix_chain(expr);
  }
  return {};
}

Value Interpreter::collection(const Expr& expr) {
  if (expr.kind != Expr::Kind::kDict) {
    std::vector<Value> items;
    items.reserve(expr.operands.size());
    for (const ExprPtr& operand : expr.operands) items.push_back(evaluate(*operand));
    return expr.kind == Expr::Kind::kTuple ? tuple(std::move(items)) : list(std::move(items));
  }
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expr.operands.size(); i += 2) {
    Value key = evaluate(*expr.operands[i]);
    put(budget_, entries, std::move(key), evaluate(*expr.operands[i + 1]));
  }
  return Value::dict(budget_, std::move(entries));
}

bool Interpreter::compare_chain(const Expr& expr) {
  Value left = evaluate(*expr.operands[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    const std::string& op = expr.operators[i];
    Value right = evaluate(*expr.operands[i + 1]);
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(budget_, left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else {
      const auto order = compare(budget_, defined(left), defined(right));
      holds = op == "<"    ? std::is_lt(order)
              : op == ">"  ? std::is_gt(order)
              : op == "<=" ? std::is_lteq(order)
                           : std::is_gteq(order);
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::postfix_chain(const Expr& expr) {
  Value value = evaluate(*expr.operands[0]);
  for (size_t i = 0; i < expr.postfixes.size(); ++i) {
    const Postfix& postfix = expr.postfixes[i];
    budget_.spend(1);
    if (postfix.line > 0) line_ = postfix.line;
    // object.method(...) is one step, so that no bound method has to be made.
    if (postfix.kind == Postfix::Kind::kAttribute && i + 1 < expr.postfixes.size() &&
        expr.postfixes[i + 1].kind == Postfix::Kind::kCall) {
      check_running();
      const Method* method = find_method(value, postfix.name);
      if (method != nullptr && (method->bound != nullptr || method->free != nullptr)) {
        const Call call = evaluate(expr.postfixes[++i].arguments);
        value = call_method(*this, *method, value, call);
        continue;
      }
    }
    value = apply(value, postfix);
  }
  return value;
}

Value Interpreter::apply(const Value& base, const Postfix& postfix) {
  switch (postfix.kind) {
    case Postfix::Kind::kAttribute: {
      Value value = attribute(base, postfix.name);
      return value.is_undefined() ? Value(Undefined{postfix.name}) : value;
    }
    case Postfix::Kind::kItem:
      return item(base, evaluate(*postfix.item));
    case Postfix::Kind::kSlice:
      return slice(base, postfix);
    case Postfix::Kind::kCall:
      check_running();
      return call(base, evaluate(postfix.arguments));
    case Postfix::Kind::kFilter:
      if (postfix.filter == nullptr) raise(fmt::format("No filter named '{}'", postfix.name));
      if (postfix.filter->in_context) check_running();
      return apply_filter(*this, *postfix.filter, base, evaluate(postfix.arguments));
    case Postfix::Kind::kTest:
      if (postfix.test == nullptr) raise(fmt::format("No test named '{}'", postfix.name));
      return apply_test(*this, *postfix.test, base, evaluate(postfix.arguments)) != postfix.negated;
  }
  return {};
}

Call Interpreter::evaluate(const Arguments& arguments) {
  Call call;
  call.positional.reserve(arguments.positional.size());
  for (const ExprPtr& expr : arguments.positional) call.positional.push_back(evaluate(*expr));
  for (const auto& [name, expr] : arguments.named) call.named.emplace_back(name, evaluate(*expr));
  if (arguments.unpacked != nullptr) {
    const auto values = iterate(budget_, evaluate(*arguments.unpacked));
    for (Value value; values->next(value);) push(budget_, call.positional, std::move(value));
  }
  if (arguments.unpacked_named == nullptr) return call;
  const Value named = evaluate(*arguments.unpacked_named);
  if (!named.is_dict()) raise("argument after ** must be a mapping");
  for (const auto& [key, value] : named.entries()) {
    if (!key.is_string()) raise("keywords must be strings");
    for (const auto& [name, held] : call.named) {
      if (name == key.text()) raise(fmt::format("the argument '{}' is given twice", name));
    }
    call.named.emplace_back(key.text(), value);
  }
  return call;
}

}  // namespace rudder::text::jinja
