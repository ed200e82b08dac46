#include "rudder/text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "rudder/text/jinja/iterator.h"
#include "rudder/text/jinja/objects.h"

namespace rudder::text::jinja {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// Exactly, where the integer has more digits than a double holds.
std::partial_ordering compare_mixed(Int a, double b) {
  if (std::isnan(b)) return std::partial_ordering::unordered;
  constexpr double kLimit = 1.7e38;  // just below 2^127
  if (b > kLimit) return std::partial_ordering::less;
  if (b < -kLimit) return std::partial_ordering::greater;
  const auto whole = static_cast<Int>(b);
  if (a != whole) return a < whole ? std::partial_ordering::less : std::partial_ordering::greater;
  return 0.0 <=> (b - std::trunc(b));
}

std::partial_ordering compare_numbers(const Value& a, const Value& b) {
  if (a.is_float() && b.is_float()) return a.number() <=> b.number();
  if (a.is_float()) {
    const auto reversed = compare_mixed(b.integer(), a.number());
    return std::is_lt(reversed)   ? std::partial_ordering::greater
           : std::is_gt(reversed) ? std::partial_ordering::less
                                  : reversed;
  }
  if (b.is_float()) return compare_mixed(a.integer(), b.number());
  const Int left = a.integer(), right = b.integer();
  return left < right   ? std::partial_ordering::less
         : left > right ? std::partial_ordering::greater
                        : std::partial_ordering::equivalent;
}

bool equal_dicts(Budget& budget, const Value& a, const Value& b, int depth) {
  if (a.entries().size() != b.entries().size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = find_key(budget, b.entries(), key);
    if (other == nullptr || !equal(budget, value, *other, depth + 1)) return false;
  }
  return true;
}

bool equal_ranges(const RangeBox& a, const RangeBox& b) {
  if (a.count != b.count || a.count == 0) return a.count == b.count;
  return a.start == b.start && (a.count == 1 || a.step == b.step);
}

bool equal_views(Budget& budget, const ViewBox& a, const ViewBox& b, int depth) {
  if (a.kind == ViewBox::Kind::kValues || b.kind == ViewBox::Kind::kValues) return &a == &b;
  if (a.kind != b.kind) raise_unsupported("comparing keys() with items()");
  if (a.dict->entries.size() != b.dict->entries.size()) return false;
  for (const auto& [key, value] : a.dict->entries) {
    const Value* other = find_key(budget, b.dict->entries, key);
    if (other == nullptr) return false;
    const bool same = a.kind == ViewBox::Kind::kKeys || equal(budget, value, *other, depth + 1);
    if (!same) return false;
  }
  return true;
}

}  // namespace

void raise(std::string message) {
  throw TemplateError{{ErrorCode::kInvalidArgument, std::move(message), {}}};
}

void raise_unsupported(std::string_view what) {
  throw TemplateError{
      {ErrorCode::kUnsupported,
       fmt::format("chat template: {} is not in the supported subset of Jinja", what),
       {}}};
}

void raise_limit(std::string_view what) {
  throw TemplateError{
      {ErrorCode::kTooLarge, fmt::format("chat template passed its limit of {}", what), {}}};
}

Charge::Charge(Budget& budget, size_t bytes) : budget_(budget), bytes_(bytes) {
  if (bytes > budget.memory) raise_limit("memory");
  budget.spend(1 + bytes / 64);
  budget.memory -= bytes;
}

int nested(int inner) {
  if (inner >= kMaxNesting) raise_limit("nesting");
  return inner + 1;
}

ListBox::ListBox(Budget& budget, std::vector<Value> i, Kind k)
    : charge(budget, i.capacity() * sizeof(Value) + 64), items(std::move(i)), kind(k), depth(0) {
  for (const Value& item : items) depth = std::max(depth, item.depth());
  depth = nested(depth);
}

DictBox::DictBox(Budget& budget, std::vector<std::pair<Value, Value>> e)
    : charge(budget, e.capacity() * 2 * sizeof(Value) + 64), entries(std::move(e)), depth(0) {
  for (const auto& [key, value] : entries) {
    depth = std::max({depth, key.depth(), value.depth()});
  }
  depth = nested(depth);
}

Value ViewBox::at(Budget& budget, size_t index) const {
  const auto& [key, value] = dict->entries[index];
  if (kind == Kind::kKeys) return key;
  return kind == Kind::kValues ? value : Value::tuple(budget, {key, value});
}

Value Value::string(Budget& budget, std::string text, bool markup) {
  return {std::make_shared<const StringBox>(budget, std::move(text), markup)};
}

Value Value::list(Budget& budget, std::vector<Value> items) {
  return {std::make_shared<const ListBox>(budget, std::move(items), ListBox::Kind::kList)};
}

Value Value::tuple(Budget& budget, std::vector<Value> items) {
  return {std::make_shared<const ListBox>(budget, std::move(items), ListBox::Kind::kTuple)};
}

Value Value::dict(Budget& budget, std::vector<std::pair<Value, Value>> items) {
  return {std::make_shared<const DictBox>(budget, std::move(items))};
}

Value Value::from_json(Budget& budget, const boost::json::value& json, int depth) {
  if (depth >= kMaxNesting) raise_limit("nesting");
  switch (json.kind()) {
    case boost::json::kind::null:
      return None{};
    case boost::json::kind::bool_:
      return json.get_bool();
    case boost::json::kind::int64:
      return json.get_int64();
    case boost::json::kind::uint64:
      return json.get_uint64();
    case boost::json::kind::double_:
      return json.get_double();
    case boost::json::kind::string:
      return string(budget, std::string(json.get_string()));
    case boost::json::kind::array: {
      std::vector<Value> items;
      items.reserve(json.get_array().size());
      for (const auto& item : json.get_array()) items.push_back(from_json(budget, item, depth + 1));
      return list(budget, std::move(items));
    }
    case boost::json::kind::object:
      break;
  }
  std::vector<std::pair<Value, Value>> entries;
  entries.reserve(json.get_object().size());
  for (const auto& [key, item] : json.get_object()) {
    entries.emplace_back(string(budget, std::string(key)), from_json(budget, item, depth + 1));
  }
  return dict(budget, std::move(entries));
}

bool Value::is_markup() const {
  const auto* box = get<StringBox>();
  return box != nullptr && box->markup;
}
bool Value::is_list() const {
  const auto* box = get<ListBox>();
  return box != nullptr && box->kind == ListBox::Kind::kList;
}
bool Value::is_tuple() const {
  const auto* box = get<ListBox>();
  return box != nullptr && box->kind != ListBox::Kind::kList;
}
std::string_view Value::text() const {
  return get<StringBox>()->text;
}
const std::vector<Value>& Value::items() const {
  return get<ListBox>()->items;
}
const std::vector<std::pair<Value, Value>>& Value::entries() const {
  return get<DictBox>()->entries;
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : entries()) {
    if (name.is_string() && name.text() == key) return &value;
  }
  return nullptr;
}

Int Value::integer() const {
  return is_bool() ? static_cast<Int>(std::get<bool>(data)) : std::get<Int>(data);
}

double Value::number() const {
  return is_float() ? std::get<double>(data) : static_cast<double>(integer());
}

int Value::depth() const {
  if (const auto* list = get<ListBox>()) return list->depth;
  if (const auto* dict = get<DictBox>()) return dict->depth;
  if (const auto* view = get<ViewBox>()) return view->dict->depth;
  if (const auto* iterator = get<Iterator>()) return iterator->depth();
  if (const auto* callable = get<CallableBox>()) return callable->depth;
  if (const auto* loop = get<LoopBox>()) return loop->depth;
  if (const auto* helper = get<HelperBox>()) return helper->items.depth();
  return 0;
}

void push(Budget& budget, std::vector<Value>& items, Value item) {
  if (items.size() == items.capacity()) budget.check((items.size() * 2 + 8) * sizeof(Value));
  items.push_back(std::move(item));
}

void put(Budget& budget, std::vector<std::pair<Value, Value>>& entries, Value key, Value value) {
  check_hashable(key);
  for (auto& [known, held] : entries) {
    if (equal(budget, known, key)) {
      held = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

bool truthy(const Value& value) {
  return std::visit(
      Overloaded{[](const Missing&) { return false; }, [](const Undefined&) { return false; },
                 [](const None&) { return false; }, [](bool b) { return b; },
                 [](Int i) { return i != 0; }, [](double d) { return d != 0; },
                 [](const std::shared_ptr<const StringBox>& s) { return !s->text.empty(); },
                 [](const std::shared_ptr<const ListBox>& l) { return !l->items.empty(); },
                 [](const std::shared_ptr<const DictBox>& d) { return !d->entries.empty(); },
                 [](const std::shared_ptr<const RangeBox>& r) { return r->count > 0; },
                 [](const std::shared_ptr<const ViewBox>& v) { return !v->dict->entries.empty(); },
                 [](const auto&) { return true; }},
      value.data);
}

bool equal(Budget& budget, const Value& a, const Value& b, int depth) {
  if (depth > kMaxNesting) raise_limit("nesting");
  budget.spend(1);
  if (a.is_number() && b.is_number()) return std::is_eq(compare_numbers(a, b));
  if (a.data.index() != b.data.index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (a.is_string()) {
    budget.spend(std::min(a.text().size(), b.text().size()) / 64);
    return a.text() == b.text();
  }
  if (a.is_sequence()) {
    if (a.is_list() != b.is_list() || a.items().size() != b.items().size()) return false;
    for (size_t i = 0; i < a.items().size(); ++i) {
      if (!equal(budget, a.items()[i], b.items()[i], depth + 1)) return false;
    }
    return true;
  }
  if (a.is_dict()) return equal_dicts(budget, a, b, depth);
  if (const auto* range = a.get<RangeBox>()) return equal_ranges(*range, *b.get<RangeBox>());
  if (const auto* view = a.get<ViewBox>()) {
    return equal_views(budget, *view, *b.get<ViewBox>(), depth);
  }
  if (const auto* callable = a.get<CallableBox>()) return callable->same(*b.get<CallableBox>());
  return a.get<NamespaceBox>() == b.get<NamespaceBox>() && a.get<LoopBox>() == b.get<LoopBox>() &&
         a.get<Iterator>() == b.get<Iterator>() && a.get<HelperBox>() == b.get<HelperBox>();
}

std::partial_ordering compare(Budget& budget, const Value& a, const Value& b, int depth) {
  if (depth > kMaxNesting) raise_limit("nesting");
  budget.spend(1);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_string() && b.is_string()) {
    budget.spend(std::min(a.text().size(), b.text().size()) / 64);
    return a.text().compare(b.text()) <=> 0;
  }
  if (a.is_sequence() && b.is_sequence() && a.is_list() == b.is_list()) {
    for (size_t i = 0; i < a.items().size() && i < b.items().size(); ++i) {
      if (!equal(budget, a.items()[i], b.items()[i], depth + 1)) {
        return compare(budget, a.items()[i], b.items()[i], depth + 1);
      }
    }
    return a.items().size() <=> b.items().size();
  }
  if (a.get<ViewBox>() != nullptr && b.get<ViewBox>() != nullptr) {
    raise_unsupported("ordering views of dicts");
  }
  raise(fmt::format("'<' not supported between '{}' and '{}'", type_name(a), type_name(b)));
}

bool less(Budget& budget, const Value& a, const Value& b) {
  return std::is_lt(compare(budget, a, b));
}

void check_hashable(const Value& value) {
  const bool unhashable = value.is_list() || value.is_dict() || value.get<ViewBox>() != nullptr;
  if (unhashable) raise(fmt::format("unhashable type: '{}'", type_name(value)));
  if (value.is_tuple()) {
    for (const Value& item : value.items()) check_hashable(item);
  }
}

const Value* find_key(Budget& budget, const std::vector<std::pair<Value, Value>>& entries,
                      const Value& key) {
  for (const auto& [known, value] : entries) {
    if (equal(budget, known, key)) return &value;
  }
  return nullptr;
}

size_t text_length(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

}  // namespace rudder::text::jinja
