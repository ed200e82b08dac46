// The objects of a running template: variables of a call, loops, macros and methods, cyclers and
// joiners. Made by the interpreter; one render's, on its thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/text/jinja/iterator.h"
#include "rudder/text/jinja/value.h"

namespace rudder::text::jinja {

struct MacroNode;
struct Method;
struct Node;

// The variables of one call of a template function (see resolver.h). A macro made during the call
// keeps them, and sees what becomes of them.
struct Activation {
  Activation(Budget& budget, size_t count, std::shared_ptr<Activation> o)
      : charge(budget, count * sizeof(Value) + 96),
        slots(count, Value(Missing{})),
        outer(std::move(o)) {}
  Charge charge;
  std::vector<Value> slots;
  std::shared_ptr<Activation> outer;
  bool captured = false;  // by a macro, and known to the interpreter
};

// Something that can be called: a global function, a macro, or a method with its object.
struct CallableBox {
  enum class Kind { kGlobal, kMacro, kMethod };
  CallableBox(Budget& budget, Kind k, std::string_view n, Value s);
  bool same(const CallableBox& other) const;
  Charge charge;
  Kind kind;
  std::string_view name;
  Value self;                         // of a method
  const Method* method = nullptr;     // of a method
  const MacroNode* macro = nullptr;   // of a macro
  std::shared_ptr<Activation> outer;  // of a macro: where it was defined
  int depth;
};

// The special variable `loop`.
struct LoopBox {
  LoopBox(Budget& budget, Value values)
      : charge(budget, 320),
        iterable(std::move(values)),
        iterator(iterate(budget, iterable)),
        depth(iterator->depth()) {}

  bool next(Value& out);
  const Value& peek();  // the next item, or missing
  Int length(Budget& budget);
  bool first() const { return index0 == 0; }

  Charge charge;
  Value iterable;
  std::shared_ptr<Iterator> iterator;
  int depth;
  Int index0 = -1;
  std::optional<Int> known_length;
  Value after = Missing{}, current = Missing{}, before = Missing{};
  // Of a recursive loop: what a call of it renders, where, and how deep it is.
  const Node* recursive = nullptr;
  std::shared_ptr<Activation> outer;
  int depth0 = 0;
};

struct HelperBox {
  enum class Kind { kCycler, kJoiner };
  HelperBox(Budget& budget, Kind k, Value i) : charge(budget, 128), kind(k), items(std::move(i)) {}
  Charge charge;
  Kind kind;
  Value items;  // a cycler's tuple, a joiner's separator
  size_t position = 0;
  bool used = false;
};

}  // namespace rudder::text::jinja
