// Value: what a template computes with, after Python: undefined, None, booleans, integers, floats,
// strings, lists and tuples, ordered dicts, namespaces, loops and callables. Everything but a
// namespace is immutable, as in the sandbox that templates are written for.
// Values live inside one render; their memory is charged to its Budget and given back with them.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::text::jinja {

// Thrown inside the interpreter and caught by ChatTemplate: it never leaves the room.
struct TemplateError {
  Error error;
};
[[noreturn]] void raise(std::string message);
[[noreturn]] void raise_limit(std::string_view what);

// What a render may still use. One a render; outlives its values.
struct Budget {
  uint64_t steps = 0;
  size_t memory = 0;
  size_t output = 0;
  int calls = 0;  // macro calls that may still be nested
  void spend(uint64_t count) {
    if (count > steps) raise_limit("steps");
    steps -= count;
  }
  // Before something of that size is made, so that a limit stops it in time.
  void check(size_t bytes) const {
    if (bytes > memory) raise_limit("memory");
  }
};

// Memory held by one value, given back on destruction.
class Charge {
 public:
  Charge(Budget& budget, size_t bytes);
  ~Charge() { budget_.memory += bytes_; }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  Budget& budget() const { return budget_; }

 private:
  Budget& budget_;
  size_t bytes_;
};

class Value;
struct MacroNode;

struct Undefined {
  std::string_view name;  // of a name in the template's source, for messages; may be empty
};
struct None {};
struct StringBox {
  StringBox(Budget& budget, std::string t)
      : charge(budget, t.capacity() + 64), text(std::move(t)) {}
  Charge charge;
  std::string text;
};
struct ListBox;
struct DictBox;
struct NamespaceBox;
struct LoopBox;
// A macro, a global function, or (self, name) for a method that is passed around.
struct Function {
  const MacroNode* macro = nullptr;
  std::string_view name;
};

// Namespaces and loops change while the template runs; everything else is constant.
template <typename Box>
using BoxPointer =
    std::conditional_t<std::is_same_v<Box, NamespaceBox> || std::is_same_v<Box, LoopBox>, Box*,
                       const Box*>;

// Is T one of the variant's alternatives?
template <typename T, typename... Ts>
constexpr bool is_alternative(const std::variant<Ts...>*) {
  return (std::is_same_v<T, Ts> || ...);
}

class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const StringBox>,
                   std::shared_ptr<const ListBox>, std::shared_ptr<const DictBox>,
                   std::shared_ptr<NamespaceBox>, std::shared_ptr<LoopBox>, Function>;
  Value() = default;
  template <typename T>
  requires(is_alternative<T>(static_cast<Data*>(nullptr)))
      // NOLINTNEXTLINE(google-explicit-constructor): a value of any kind
      Value(T value)
      : data(std::in_place_type<T>, std::move(value)) {}

  static Value string(Budget& budget, std::string text) {
    return {std::make_shared<const StringBox>(budget, std::move(text))};
  }
  static Value list(Budget& budget, std::vector<Value> items, bool tuple = false);
  static Value dict(Budget& budget, std::vector<std::pair<Value, Value>> items);
  static Value from_json(Budget& budget, const boost::json::value& json, int depth = 0);

  // The boxed alternative, or null.
  template <typename Box>
  BoxPointer<Box> get() const {
    const auto* held = std::get_if<std::shared_ptr<std::remove_pointer_t<BoxPointer<Box>>>>(&data);
    return held == nullptr ? nullptr : held->get();
  }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data); }
  bool is_none() const { return std::holds_alternative<None>(data); }
  bool is_bool() const { return std::holds_alternative<bool>(data); }
  bool is_int() const { return std::holds_alternative<int64_t>(data); }
  bool is_float() const { return std::holds_alternative<double>(data); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return get<StringBox>() != nullptr; }
  bool is_list() const { return get<ListBox>() != nullptr; }
  bool is_dict() const { return get<DictBox>() != nullptr; }

  std::string_view text() const { return get<StringBox>()->text; }
  const std::vector<Value>& items() const;                      // of a list
  const std::vector<std::pair<Value, Value>>& entries() const;  // of a dict
  const Value* find(std::string_view key) const;                // in a dict, or null
  int64_t integer() const;                                      // of a bool or an int

  Data data;
};

struct ListBox {
  ListBox(Budget& budget, std::vector<Value> i, bool t)
      : charge(budget, i.capacity() * sizeof(Value) + 64), items(std::move(i)), tuple(t) {}
  Charge charge;
  std::vector<Value> items;
  bool tuple;
};
struct DictBox {
  DictBox(Budget& budget, std::vector<std::pair<Value, Value>> e)
      : charge(budget, e.capacity() * 2 * sizeof(Value) + 64), entries(std::move(e)) {}
  Charge charge;
  std::vector<std::pair<Value, Value>> entries;
};
struct NamespaceBox {
  explicit NamespaceBox(Budget& budget) : charge(budget, 128) {}
  Charge charge;
  std::vector<std::pair<std::string, Value>> fields;
};
struct LoopBox {
  std::shared_ptr<const ListBox> items;
  size_t index = 0;
};

bool truthy(const Value& value);
bool equal(Budget& budget, const Value& a, const Value& b, int depth = 0);
// Python's ordering of numbers, strings and lists: negative, zero, positive. Raises for others.
int compare(Budget& budget, const Value& a, const Value& b, int depth = 0);
std::string_view type_name(const Value& value);           // Python's: "str", "dict"
std::string to_text(Budget& budget, const Value& value);  // str(value)
// How json.dumps is asked to write. `indent` < 0: one line.
struct JsonStyle {
  int indent = -1;
  bool sort_keys = false;
  bool ascii = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(Budget& budget, const Value& value, const JsonStyle& style);

// Code points of a string.
size_t text_length(std::string_view text);

}  // namespace rudder::text::jinja
