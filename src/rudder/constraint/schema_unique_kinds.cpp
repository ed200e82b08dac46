#include "rudder/constraint/schema_unique_kinds.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "rudder/constraint/schema_exclusion.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/constraint/schema_parts.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

bool has_type(const json::object& schema, std::string_view type) {
  const std::vector<std::string> types = types_of(schema);
  return types.size() == 1 && types[0] == type && !schema.contains("enum") &&
         !schema.contains("const");
}

json::object with_mark(const json::object& text) {
  json::object marked = text;
  marked[kUnique] = true;
  return marked;
}

// The required field, or another one, by whose string objects of the schema may be told apart:
// first such without an expression and a greatest length. Empty where there is none.
std::string telling_field(const SchemaDocument& document, const json::object& schema) {
  const json::value* fields = schema.if_contains("properties");
  const json::value* required = schema.if_contains("required");
  std::string best;
  int best_rank = 4;
  if (fields == nullptr) return best;
  for (const auto& field : fields->get_object()) {
    const json::object* text = referred(document, field.value()).schema;
    if (text == nullptr || !has_type(*text, "string")) continue;
    const bool is_required =
        required != nullptr && lists_value(required->get_array(), json::string(field.key()));
    const bool is_plain =
        !text->contains(kPatterns) && !text->contains("format") && !text->contains("maxLength");
    const int rank = (is_required ? 0 : 2) + (is_plain ? 0 : 1);
    if (rank >= best_rank) continue;
    best_rank = rank;
    best = field.key();
  }
  return best;
}

// Objects without the field; nothing where they must have it.
std::optional<json::object> without_field(const json::object& schema, std::string_view name) {
  json::object rest = schema;
  const json::value* required = schema.if_contains("required");
  if (required != nullptr && lists_value(required->get_array(), json::string(name))) return {};
  json::value& fields = rest["properties"];
  if (!fields.is_object()) fields = json::object();
  fields.get_object()[name] = false;
  return rest;
}

// Objects with the field, whose string is held apart.
json::object with_telling_field(const SchemaDocument& document, const json::object& schema,
                                std::string_view name) {
  json::object item = schema;
  json::value& field = item.at("properties").at(name);
  field = with_mark(*referred(document, field).schema);
  json::value& required = item["required"];
  if (!required.is_array()) required = json::array();
  if (!lists_value(required.get_array(), json::string(name))) {
    required.get_array().emplace_back(name);
  }
  return item;
}

}  // namespace

std::optional<json::array> few_values(const json::object& schema) {
  constexpr double kMaxRange = 256;
  if (const json::value* list = schema.if_contains("enum")) return list->get_array();
  if (const json::value* one = schema.if_contains("const")) return json::array({*one});
  const std::vector<std::string> types = types_of(schema);
  json::array values;
  for (const std::string& type : types) {
    const json::value* min = schema.if_contains("minimum");
    const json::value* max = schema.if_contains("maximum");
    if (type == "boolean") {
      values.insert(values.end(), {false, true});
    } else if (type == "null") {
      values.emplace_back(nullptr);
    } else if (type == "integer" && min != nullptr && max != nullptr) {
      const double first = std::ceil(min->to_number<double>());
      const double last = std::floor(max->to_number<double>());
      if (std::abs(first) > kMaxRange * kMaxRange || last - first >= kMaxRange) return std::nullopt;
      for (double value = first; value <= last; ++value) {
        values.emplace_back(static_cast<int64_t>(value));
      }
    } else {
      return std::nullopt;
    }
  }
  return types.empty() ? std::nullopt : std::optional(std::move(values));
}

Referred referred(const SchemaDocument& document, const json::value& schema) {
  constexpr int kMaxChain = 8;
  const json::value* target = nullptr;
  const json::value* at = &schema;
  for (int i = 0; i < kMaxChain && at->is_object(); ++i) {
    const json::object& object = at->get_object();
    const json::value* reference = object.if_contains("$ref");
    if (reference == nullptr) return {&object, target};
    if (!std::all_of(object.begin(), object.end(), [](const auto& field) {
          return field.key() == "$ref" || keyword_info(field.key()).annotation;
        })) {
      break;
    }
    const auto found = document.resolve(reference->get_string(), "");
    if (!found) break;
    at = target = *found;
  }
  return {};
}

bool ItemKinds::sort(const json::value& schema) {
  if (!add(schema)) return false;
  const bool lists_objects =
      std::ranges::any_of(listed_, [](const json::value& value) { return value.is_object(); });
  const bool lists_strings =
      std::ranges::any_of(listed_, [](const json::value& value) { return value.is_string(); });
  if (lists_objects && !objects_.empty()) return false;
  if (has_strings_ && lists_strings) {
    if (!has_any_string_) return false;
    leave_out_strings();
  }
  return add_objects() && !fuel_.out();
}

// Any string is one of those that are told apart already.
void ItemKinds::leave_out_strings() {
  json::array rest;
  for (json::value& other : others_) {
    const auto values = few_values(other.get_object());
    if (!values) {
      rest.push_back(std::move(other));
      continue;
    }
    json::array kept;
    for (const json::value& value : *values) {
      if (!value.is_string()) kept.push_back(value);
    }
    if (kept.empty()) continue;
    json::object one = std::move(other.get_object());
    one.erase("const");
    one["enum"] = std::move(kept);
    rest.push_back(std::move(one));
  }
  others_ = std::move(rest);
}

bool ItemKinds::add_options(const json::object& schema, std::string_view key) {
  const bool alone = std::all_of(schema.begin(), schema.end(), [&](const auto& field) {
    return field.key() == key || keyword_info(field.key()).annotation;
  });
  const json::array& options = schema.at(key).get_array();
  if (!alone) return false;
  for (size_t i = 0; i < options.size(); ++i) {
    for (size_t k = 0; key == "oneOf" && k < i; ++k) {
      if (!exclude_each_other(fuel_, document_, options[k], options[i])) return false;
    }
    if (!add(options[i])) return false;
  }
  return true;
}

bool ItemKinds::add(const json::value& schema) {
  constexpr int kMaxDepth = 4;
  if (schema.is_bool() && !schema.get_bool()) return true;
  static const json::object any;
  const json::object* object = schema.is_bool() ? &any : referred(document_, schema).schema;
  if (object == nullptr || depth_ > kMaxDepth) return false;
  const int64_t bytes = json_bytes(*object);
  if (!fuel_.burn(bytes) || !fuel_.can_hold(8 * bytes)) return false;
  if (const auto values = few_values(*object)) {
    others_.push_back(*object);
    listed_.insert(listed_.end(), values->begin(), values->end());
    return true;
  }
  for (const std::string_view key : {"anyOf", "oneOf"}) {
    if (!object->contains(key) || object->contains("type")) continue;
    ++depth_;
    const bool done = add_options(*object, key);
    --depth_;
    return done;
  }
  std::vector<std::string> types = types_of(*object);
  if (!object->contains("type")) {
    types = {"object", "array", "string", "number", "boolean", "null"};
  }
  return std::ranges::all_of(types,
                             [&](const std::string& type) { return add_type(*object, type); });
}

bool ItemKinds::add_type(const json::object& schema, const std::string& type) {
  json::object typed = schema;
  typed.erase("nullable");
  typed["type"] = type;
  if (type != "string") {
    (type == "object" ? objects_ : others_).emplace_back(std::move(typed));
    return true;
  }
  if (has_strings_) return false;
  const bool binds = std::any_of(typed.begin(), typed.end(), [](const auto& field) {
    const KeywordInfo info = keyword_info(field.key());
    return field.key() != "type" && !info.annotation &&
           (info.of == KeywordOf::kString || info.of == KeywordOf::kAnything);
  });
  has_strings_ = true;
  has_any_string_ = !binds;
  apart_.emplace_back(with_mark(typed));
  return true;
}

bool ItemKinds::exclude_each_other_all() const {
  for (size_t i = 0; i < objects_.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (!exclude_each_other(fuel_, document_, objects_[k], objects_[i])) return false;
    }
  }
  return true;
}

// Objects that no other schema of them accepts are told apart by a field of their own; otherwise
// the first that can be is, and the others are without that field.
bool ItemKinds::add_objects() {
  const bool exclusive = exclude_each_other_all();
  std::vector<std::string> names;
  for (const json::value& one : objects_) {
    names.push_back(telling_field(document_, one.get_object()));
  }
  const auto first =
      std::ranges::find_if(names, [](const std::string& name) { return !name.empty(); });
  for (size_t i = 0; i < objects_.size(); ++i) {
    const json::object& object = objects_[i].get_object();
    const bool is_first = std::cmp_equal(first - names.begin(), i);
    if (!names[i].empty() && (exclusive || is_first)) {
      apart_.emplace_back(with_telling_field(document_, object, names[i]));
      if (auto rest = without_field(object, names[i])) others_.emplace_back(std::move(*rest));
    } else if (exclusive || first == names.end()) {
      others_.push_back(object);
    } else {
      auto rest = without_field(object, *first);
      if (!rest) return false;
      others_.emplace_back(std::move(*rest));
    }
  }
  return true;
}

}  // namespace rudder::constraint
