// Iterators: what a loop, a filter or `list` draws values from, one at a time, as Python's do. Lazy
// filters (map, select, batch, ...) are iterators as well: what they would raise, they raise when
// they are drawn from. One render's, on its thread.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "rudder/text/jinja/value.h"

namespace rudder::text::jinja {

class Iterator {
 public:
  // `type` is Python's name of it, `inner_depth` the depth of what it holds.
  Iterator(Budget& budget, std::string_view type, int inner_depth);
  virtual ~Iterator() = default;
  Iterator(const Iterator&) = delete;
  Iterator& operator=(const Iterator&) = delete;

  // False at the end, and `out` is as it was.
  virtual bool next(Value& out) = 0;
  std::string_view type() const { return type_; }
  int depth() const { return depth_; }

 private:
  Charge charge_;
  std::string_view type_;
  int depth_;
};

// Python's iter(value): items, keys, characters; nothing for undefined. Raises for others.
std::shared_ptr<Iterator> iterate(Budget& budget, const Value& value);
// Python's reversed(value), or null where it has none.
std::shared_ptr<Iterator> iterate_back(Budget& budget, const Value& value);
// Python's list(value).
std::vector<Value> collect(Budget& budget, const Value& value);
// Python's len(value); nothing where it has none.
std::optional<Int> length_of(Budget& budget, const Value& value);
bool is_iterable(const Value& value);

}  // namespace rudder::text::jinja
