#include "rudder/text/jinja/value.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>

namespace rudder::text::jinja {
namespace {

constexpr int kMaxNesting = 100;  // of values in values

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

double number(const Value& value) {
  return value.is_float() ? std::get<double>(value.data) : static_cast<double>(value.integer());
}

}  // namespace

void raise(std::string message) {
  throw TemplateError{{ErrorCode::kInvalidArgument, std::move(message), {}}};
}

void raise_limit(std::string_view what) {
  throw TemplateError{
      {ErrorCode::kTooLarge, fmt::format("chat template passed its limit of {}", what), {}}};
}

Charge::Charge(Budget& budget, size_t bytes) : budget_(budget), bytes_(bytes) {
  if (bytes > budget.memory) raise_limit("memory");
  budget.memory -= bytes;
  budget.spend(1 + bytes / 64);
}

Value Value::list(Budget& budget, std::vector<Value> items, bool tuple) {
  return {std::make_shared<const ListBox>(budget, std::move(items), tuple)};
}

Value Value::dict(Budget& budget, std::vector<std::pair<Value, Value>> items) {
  return {std::make_shared<const DictBox>(budget, std::move(items))};
}

Value Value::from_json(Budget& budget, const boost::json::value& json, int depth) {
  if (depth > kMaxNesting) raise_limit("nesting");
  switch (json.kind()) {
    case boost::json::kind::null:
      return None{};
    case boost::json::kind::bool_:
      return json.get_bool();
    case boost::json::kind::int64:
      return json.get_int64();
    case boost::json::kind::uint64:
      return static_cast<double>(json.get_uint64());
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

int64_t Value::integer() const {
  return is_bool() ? static_cast<int64_t>(std::get<bool>(data)) : std::get<int64_t>(data);
}

bool truthy(const Value& value) {
  return std::visit(
      Overloaded{[](const Undefined&) { return false; }, [](const None&) { return false; },
                 [](bool b) { return b; }, [](int64_t i) { return i != 0; },
                 [](double d) { return d != 0; },
                 [](const std::shared_ptr<const StringBox>& s) { return !s->text.empty(); },
                 [](const std::shared_ptr<const ListBox>& l) { return !l->items.empty(); },
                 [](const std::shared_ptr<const DictBox>& d) { return !d->entries.empty(); },
                 [](const auto&) { return true; }},
      value.data);
}

bool equal(Budget& budget, const Value& a, const Value& b, int depth) {
  if (depth > kMaxNesting) raise_limit("nesting");
  budget.spend(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return number(a) == number(b);
    return a.integer() == b.integer();
  }
  if (a.data.index() != b.data.index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (a.is_string()) {
    budget.spend(a.text().size() / 64);
    return a.text() == b.text();
  }
  if (a.is_list()) {
    if (a.items().size() != b.items().size()) return false;
    for (size_t i = 0; i < a.items().size(); ++i) {
      if (!equal(budget, a.items()[i], b.items()[i], depth + 1)) return false;
    }
    return true;
  }
  if (a.is_dict()) {
    if (a.entries().size() != b.entries().size()) return false;
    for (const auto& [key, value] : a.entries()) {
      bool found = false;
      for (const auto& [other_key, other] : b.entries()) {
        if (equal(budget, key, other_key, depth + 1)) {
          found = equal(budget, value, other, depth + 1);
          break;
        }
      }
      if (!found) return false;
    }
    return true;
  }
  if (const auto* f = std::get_if<Function>(&a.data)) {
    const auto& g = std::get<Function>(b.data);
    return f->macro == g.macro && f->name == g.name;
  }
  return a.get<NamespaceBox>() == b.get<NamespaceBox>() && a.get<LoopBox>() == b.get<LoopBox>();
}

int compare(Budget& budget, const Value& a, const Value& b, int depth) {
  if (depth > kMaxNesting) raise_limit("nesting");
  budget.spend(1);
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) {
      return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    }
    return number(a) < number(b) ? -1 : number(a) > number(b);
  }
  if (a.is_string() && b.is_string()) {
    budget.spend(std::min(a.text().size(), b.text().size()) / 64);
    return a.text().compare(b.text());
  }
  if (a.is_list() && b.is_list()) {
    for (size_t i = 0; i < a.items().size() && i < b.items().size(); ++i) {
      if (const int order = compare(budget, a.items()[i], b.items()[i], depth + 1)) return order;
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size();
  }
  raise(fmt::format("'<' not supported between '{}' and '{}'", type_name(a), type_name(b)));
}

std::string_view type_name(const Value& value) {
  return std::visit(
      Overloaded{
          [](const Undefined&) -> std::string_view { return "Undefined"; },
          [](const None&) -> std::string_view { return "NoneType"; },
          [](bool) -> std::string_view { return "bool"; },
          [](int64_t) -> std::string_view { return "int"; },
          [](double) -> std::string_view { return "float"; },
          [](const std::shared_ptr<const StringBox>&) -> std::string_view { return "str"; },
          [](const std::shared_ptr<const ListBox>& l) -> std::string_view {
            return l->tuple ? "tuple" : "list";
          },
          [](const std::shared_ptr<const DictBox>&) -> std::string_view { return "dict"; },
          [](const std::shared_ptr<NamespaceBox>&) -> std::string_view { return "Namespace"; },
          [](const std::shared_ptr<LoopBox>&) -> std::string_view { return "LoopContext"; },
          [](const Function&) -> std::string_view { return "function"; }},
      value.data);
}

size_t text_length(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

}  // namespace rudder::text::jinja
