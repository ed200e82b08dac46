#include "rudder/text/jinja/iterator.h"

#include <fmt/format.h>

#include "rudder/base/utf8.h"
#include "rudder/text/jinja/objects.h"

namespace rudder::text::jinja {
namespace {

// Iterates over a value with a length and an index: at(i) for 0 <= i < count, in either direction.
template <typename At>
class IndexIterator final : public Iterator {
 public:
  IndexIterator(Budget& budget, std::string_view type, const Value& value, Int count, bool back,
                At at)
      : Iterator(budget, type, value.depth()),
        budget_(budget),
        count_(count),
        back_(back),
        at_(std::move(at)) {}

  bool next(Value& out) override {
    if (index_ == count_) return false;
    budget_.spend(1);
    out = at_(back_ ? count_ - 1 - index_ : index_);
    ++index_;
    return true;
  }

 private:
  Budget& budget_;
  Int index_ = 0;
  Int count_;
  bool back_;
  At at_;
};

class TextIterator final : public Iterator {
 public:
  TextIterator(Budget& budget, Value text, bool back)
      : Iterator(budget, back ? "reversed" : "str_iterator", 0),
        budget_(budget),
        text_(std::move(text)),
        pos_(back ? text_.text().size() : 0),
        back_(back) {}

  bool next(Value& out) override {
    const std::string_view text = text_.text();
    if (pos_ == (back_ ? 0 : text.size())) return false;
    const size_t start = pos_;
    back_ ? previous_char(text, pos_) : next_char(text, pos_);
    const size_t first = std::min(start, pos_), last = std::max(start, pos_);
    out = Value::string(budget_, std::string(text.substr(first, last - first)));
    return true;
  }

 private:
  Budget& budget_;
  Value text_;
  size_t pos_;
  bool back_;
};

template <typename At>
std::shared_ptr<Iterator> indexed(Budget& budget, std::string_view type, const Value& value,
                                  Int count, bool back, At at) {
  return std::make_shared<IndexIterator<At>>(budget, type, value, count, back, std::move(at));
}

// Null where there is no such thing.
std::shared_ptr<Iterator> walk(Budget& budget, const Value& value, bool back) {
  const auto at = [](Int index) { return static_cast<size_t>(index); };
  if (value.is_sequence()) {
    return indexed(budget, back ? "list_reverseiterator" : "list_iterator", value,
                   static_cast<Int>(value.items().size()), back,
                   [value, at](Int i) { return value.items()[at(i)]; });
  }
  if (value.is_dict()) {
    return indexed(budget, back ? "dict_reversekeyiterator" : "dict_keyiterator", value,
                   static_cast<Int>(value.entries().size()), back,
                   [value, at](Int i) { return value.entries()[at(i)].first; });
  }
  if (const auto* range = value.get<RangeBox>()) {
    return indexed(budget, "range_iterator", value, range->count, back,
                   [value](Int i) -> Value { return value.get<RangeBox>()->at(i); });
  }
  if (const auto* view = value.get<ViewBox>()) {
    return indexed(budget, "dict_iterator", value, static_cast<Int>(view->dict->entries.size()),
                   back,
                   [value, at, &budget](Int i) { return value.get<ViewBox>()->at(budget, at(i)); });
  }
  if (value.is_string()) return std::make_shared<TextIterator>(budget, value, back);
  if (value.is_undefined()) {
    return indexed(budget, "iterator", value, 0, back, [](Int) { return Value(); });
  }
  return nullptr;
}

}  // namespace

Iterator::Iterator(Budget& budget, std::string_view type, int inner_depth)
    : charge_(budget, 192), type_(type), depth_(nested(inner_depth)) {}

std::shared_ptr<Iterator> iterate(Budget& budget, const Value& value) {
  if (const auto* held = std::get_if<std::shared_ptr<Iterator>>(&value.data)) return *held;
  if (value.get<LoopBox>() != nullptr) raise_unsupported("iterating over 'loop'");
  auto iterator = walk(budget, value, false);
  if (iterator == nullptr) raise(fmt::format("'{}' object is not iterable", type_name(value)));
  return iterator;
}

std::shared_ptr<Iterator> iterate_back(Budget& budget, const Value& value) {
  return walk(budget, value, true);
}

std::vector<Value> collect(Budget& budget, const Value& value) {
  if (value.is_sequence()) {
    budget.check(value.items().size() * sizeof(Value));
    return value.items();
  }
  const auto iterator = iterate(budget, value);
  std::vector<Value> items;
  for (Value item; iterator->next(item);) push(budget, items, std::move(item));
  return items;
}

std::optional<Int> length_of(Budget& budget, const Value& value) {
  if (value.is_sequence()) return static_cast<Int>(value.items().size());
  if (value.is_dict()) return static_cast<Int>(value.entries().size());
  if (value.is_string()) {
    budget.spend(1 + value.text().size() / 64);
    return static_cast<Int>(text_length(value.text()));
  }
  if (const auto* range = value.get<RangeBox>()) return range->count;
  if (const auto* view = value.get<ViewBox>()) return static_cast<Int>(view->dict->entries.size());
  if (value.is_undefined()) return 0;
  if (auto* loop = value.get<LoopBox>()) return loop->length(budget);
  return std::nullopt;
}

bool is_iterable(const Value& value) {
  return value.is_sequence() || value.is_dict() || value.is_string() || value.is_undefined() ||
         value.get<RangeBox>() != nullptr || value.get<ViewBox>() != nullptr ||
         value.get<Iterator>() != nullptr || value.get<LoopBox>() != nullptr;
}

}  // namespace rudder::text::jinja
