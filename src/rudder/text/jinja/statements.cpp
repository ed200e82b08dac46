// The interpreter's statements: output, loops, assignments, macros.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/depth.h"
#include "rudder/text/jinja/interpreter.h"

namespace rudder::text::jinja {

// Evaluates the condition in a function of its own, when the loop asks for the next value.
class Interpreter::Condition final : public Iterator {
 public:
  Condition(Interpreter& in, const Node& node, const Value& values)
      : Iterator(in.budget_, "generator", values.depth()),
        in_(in),
        node_(node),
        values_(iterate(in.budget_, values)),
        variables_(std::make_shared<Activation>(in.budget_, node.test_slots, in.here_)) {}

  bool next(Value& out) override {
    const auto caller = std::exchange(in_.here_, variables_);
    if (!std::exchange(entered_, true)) in_.enter(node_.test_frame);
    bool found = false;
    for (Value item; !found && values_->next(item);) {
      in_.assign(node_.test_target, item);
      found = truthy(in_.evaluate(*node_.condition));
      if (found) out = std::move(item);
    }
    in_.here_ = caller;
    return found;
  }

 private:
  Interpreter& in_;
  const Node& node_;
  std::shared_ptr<Iterator> values_;
  std::shared_ptr<Activation> variables_;
  bool entered_ = false;
};

Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->fields.clear();
  for (const auto& variables : captured_) variables->slots.clear();
}

Value Interpreter::make_namespace(std::vector<std::pair<Value, Value>> fields) {
  namespaces_.push_back(std::make_shared<NamespaceBox>(budget_, std::move(fields)));
  return namespaces_.back();
}

std::string Interpreter::render(const Template& source) {
  here_ = std::make_shared<Activation>(budget_, source.slots, nullptr);
  enter(source.frame);
  std::string out;
  out_ = &out;
  execute(source.body);
  return out;
}

void Interpreter::emit(std::string_view text) {
  budget_.spend(1 + text.size() / 64);
  const size_t limit = capturing_ ? budget_.memory : budget_.output;
  if (out_->size() + text.size() > limit) raise_limit(capturing_ ? "memory" : "output");
  *out_ += text;
}

// What a filter block or a call block gives.
void Interpreter::emit_string(const Value& value) {
  if (!value.is_string()) raise(fmt::format("expected a string, '{}' found", type_name(value)));
  emit(value.text());
}

Value& Interpreter::variable(SlotRef slot_ref) {
  Activation* function = here_.get();
  for (int i = 0; i < slot_ref.hops; ++i) function = function->outer.get();
  return function->slots[static_cast<size_t>(slot_ref.slot)];
}

Value Interpreter::resolve(const std::string& name) {
  for (const auto& [known, value] : globals_) {
    if (known == name) return value;
  }
  Value value = Missing{};
  if (const auto* given = context_.if_contains(name)) {
    value = Value::from_json(budget_, *given);
  } else if (is_global(name)) {
    value = std::make_shared<const CallableBox>(budget_, CallableBox::Kind::kGlobal, name, Value());
  }
  // The name of a global function is the key's, which stays where it is.
  globals_.emplace_back(name, value);
  return value;
}

void Interpreter::enter(const Frame& frame) {
  for (const Load& load : frame) {
    if (load.kind == Load::Kind::kParameter) continue;
    Value value = Missing{};
    if (load.kind == Load::Kind::kAlias) value = variable(load.from);
    if (load.kind == Load::Kind::kResolve) value = resolve(load.name);
    here_->slots[static_cast<size_t>(load.slot)] = std::move(value);
  }
}

void Interpreter::leave(const Frame& frame) {
  for (const Load& load : frame) here_->slots[static_cast<size_t>(load.slot)] = Missing{};
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  for (const Node& node : block) {
    if (const Flow flow = execute(node); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Node& node) {
  const Depth depth(*this);
  if (node.line > 0) line_ = node.line;
  switch (node.kind) {
    case Node::Kind::kText:
      emit(node.text);
      break;
    case Node::Kind::kOutput: {
      const Value value = evaluate(*node.expr);
      value.is_string() ? emit(value.text()) : emit(text(value));
      break;
    }
    case Node::Kind::kIf:
      for (const auto& [condition, body] : node.branches) {
        if (condition == nullptr || truthy(evaluate(*condition))) return execute(body);
      }
      break;
    case Node::Kind::kFor:
      return loop(node);
    case Node::Kind::kSet:
      check_namespaces(node.target);
      assign(node.target, evaluate(*node.expr));
      break;
    case Node::Kind::kSetBlock:
    case Node::Kind::kFilter:
      return filtered(node);
    case Node::Kind::kMacro:
      variable(node.variable) = make_macro(*node.macro);
      break;
    case Node::Kind::kCallBlock:
      call_block(node);
      break;
    case Node::Kind::kWith: {
      enter(node.frame);
      for (const auto& [target, expr] : node.bindings) assign(target, evaluate(*expr));
      const Flow flow = execute(node.body);
      leave(node.frame);
      return flow;
    }
    case Node::Kind::kBreak:
      return Flow::kBreak;
    case Node::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::capture(const Block& block, std::string& text) {
  std::string* const outer = std::exchange(out_, &text);
  const bool was_capturing = std::exchange(capturing_, true);
  const Flow flow = execute(block);
  out_ = outer;
  capturing_ = was_capturing;
  return flow;
}

// A set block or a filter block. Leaving a loop from inside one drops what it has so far.
Interpreter::Flow Interpreter::filtered(const Node& node) {
  enter(node.frame);
  std::string inner;
  if (const Flow flow = capture(node.body, inner); flow != Flow::kNext) return flow;
  Value value = string(std::move(inner));
  for (const Postfix& filter : node.filters) value = apply(value, filter);
  if (node.kind == Node::Kind::kSetBlock) {
    check_namespaces(node.target);
    assign(node.target, std::move(value));
  } else {
    emit_string(value);
  }
  leave(node.frame);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::loop(const Node& node) {
  const Value values = evaluate(*node.expr);
  if (!node.recursive) return run_loop(node, values, 0, nullptr);
  const auto outer = here_;
  keep(outer);
  emit(recurse(node, values, 0, outer));
  return Flow::kNext;
}

std::string Interpreter::recurse(const Node& node, const Value& values, int depth0,
                                 const std::shared_ptr<Activation>& outer) {
  if (budget_.calls == 0) raise_limit("depth");
  --budget_.calls;
  const auto caller =
      std::exchange(here_, std::make_shared<Activation>(budget_, node.function_slots, outer));
  std::string text;
  std::string* const out = std::exchange(out_, &text);
  const bool was_capturing = std::exchange(capturing_, true);
  run_loop(node, values, depth0, outer);
  out_ = out;
  capturing_ = was_capturing;
  here_ = caller;
  ++budget_.calls;
  return text;
}

Interpreter::Flow Interpreter::run_loop(const Node& node, const Value& values, int depth0,
                                        const std::shared_ptr<Activation>& outer) {
  Value source = values;
  if (node.condition != nullptr) {
    // The condition of a recursive loop is evaluated in the scope of the loop statement.
    const auto inside = outer != nullptr ? std::exchange(here_, outer) : here_;
    keep(here_);
    source = std::shared_ptr<Iterator>(std::make_shared<Condition>(*this, node, values));
    here_ = inside;
  }
  std::shared_ptr<LoopBox> state;
  std::shared_ptr<Iterator> plain;
  if (node.loop_slot >= 0) {
    state = std::make_shared<LoopBox>(budget_, source);
    state->depth0 = depth0;
    if (node.recursive) {
      state->recursive = &node;
      state->outer = outer;
    }
  } else {
    plain = iterate(budget_, source);
  }
  bool completed = false;  // some turn, to its end
  for (Value item; state != nullptr ? state->next(item) : plain->next(item);) {
    budget_.spend(1);
    enter(node.frame);
    if (state != nullptr) here_->slots[static_cast<size_t>(node.loop_slot)] = state;
    assign(node.target, std::move(item));
    const Flow flow = execute(node.body);
    if (flow == Flow::kBreak) break;
    completed |= flow == Flow::kNext;
  }
  leave(node.frame);
  if (state != nullptr)
    std::erase_if(changed_, [&](const auto& c) { return c.first == state.get(); });
  if (completed || node.otherwise.empty()) return Flow::kNext;
  enter(node.else_frame);
  const Flow flow = execute(node.otherwise);
  leave(node.else_frame);
  return flow;
}

void Interpreter::check_namespaces(const Target& target) {
  for (const Target& item : target.items) check_namespaces(item);
  if (target.field.empty() || variable(target.variable).get<NamespaceBox>() != nullptr) return;
  raise("cannot assign attribute on non-namespace object");
}

void Interpreter::assign(const Target& target, Value value) {
  if (!target.field.empty()) {
    auto* space = variable(target.variable).get<NamespaceBox>();
    if (space == nullptr) raise("cannot assign attribute on non-namespace object");
    put(budget_, space->fields, string(target.field), std::move(value));
    return;
  }
  if (!target.is_tuple) {
    variable(target.variable) = std::move(value);
    return;
  }
  const auto values = iterate(budget_, value);
  std::vector<Value> items;
  for (Value item; items.size() <= target.items.size() && values->next(item);) {
    items.push_back(std::move(item));
  }
  if (items.size() != target.items.size()) {
    raise(fmt::format("{} values to unpack (expected {})",
                      items.size() < target.items.size() ? "not enough" : "too many",
                      target.items.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) assign(target.items[i], std::move(items[i]));
}

// A macro keeps the variables around it, which may keep the macro.
void Interpreter::keep(const std::shared_ptr<Activation>& captured) {
  if (!std::exchange(captured->captured, true)) captured_.push_back(captured);
}

Value Interpreter::make_macro(const MacroNode& node) {
  keep(here_);
  auto box = std::make_shared<CallableBox>(budget_, CallableBox::Kind::kMacro, node.name, Value());
  box->macro = &node;
  box->outer = here_;
  return std::shared_ptr<const CallableBox>(std::move(box));
}

void Interpreter::call_block(const Node& node) {
  const Value caller = make_macro(*node.macro);
  if (node.expr == nullptr) return emit_string(call(caller, {}));
  const Value callee = evaluate(*node.expr);
  Call arguments = evaluate(node.arguments);
  arguments.named.emplace_back("caller", caller);
  emit_string(call(callee, std::move(arguments)));
}

// Gives the arguments to the parameters; what has no argument stays missing.
void Interpreter::bind(const MacroNode& node, Call& call, Activation& variables) {
  const size_t count = node.parameters.size();
  const auto take = [&call](std::string_view name) -> Value {
    for (auto at = call.named.begin(); at != call.named.end(); ++at) {
      if (at->first != name) continue;
      Value value = std::move(at->second);
      call.named.erase(at);
      return value;
    }
    return Missing{};
  };
  const auto slot = [&variables](int index) -> Value& {
    return variables.slots[static_cast<size_t>(index)];
  };
  bool caller_given = call.positional.size() >= count && node.names_caller;
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = node.parameters[i].first;
    if (i >= call.positional.size() && name == "caller") caller_given = true;
    slot(node.parameter_slots[i]) = i < call.positional.size() ? call.positional[i] : take(name);
  }
  if (node.takes_caller && !caller_given) {
    if (node.caller_slot < 0) raise("the argument 'caller' is given by its position");
    Value caller = take("caller");
    const bool none = caller.is_missing() || caller.is_none();
    slot(node.caller_slot) = none ? Value(Undefined{"caller"}) : caller;
  }
  if (node.kwargs_slot >= 0) {
    std::vector<std::pair<Value, Value>> named;
    named.reserve(call.named.size());
    for (auto& [name, value] : call.named) named.emplace_back(string(name), std::move(value));
    slot(node.kwargs_slot) = Value::dict(budget_, std::move(named));
  } else if (!call.named.empty()) {
    raise(fmt::format("macro '{}' takes no keyword argument '{}'", node.name,
                      call.named.front().first));
  }
  const size_t given = std::min(count, call.positional.size());
  if (node.varargs_slot >= 0) {
    slot(node.varargs_slot) =
        tuple({call.positional.begin() + static_cast<ptrdiff_t>(given), call.positional.end()});
  } else if (call.positional.size() > count) {
    raise(fmt::format("macro '{}' takes not more than {} arguments", node.name, count));
  }
}

Value Interpreter::call_macro(const CallableBox& macro, Call call) {
  if (budget_.calls == 0) raise_limit("depth");
  --budget_.calls;
  const MacroNode& node = *macro.macro;
  const auto variables = std::make_shared<Activation>(budget_, node.slots, macro.outer);
  bind(node, call, *variables);
  const auto caller = std::exchange(here_, variables);
  const int line = line_;
  enter(node.frame);
  for (size_t i = 0; i < node.parameters.size(); ++i) {
    const auto& [name, fallback] = node.parameters[i];
    const auto slot = static_cast<size_t>(node.parameter_slots[i]);
    if (!variables->slots[slot].is_missing()) continue;
    Value value = fallback != nullptr ? evaluate(*fallback) : Value(Undefined{name});
    variables->slots[slot] = std::move(value);
  }
  std::string text;
  capture(node.body, text);
  here_ = caller;
  line_ = line;
  ++budget_.calls;
  // What nothing but the list of captured variables keeps is of no use any more.
  while (!captured_.empty() &&
         captured_.back().use_count() == (captured_.back() == variables ? 2 : 1)) {
    captured_.pop_back();
  }
  return string(std::move(text));
}

bool Interpreter::changed(const LoopBox& loop, Value value) {
  for (auto& [known, last] : changed_) {
    if (known != &loop) continue;
    if (equal(budget_, last, value)) return false;
    last = std::move(value);
    return true;
  }
  changed_.emplace_back(&loop, std::move(value));
  return true;
}

Value Interpreter::call(const Value& callee, Call call) {
  if (auto* loop = callee.get<LoopBox>()) {
    const Args args({"iterable", 1}, call, "loop()");
    if (loop->recursive == nullptr) raise("the loop must be recursive to be called");
    const Depth depth(*this);
    const auto outer = loop->outer;
    return string(recurse(*loop->recursive, args[0], loop->depth0 + 1, outer));
  }
  if (auto* helper = callee.get<HelperBox>();
      helper != nullptr && helper->kind == HelperBox::Kind::kJoiner) {
    const Args args({}, call, "joiner()");
    return std::exchange(helper->used, true) ? helper->items : string("");
  }
  const auto* box = callee.get<CallableBox>();
  if (box == nullptr) {
    if (const auto* undefined = std::get_if<Undefined>(&callee.data)) {
      raise(fmt::format("'{}' is undefined", undefined->name));
    }
    raise(fmt::format("'{}' object is not callable", type_name(callee)));
  }
  const Depth depth(*this);
  // Held for as long as it runs: a call may overwrite the variable it came from.
  const auto held = std::get<std::shared_ptr<const CallableBox>>(callee.data);
  if (held->kind == CallableBox::Kind::kMacro) return call_macro(*held, std::move(call));
  if (held->kind == CallableBox::Kind::kMethod) {
    return call_method(*this, *held->method, held->self, call);
  }
  return call_global(*this, held->name, call);
}

}  // namespace rudder::text::jinja
