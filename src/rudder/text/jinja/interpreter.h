// Interpreter: one render of a template, by walking its tree. Throws TemplateError, which
// ChatTemplate turns into an Error. One object a render; not shared between threads.
#pragma once

#include <boost/json/fwd.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/text/jinja/arguments.h"
#include "rudder/text/jinja/objects.h"
#include "rudder/text/jinja/parser.h"
#include "rudder/text/jinja/value.h"

namespace rudder::text::jinja {

class Interpreter {
 public:
  // `context` is the global scope; it outlives the interpreter.
  Interpreter(Budget& budget, const boost::json::object& context,
              std::chrono::system_clock::time_point now)
      : budget_(budget), context_(context), now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string render(const Template& source);
  // Outside a render, of what needs no variables: raises if it turns out to.
  Value constant(const Expr& expr) { return evaluate(expr); }

  Budget& budget() { return budget_; }
  std::chrono::system_clock::time_point now() const { return now_; }
  int line() const { return line_; }  // of the source, for errors

  // For the filters, tests, methods and global functions.
  Value string(std::string text, bool markup = false) {
    return Value::string(budget_, std::move(text), markup);
  }
  Value list(std::vector<Value> items) { return Value::list(budget_, std::move(items)); }
  Value tuple(std::vector<Value> items) { return Value::tuple(budget_, std::move(items)); }
  std::string text(const Value& value) { return to_text(budget_, value); }
  Value make_namespace(std::vector<std::pair<Value, Value>> fields);
  Value attribute(const Value& object, std::string_view name);  // object.name
  Value item(const Value& object, const Value& key);            // object[key]
  bool contains(const Value& container, const Value& value);    // value in container
  Value binary(std::string_view op, const Value& left, const Value& right);
  Value call(const Value& callee, Call call);
  bool changed(const LoopBox& loop, Value value);  // since the last time; loop.changed()

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Depth;      // bounds the recursion
  class Condition;  // the values of a loop that its condition lets through

  // statements.cpp
  Flow execute(const Block& block);
  Flow execute(const Node& node);
  Flow capture(const Block& block, std::string& text);
  Flow filtered(const Node& node);
  Flow loop(const Node& node);
  Flow run_loop(const Node& node, const Value& values, int depth0,
                const std::shared_ptr<Activation>& outer);
  std::string recurse(const Node& node, const Value& values, int depth0,
                      const std::shared_ptr<Activation>& outer);
  void call_block(const Node& node);
  void enter(const Frame& frame);
  void leave(const Frame& frame);
  void check_namespaces(const Target& target);
  void assign(const Target& target, Value value);
  void emit(std::string_view text);
  void emit_string(const Value& value);
  void keep(const std::shared_ptr<Activation>& captured);
  Value make_macro(const MacroNode& node);
  Value call_macro(const CallableBox& macro, Call call);
  void bind(const MacroNode& node, Call& call, Activation& variables);
  void check_running() const;  // raises while it computes a constant
  Value& variable(SlotRef slot_ref);
  Value resolve(const std::string& name);

  // evaluate.cpp
  Value evaluate(const Expr& expr);
  Value collection(const Expr& expr);
  bool compare_chain(const Expr& expr);
  Value postfix_chain(const Expr& expr);
  Value apply(const Value& base, const Postfix& postfix);
  Value slice(const Value& base, const Postfix& postfix);
  Call evaluate(const Arguments& arguments);

  Budget& budget_;
  const boost::json::object& context_;
  std::chrono::system_clock::time_point now_;
  std::vector<std::pair<std::string, Value>> globals_;  // that were read
  std::shared_ptr<Activation> here_;
  // What may hold itself, directly or through another: taken apart at the end.
  std::vector<std::shared_ptr<NamespaceBox>> namespaces_;
  std::vector<std::shared_ptr<Activation>> captured_;
  // The last values of loop.changed(), which may hold their loop.
  std::vector<std::pair<const LoopBox*, Value>> changed_;
  std::string* out_ = nullptr;
  bool capturing_ = false;
  int depth_ = 0;
  int line_ = 0;
};

}  // namespace rudder::text::jinja
