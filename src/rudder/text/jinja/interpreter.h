// Interpreter: one render of a template, by walking its tree. Throws TemplateError, which
// ChatTemplate turns into an Error. One object a render; not shared between threads.
#pragma once

#include <boost/json/fwd.hpp>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/text/jinja/ast.h"
#include "rudder/text/jinja/value.h"

namespace rudder::text::jinja {

// Evaluated arguments of a call, a filter or a test.
struct Call {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
  // By position or by name; null if it was not given.
  const Value* find(size_t position, std::string_view name) const;
  Value get(size_t position, std::string_view name, const Value& fallback) const;
};

// What a loop runs over. Holds the values itself, so that a range-for over a temporary is safe.
struct Items {
  std::shared_ptr<const ListBox> box;
  auto begin() const { return box->items.begin(); }
  auto end() const { return box->items.end(); }
  bool empty() const { return box->items.empty(); }
  size_t size() const { return box->items.size(); }
  const Value& operator[](size_t i) const { return box->items[i]; }
  const Value& front() const { return box->items.front(); }
  const Value& back() const { return box->items.back(); }
  std::vector<Value> copy() const { return box->items; }
};

class Interpreter {
 public:
  Interpreter(Budget& budget, std::chrono::system_clock::time_point now)
      : budget_(budget), now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string render(const Block& body, const boost::json::object& context);

  Budget& budget() { return budget_; }
  std::chrono::system_clock::time_point now() const { return now_; }
  int line() const { return line_; }  // of the source, for errors

  Value string(std::string text) { return Value::string(budget_, std::move(text)); }
  Value make_namespace();
  // List items, dict keys, characters; nothing for undefined. Raises for others.
  Items iterate(const Value& value);
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  bool contains(const Value& container, const Value& value);
  Value binary(std::string_view op, const Value& left, const Value& right);

 private:
  struct Scope {
    Scope* parent = nullptr;
    std::vector<std::pair<std::string_view, Value>> names;
    void set(std::string_view name, Value value);
    const Value* find(std::string_view name) const;
  };
  enum class Flow { kNext, kBreak, kContinue };
  struct Frame;  // bounds the recursion

  Flow execute(const Block& block, Scope& scope);
  Flow execute(const Node& node, Scope& scope);
  Flow loop(const Node& node, Scope& scope);
  void assign(const Target& target, Value value, Scope& scope);
  std::string capture(const Block& block, Scope& scope);
  void emit(std::string_view text);

  Value evaluate(const Expr& expr, Scope& scope);
  Value collection(const Expr& expr, Scope& scope);
  Value name(const Expr& expr, Scope& scope);
  Value compare_chain(const Expr& expr, Scope& scope);
  Value postfix_chain(const Expr& expr, Scope& scope);
  Value apply(const Value& base, const Postfix& postfix, Scope& scope);
  Value slice(const Value& base, const Postfix& postfix, Scope& scope);
  Value call(const Value& callee, const Arguments& arguments, Scope& scope);
  Value call_macro(const MacroNode& macro, const Call& call);
  Call evaluate(const Arguments& arguments, Scope& scope);

  Budget& budget_;
  std::chrono::system_clock::time_point now_;
  Scope root_;
  std::vector<std::shared_ptr<NamespaceBox>> namespaces_;
  std::string* out_ = nullptr;
  bool capturing_ = false;
  int frames_ = 0;
  int line_ = 0;
};

// filters.cpp, tests.cpp, methods.cpp: raise for an unknown name.
Value apply_filter(Interpreter& in, std::string_view name, const Value& value, const Call& call);
bool apply_test(Interpreter& in, std::string_view name, const Value& value, const Call& call);
bool has_method(const Value& object, std::string_view name);
Value call_method(Interpreter& in, const Value& object, std::string_view name, const Call& call);
bool is_global(std::string_view name);
Value call_global(Interpreter& in, std::string_view name, const Call& call);

}  // namespace rudder::text::jinja
