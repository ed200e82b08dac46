#include "rudder/text/jinja/interpreter.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>

#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

// Nested evaluations of any kind: keeps the machine stack under about 1 MB.
constexpr int kMaxFrames = 800;

}  // namespace

struct Interpreter::Frame {
  explicit Frame(Interpreter& i) : in(i) {
    in.budget_.spend(1);
    if (++in.frames_ > kMaxFrames) {
      --in.frames_;
      raise_limit("depth");
    }
  }
  ~Frame() { --in.frames_; }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  Interpreter& in;
};

Interpreter::~Interpreter() {
  // A namespace can hold itself, directly or through another.
  for (const auto& space : namespaces_) space->fields.clear();
}

Value Interpreter::make_namespace() {
  namespaces_.push_back(std::make_shared<NamespaceBox>(budget_));
  return namespaces_.back();
}

const Value* Call::find(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value Call::get(size_t position, std::string_view name, const Value& fallback) const {
  const Value* given = find(position, name);
  return given != nullptr ? *given : fallback;
}

void Interpreter::Scope::set(std::string_view name, Value value) {
  for (auto& [key, held] : names) {
    if (key == name) {
      held = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

const Value* Interpreter::Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [key, value] : scope->names) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

std::string Interpreter::render(const Block& body, const boost::json::object& context) {
  Scope globals;
  for (const auto& [key, value] : context) {
    globals.set(key, Value::from_json(budget_, value));
  }
  root_.parent = &globals;
  std::string out;
  out_ = &out;
  execute(body, root_);
  root_.names.clear();
  root_.parent = nullptr;
  return out;
}

void Interpreter::emit(std::string_view text) {
  budget_.spend(1 + text.size() / 64);
  const size_t limit = capturing_ ? budget_.memory : budget_.output;
  if (out_->size() + text.size() > limit) raise_limit(capturing_ ? "memory" : "output");
  *out_ += text;
}

Interpreter::Flow Interpreter::execute(const Block& block, Scope& scope) {
  for (const Node& node : block) {
    if (const Flow flow = execute(node, scope); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Node& node, Scope& scope) {
  const Frame frame(*this);
  if (node.line > 0) line_ = node.line;
  switch (node.kind) {
    case Node::Kind::kText:
      emit(node.text);
      break;
    case Node::Kind::kOutput: {
      const Value value = evaluate(*node.expr, scope);
      if (value.is_string()) {
        emit(value.text());
      } else {
        emit(to_text(budget_, value));
      }
      break;
    }
    case Node::Kind::kIf:
      for (const auto& [condition, body] : node.branches) {
        if (condition == nullptr || truthy(evaluate(*condition, scope))) {
          return execute(body, scope);
        }
      }
      break;
    case Node::Kind::kFor:
      return loop(node, scope);
    case Node::Kind::kSet:
      assign(node.target, evaluate(*node.expr, scope), scope);
      break;
    case Node::Kind::kSetBlock:
    case Node::Kind::kFilter: {
      Scope inner{&scope, {}};
      Value value = string(capture(node.body, inner));
      for (const Postfix& filter : node.filters) value = apply(value, filter, scope);
      if (node.kind == Node::Kind::kSetBlock) {
        assign(node.target, std::move(value), scope);
      } else {
        emit(to_text(budget_, value));
      }
      break;
    }
    case Node::Kind::kMacro:
      scope.set(node.macro->name, Function{node.macro.get(), node.macro->name});
      break;
    case Node::Kind::kScope: {
      Scope inner{&scope, {}};
      for (const auto& [target, expr] : node.bindings)
        assign(target, evaluate(*expr, scope), inner);
      return execute(node.body, inner);
    }
    case Node::Kind::kBreak:
      return Flow::kBreak;
    case Node::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::loop(const Node& node, Scope& scope) {
  Items items = iterate(evaluate(*node.expr, scope));
  if (node.condition != nullptr) {
    std::vector<Value> kept;
    for (const Value& value : items) {
      Scope inner{&scope, {}};
      assign(node.target, value, inner);
      if (truthy(evaluate(*node.condition, inner))) kept.push_back(value);
    }
    items.box = std::make_shared<const ListBox>(budget_, std::move(kept), false);
  }
  if (items.empty()) return execute(node.otherwise, scope);
  auto state = std::make_shared<LoopBox>(LoopBox{items.box, 0});
  Scope inner{&scope, {}};
  for (; state->index < items.size(); ++state->index) {
    budget_.spend(1);
    inner.names.clear();
    inner.set("loop", state);
    assign(node.target, items[state->index], inner);
    if (execute(node.body, inner) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Interpreter::assign(const Target& target, Value value, Scope& scope) {
  if (!target.field.empty()) {
    const Value* held = scope.find(target.names[0]);
    NamespaceBox* space = held != nullptr ? held->get<NamespaceBox>() : nullptr;
    if (space == nullptr) raise("cannot assign attribute on non-namespace object");
    auto& fields = space->fields;
    for (auto& [name, field] : fields) {
      if (name == target.field) {
        field = std::move(value);
        return;
      }
    }
    fields.emplace_back(target.field, std::move(value));
    return;
  }
  if (!target.unpacks) {
    scope.set(target.names[0], std::move(value));
    return;
  }
  const Items items = iterate(value);
  if (items.size() != target.names.size()) {
    raise(fmt::format("cannot unpack {} values into {} names", items.size(), target.names.size()));
  }
  for (size_t i = 0; i < target.names.size(); ++i) scope.set(target.names[i], items[i]);
}

std::string Interpreter::capture(const Block& block, Scope& scope) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  const bool was_capturing = std::exchange(capturing_, true);
  execute(block, scope);
  out_ = outer;
  capturing_ = was_capturing;
  return text;
}

Value Interpreter::evaluate(const Expr& expr, Scope& scope) {
  const Frame frame(*this);
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
    case Expr::Kind::kName:
      return name(expr, scope);
    case Expr::Kind::kList:
    case Expr::Kind::kTuple:
    case Expr::Kind::kDict:
      return collection(expr, scope);
    case Expr::Kind::kNot:
      return !truthy(evaluate(*expr.operands[0], scope));
    case Expr::Kind::kNegate:
      return binary("-", int64_t{0}, evaluate(*expr.operands[0], scope));
    case Expr::Kind::kPlus:
      return binary("+", int64_t{0}, evaluate(*expr.operands[0], scope));
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      Value value;
      for (const ExprPtr& operand : expr.operands) {
        value = evaluate(*operand, scope);
        if (truthy(value) == (expr.kind == Expr::Kind::kOr)) break;
      }
      return value;
    }
    case Expr::Kind::kChain: {
      Value value = evaluate(*expr.operands[0], scope);
      for (size_t i = 0; i < expr.operators.size(); ++i) {
        value = binary(expr.operators[i], value, evaluate(*expr.operands[i + 1], scope));
      }
      return value;
    }
    case Expr::Kind::kCompare:
      return compare_chain(expr, scope);
    case Expr::Kind::kTernary:
      if (truthy(evaluate(*expr.operands[0], scope))) return evaluate(*expr.operands[1], scope);
      return expr.operands.size() > 2 ? evaluate(*expr.operands[2], scope) : Value();
    case Expr::Kind::kPostfix:
      return postfix_chain(expr, scope);
  }
  return {};
}

Value Interpreter::collection(const Expr& expr, Scope& scope) {
  if (expr.kind != Expr::Kind::kDict) {
    std::vector<Value> items;
    for (const ExprPtr& operand : expr.operands) items.push_back(evaluate(*operand, scope));
    return Value::list(budget_, std::move(items), expr.kind == Expr::Kind::kTuple);
  }
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expr.operands.size(); i += 2) {
    Value key = evaluate(*expr.operands[i], scope);
    Value value = evaluate(*expr.operands[i + 1], scope);
    bool replaced = false;
    for (auto& [known, held] : entries) {
      if (equal(budget_, known, key)) {
        held = value;
        replaced = true;
      }
    }
    if (!replaced) entries.emplace_back(std::move(key), std::move(value));
  }
  return Value::dict(budget_, std::move(entries));
}

Value Interpreter::name(const Expr& expr, Scope& scope) {
  if (const Value* value = scope.find(expr.text)) return *value;
  if (is_global(expr.text)) return Function{nullptr, expr.text};
  return Undefined{expr.text};
}

Value Interpreter::compare_chain(const Expr& expr, Scope& scope) {
  Value left = evaluate(*expr.operands[0], scope);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    const std::string& op = expr.operators[i];
    Value right = evaluate(*expr.operands[i + 1], scope);
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(budget_, left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else {
      const int order = compare(budget_, left, right);
      holds = op == "<" ? order < 0 : op == ">" ? order > 0 : op == "<=" ? order <= 0 : order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::postfix_chain(const Expr& expr, Scope& scope) {
  Value value = evaluate(*expr.operands[0], scope);
  for (size_t i = 0; i < expr.postfixes.size(); ++i) {
    const Postfix& postfix = expr.postfixes[i];
    budget_.spend(1);
    // object.method(...) is one step, so that no bound method has to be made.
    if (postfix.kind == Postfix::Kind::kAttribute && i + 1 < expr.postfixes.size() &&
        expr.postfixes[i + 1].kind == Postfix::Kind::kCall && has_method(value, postfix.name)) {
      value =
          call_method(*this, value, postfix.name, evaluate(expr.postfixes[++i].arguments, scope));
    } else {
      value = apply(value, postfix, scope);
    }
  }
  return value;
}

Value Interpreter::apply(const Value& base, const Postfix& postfix, Scope& scope) {
  switch (postfix.kind) {
    case Postfix::Kind::kAttribute:
      if (has_method(base, postfix.name)) return Function{nullptr, postfix.name};
      {
        Value value = attribute(base, postfix.name);
        return value.is_undefined() ? Value(Undefined{postfix.name}) : value;
      }
    case Postfix::Kind::kItem:
      return item(base, evaluate(*postfix.item, scope));
    case Postfix::Kind::kSlice:
      return slice(base, postfix, scope);
    case Postfix::Kind::kCall:
      return call(base, postfix.arguments, scope);
    case Postfix::Kind::kFilter:
      return apply_filter(*this, postfix.name, base, evaluate(postfix.arguments, scope));
    case Postfix::Kind::kTest:
      return apply_test(*this, postfix.name, base, evaluate(postfix.arguments, scope)) !=
             postfix.negated;
  }
  return {};
}

Call Interpreter::evaluate(const Arguments& arguments, Scope& scope) {
  Call call;
  for (const ExprPtr& expr : arguments.positional)
    call.positional.push_back(evaluate(*expr, scope));
  for (const auto& [name, expr] : arguments.named) {
    call.named.emplace_back(name, evaluate(*expr, scope));
  }
  return call;
}

Value Interpreter::call(const Value& callee, const Arguments& arguments, Scope& scope) {
  const auto* function = std::get_if<Function>(&callee.data);
  if (function == nullptr) {
    if (const auto* undefined = std::get_if<Undefined>(&callee.data)) {
      raise(fmt::format("'{}' is undefined", undefined->name));
    }
    raise(fmt::format("'{}' object is not callable", type_name(callee)));
  }
  const Call evaluated = evaluate(arguments, scope);
  if (function->macro != nullptr) return call_macro(*function->macro, evaluated);
  return call_global(*this, function->name, evaluated);
}

Value Interpreter::call_macro(const MacroNode& macro, const Call& call) {
  if (call.positional.size() > macro.parameters.size()) {
    raise(fmt::format("macro '{}' takes not more than {} arguments", macro.name,
                      macro.parameters.size()));
  }
  if (budget_.calls == 0) raise_limit("depth");
  --budget_.calls;
  Scope scope{&root_, {}};
  size_t used = call.positional.size();
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, fallback] = macro.parameters[i];
    if (const Value* given = call.find(i, name)) {
      if (i >= call.positional.size()) ++used;
      scope.set(name, *given);
    } else {
      scope.set(name, fallback != nullptr ? evaluate(*fallback, scope) : Value(Undefined{name}));
    }
  }
  if (used != call.positional.size() + call.named.size()) {
    raise(fmt::format("macro '{}' got an argument that it does not take", macro.name));
  }
  const int line = line_;
  Value text = string(capture(macro.body, scope));
  line_ = line;
  ++budget_.calls;
  return text;
}

}  // namespace rudder::text::jinja
