// Value: what a template computes with, after Python: undefined, None, booleans, integers, floats,
// strings, lists and tuples, dicts in their order, ranges and views, iterators, namespaces, loops
// and callables. Everything but namespaces, loops, iterators and helpers is immutable, as in the
// sandbox that templates are written for.
// Values live inside one render; their memory is charged to its Budget and given back with them.
#pragma once

#include <boost/json/fwd.hpp>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "rudder/text/jinja/budget.h"

namespace rudder::text::jinja {

class Iterator;
class Value;
struct CallableBox;
struct DictBox;
struct HelperBox;
struct ListBox;
struct LoopBox;
struct NamespaceBox;
struct RangeBox;
struct StringBox;
struct ViewBox;

// Python's integers, as far as 128 bits reach: beyond them an operation is refused.
using Int = __int128;

struct Missing {};  // a variable or an argument without a value: no template ever sees one
struct Undefined {
  std::string_view name;  // of a name in the template's source, for messages; may be empty
};
struct None {};

// What changes while the template runs is held as it is, the rest as constant.
template <typename Box>
inline constexpr bool kMutable =
    std::is_same_v<Box, NamespaceBox> || std::is_same_v<Box, LoopBox> ||
    std::is_same_v<Box, HelperBox> || std::is_same_v<Box, Iterator>;
template <typename Box>
using BoxPointer = std::conditional_t<kMutable<Box>, Box*, const Box*>;

// Is T one of the variant's alternatives?
template <typename T, typename... Ts>
constexpr bool is_alternative(const std::variant<Ts...>*) {
  return (std::is_same_v<T, Ts> || ...);
}

class Value {
 public:
  using Data = std::variant<Missing, Undefined, None, bool, Int, double,
                            std::shared_ptr<const StringBox>, std::shared_ptr<const ListBox>,
                            std::shared_ptr<const DictBox>, std::shared_ptr<const RangeBox>,
                            std::shared_ptr<const ViewBox>, std::shared_ptr<NamespaceBox>,
                            std::shared_ptr<LoopBox>, std::shared_ptr<Iterator>,
                            std::shared_ptr<const CallableBox>, std::shared_ptr<HelperBox>>;
  Value() : data(Undefined{}) {}
  template <typename T>
  requires(is_alternative<T>(static_cast<Data*>(nullptr)))
      // NOLINTNEXTLINE(google-explicit-constructor): a value of any kind
      Value(T value)
      : data(std::in_place_type<T>, std::move(value)) {}
  template <std::integral T>
  requires(!std::is_same_v<T, bool> && !std::is_same_v<T, Int>)
      // NOLINTNEXTLINE(google-explicit-constructor): an integer of any width
      Value(T value)
      : data(std::in_place_type<Int>, value) {}

  static Value string(Budget& budget, std::string text, bool markup = false);
  static Value list(Budget& budget, std::vector<Value> items);
  static Value tuple(Budget& budget, std::vector<Value> items);
  static Value dict(Budget& budget, std::vector<std::pair<Value, Value>> items);
  static Value from_json(Budget& budget, const boost::json::value& json, int depth = 0);

  // The boxed alternative, or null.
  template <typename Box>
  BoxPointer<Box> get() const {
    const auto* held = std::get_if<std::shared_ptr<std::remove_pointer_t<BoxPointer<Box>>>>(&data);
    return held == nullptr ? nullptr : held->get();
  }
  bool is_missing() const { return std::holds_alternative<Missing>(data); }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data); }
  bool is_none() const { return std::holds_alternative<None>(data); }
  bool is_bool() const { return std::holds_alternative<bool>(data); }
  bool is_int() const { return std::holds_alternative<Int>(data); }
  bool is_integral() const { return is_bool() || is_int(); }
  bool is_float() const { return std::holds_alternative<double>(data); }
  bool is_number() const { return is_integral() || is_float(); }
  bool is_string() const { return get<StringBox>() != nullptr; }
  bool is_markup() const;
  bool is_list() const;  // a list, not a tuple
  bool is_tuple() const;
  bool is_sequence() const { return get<ListBox>() != nullptr; }  // either of them
  bool is_dict() const { return get<DictBox>() != nullptr; }

  std::string_view text() const;                                // of a string
  const std::vector<Value>& items() const;                      // of a list or a tuple
  const std::vector<std::pair<Value, Value>>& entries() const;  // of a dict
  const Value* find(std::string_view key) const;                // in a dict, or null
  Int integer() const;                                          // of a bool or an int
  double number() const;                                        // of any number
  int depth() const;  // how deep values are nested in it: bounded

  Data data;
};

inline constexpr int kMaxNesting = 100;  // of values in values
int nested(int inner);                   // one deeper; raises at the limit

struct StringBox {
  StringBox(Budget& budget, std::string t, bool m)
      : charge(budget, t.capacity() + 64), text(std::move(t)), markup(m) {}
  Charge charge;
  std::string text;
  bool markup;  // "safe": what is added to it is escaped
};
struct ListBox {
  enum class Kind { kList, kTuple, kGroup };  // kGroup: groupby's (grouper, list)
  ListBox(Budget& budget, std::vector<Value> i, Kind k);
  Charge charge;
  std::vector<Value> items;
  Kind kind;
  int depth;
};
struct DictBox {
  DictBox(Budget& budget, std::vector<std::pair<Value, Value>> e);
  Charge charge;
  std::vector<std::pair<Value, Value>> entries;
  int depth;
};
struct RangeBox {
  Int start, step, count;
  Int stop;  // as it was given
  Int at(Int index) const { return start + index * step; }
};
// dict.keys(), dict.values(), dict.items()
struct ViewBox {
  enum class Kind { kKeys, kValues, kItems } kind;
  std::shared_ptr<const DictBox> dict;
  Value at(Budget& budget, size_t index) const;
};
struct NamespaceBox {
  NamespaceBox(Budget& budget, std::vector<std::pair<Value, Value>> f)
      : charge(budget, f.capacity() * 2 * sizeof(Value) + 128), fields(std::move(f)) {}
  Charge charge;
  std::vector<std::pair<Value, Value>> fields;
};

// Adds an item where that may be one of very many, so that a limit stops it in time.
void push(Budget& budget, std::vector<Value>& items, Value item);
// Sets `key`, as a dict does: an equal key keeps its place. Raises where it cannot be one.
void put(Budget& budget, std::vector<std::pair<Value, Value>>& entries, Value key, Value value);

bool truthy(const Value& value);
bool equal(Budget& budget, const Value& a, const Value& b, int depth = 0);
// Python's ordering of numbers, strings, lists and tuples; raises for others.
std::partial_ordering compare(Budget& budget, const Value& a, const Value& b, int depth = 0);
bool less(Budget& budget, const Value& a, const Value& b);
void check_hashable(const Value& value);  // raises for lists and dicts
const Value* find_key(Budget& budget, const std::vector<std::pair<Value, Value>>& entries,
                      const Value& key);                    // or null
std::string_view type_name(const Value& value);             // Python's: "str", "dict"
std::string to_text(Budget& budget, const Value& value);    // str(value)
std::string to_repr(Budget& budget, const Value& value);    // repr(value)
std::string to_pprint(Budget& budget, const Value& value);  // pprint.pformat(value), where one line
// How json.dumps is asked to write.
struct JsonStyle {
  bool pretty = false;  // a line for each item, after `indent` at each level
  std::string indent;
  bool sort_keys = false;
  bool ascii = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(Budget& budget, const Value& value, const JsonStyle& style);

// Code points of a string.
size_t text_length(std::string_view text);

}  // namespace rudder::text::jinja
