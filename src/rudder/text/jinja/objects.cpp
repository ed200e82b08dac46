#include "rudder/text/jinja/objects.h"

namespace rudder::text::jinja {

CallableBox::CallableBox(Budget& budget, Kind k, std::string_view n, Value s)
    : charge(budget, 160), kind(k), name(n), self(std::move(s)), depth(nested(self.depth())) {}

bool CallableBox::same(const CallableBox& other) const {
  if (kind != other.kind || name != other.name) return false;
  if (kind == Kind::kMethod) raise_unsupported("comparing methods");
  return macro == other.macro && outer == other.outer;
}

bool LoopBox::next(Value& out) {
  Value item;
  if (!after.is_missing()) {
    item = std::exchange(after, Missing{});
  } else if (!iterator->next(item)) {
    return false;
  }
  ++index0;
  before = std::exchange(current, item);
  out = std::move(item);
  return true;
}

const Value& LoopBox::peek() {
  if (after.is_missing()) {
    Value item;
    if (iterator->next(item)) after = std::move(item);
  }
  return after;
}

Int LoopBox::length(Budget& budget) {
  if (!known_length) known_length = length_of(budget, iterable);
  if (!known_length) {
    const Value rest = Value::list(budget, collect(budget, iterator));
    iterator = iterate(budget, rest);
    known_length =
        static_cast<Int>(rest.items().size()) + index0 + 1 + (after.is_missing() ? 0 : 1);
  }
  return *known_length;
}

}  // namespace rudder::text::jinja
