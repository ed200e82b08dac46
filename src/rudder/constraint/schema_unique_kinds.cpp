#include "rudder/constraint/schema_unique_kinds.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rudder/base/exact_json.h"
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

bool has_any(const json::object& schema, std::string_view a, std::string_view b) {
  return schema.contains(a) || schema.contains(b);
}

// Numbers whose texts are those of one expression: multiples without bounds are rules instead.
bool are_expressible(const json::object& numbers) {
  const json::value* multiple = numbers.if_contains("multipleOf");
  return multiple == nullptr || *decimal_of(*multiple) < Decimal(1) ||
         (has_any(numbers, "minimum", "exclusiveMinimum") &&
          has_any(numbers, "maximum", "exclusiveMaximum"));
}

// The way to the string or number by which objects of a schema may be told apart, from field to
// field.
struct Telling {
  std::vector<std::string> path;  // empty: there is none
  bool is_number = false;
  bool is_optional = false;  // an object may be without it
  bool is_bound = false;     // by an expression or a greatest length

  auto rank() const {
    return std::tuple(path.empty(), is_number, is_optional, is_bound, path.size());
  }
};

// The best that there is: first a string, then one that every object has, then one that nothing
// binds.
Telling telling_field(Fuel& fuel, const SchemaDocument& document, const json::object& schema,
                      int depth = 0) {
  constexpr int kMaxDepth = 3;
  constexpr int64_t kWorkOfField = 30;
  const json::value* fields = schema.if_contains("properties");
  const json::value* required = schema.if_contains("required");
  Telling best;
  if (fields == nullptr || depth > kMaxDepth) return best;
  for (const auto& field : fields->get_object()) {
    if (!fuel.burn(kWorkOfField)) return {};
    const json::object* value = referred(document, field.value()).schema;
    if (value == nullptr) continue;
    Telling one;
    if (has_type(*value, "string")) {
      one.is_bound =
          value->contains(kPatterns) || value->contains("format") || value->contains("maxLength");
    } else if (has_type(*value, "number") || has_type(*value, "integer") ||
               has_type(*value, kFraction)) {
      if (!are_expressible(*value)) continue;
      one.is_number = true;
    } else if (has_type(*value, "object")) {
      one = telling_field(fuel, document, *value, depth + 1);
      if (one.path.empty()) continue;
    } else {
      continue;
    }
    one.is_optional = one.is_optional || required == nullptr ||
                      !lists_value(required->get_array(), json::string(field.key()));
    one.path.insert(one.path.begin(), std::string(field.key()));
    if (one.rank() < best.rank()) best = std::move(one);
  }
  return best;
}

using FieldPath = std::span<const std::string>;

// Objects with the field, which is so.
json::object with_field(const json::object& schema, std::string_view name, json::value value) {
  json::object item = schema;
  item.at("properties").at(name) = std::move(value);
  json::value& required = item["required"];
  if (!required.is_array()) required = json::array();
  if (!lists_value(required.get_array(), json::string(name))) {
    required.get_array().emplace_back(name);
  }
  return item;
}

// Objects without a string there: each as a schema of those that have a way so far.
std::vector<json::object> without_string(const SchemaDocument& document, const json::object& schema,
                                         FieldPath path) {
  std::vector<json::object> ways;
  const json::value* required = schema.if_contains("required");
  if (required == nullptr || !lists_value(required->get_array(), json::string(path[0]))) {
    json::object rest = schema;
    json::value& fields = rest["properties"];
    if (!fields.is_object()) fields = json::object();
    fields.get_object()[path[0]] = false;
    ways.push_back(std::move(rest));
  }
  const json::value* fields = schema.if_contains("properties");
  const json::value* field =
      fields == nullptr ? nullptr : fields->get_object().if_contains(path[0]);
  const json::object* value = field == nullptr ? nullptr : referred(document, *field).schema;
  if (path.size() == 1 || value == nullptr || !has_type(*value, "object")) return ways;
  for (json::object& inner : without_string(document, *value, path.subspan(1))) {
    ways.push_back(with_field(schema, path[0], std::move(inner)));
  }
  return ways;
}

// Objects with a string there, which is held apart.
json::object with_string(const SchemaDocument& document, const json::object& schema,
                         FieldPath path) {
  const json::object& value = *referred(document, schema.at("properties").at(path[0])).schema;
  return with_field(
      schema, path[0],
      path.size() == 1 ? with_mark(value) : with_string(document, value, path.subspan(1)));
}

}  // namespace

std::optional<json::array> few_values(const json::object& schema) {
  constexpr int64_t kMaxRange = 256;
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
      const std::optional<int64_t> first = decimal_of(*min)->ceil().to_int64();
      const std::optional<int64_t> last = decimal_of(*max)->floor().to_int64();
      if (!first || !last || std::abs(*first) > kMaxRange * kMaxRange) return std::nullopt;
      if (*last >= *first + kMaxRange) return std::nullopt;
      for (int64_t value = *first; value <= *last; ++value) values.emplace_back(value);
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
  if (lists_objects && !objects_.empty()) return false;
  take_listed();
  add_scalars(strings_, "string", KeywordOf::kString);
  add_scalars(numbers_, "number", KeywordOf::kNumber);
  return add_objects() && !fuel_.out();
}

// Strings and numbers that are listed are told apart as others are.
void ItemKinds::take_listed() {
  constexpr size_t kMaxNumbers = 256;
  json::array rest;
  for (json::value& other : others_) {
    const auto values = few_values(other.get_object());
    if (!values) {
      rest.push_back(std::move(other));
      continue;
    }
    json::array strings;
    json::array numbers;
    json::array kept;
    for (const json::value& value : *values) {
      const bool is_number = rudder::is_number(value) && values->size() <= kMaxNumbers;
      (is_string(value) ? strings : is_number ? numbers : kept).push_back(value);
    }
    json::object one = std::move(other.get_object());
    one.erase("const");
    const auto add = [&](json::array& kind, json::array& listed, const char* type) {
      const json::value* named = one.if_contains("type");
      const json::array types = common_types(named == nullptr ? json::value(type) : *named, type);
      if (listed.empty() || types.empty()) return;
      kind.emplace_back(one);
      kind.back().get_object()["enum"] = std::move(listed);
      kind.back().get_object()["type"] = types[0];
    };
    add(strings_, strings, "string");
    add(numbers_, numbers, "number");
    if (kept.empty()) continue;
    one["enum"] = std::move(kept);
    rest.emplace_back(std::move(one));
  }
  others_ = std::move(rest);
}

void ItemKinds::add_scalars(const json::array& schemas, const char* type, KeywordOf about) {
  if (schemas.empty()) return;
  // Any of the type is all of them.
  const auto* const any = std::ranges::find_if(schemas, [&](const json::value& one) {
    return std::ranges::all_of(one.get_object(), [&](const auto& field) {
      const KeywordInfo info = keyword_info(field.key());
      if (field.key() == "type") return field.value() == type;
      return info.annotation || (info.of != about && info.of != KeywordOf::kAnything);
    });
  });
  if (any != schemas.end()) {
    apart_.emplace_back(with_mark(any->get_object()));
  } else if (schemas.size() == 1) {
    apart_.emplace_back(with_mark(schemas[0].get_object()));
  } else {
    apart_.emplace_back(with_mark({{"type", type}, {"anyOf", schemas}}));
  }
}

// Whether its values are those of its options, as far as they have its types.
bool ItemKinds::may_split(const json::object& schema, std::string_view key) const {
  const bool alone = std::all_of(schema.begin(), schema.end(), [&](const auto& field) {
    return field.key() == key || field.key() == "type" || keyword_info(field.key()).annotation;
  });
  return alone && (key == "anyOf" || exclude_each_other_all(schema.at(key).get_array()));
}

bool ItemKinds::add_options(const json::object& schema, std::string_view key) {
  const json::value* type = schema.if_contains("type");
  for (const json::value& option : schema.at(key).get_array()) {
    const json::object* one = referred(document_, option).schema;
    if (type == nullptr || one == nullptr) {
      if (!add(option)) return false;
      continue;
    }
    json::object typed = *one;
    const json::value* own = one->if_contains("type");
    json::array types = common_types(*type, own == nullptr ? *type : *own);
    if (types.empty()) continue;
    typed["type"] = std::move(types);
    if (!add(typed)) return false;
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
    if (!object->contains(key) || !may_split(*object, key)) continue;
    ++depth_;
    const bool done = add_options(*object, key);
    --depth_;
    return done;
  }
  std::vector<std::string> types = types_of(*object);
  if (!object->contains("type")) {
    types = {"object", "array", "string", "number", "boolean", "null"};
  }
  for (const std::string& type : types) add_type(*object, type);
  return true;
}

void ItemKinds::add_type(const json::object& schema, const std::string& type) {
  json::object typed = schema;
  typed.erase("nullable");
  typed["type"] = type;
  const bool is_number =
      (type == "number" || type == "integer" || type == kFraction) && are_expressible(schema);
  json::array& kind = type == "string"   ? strings_
                      : is_number        ? numbers_
                      : type == "object" ? objects_
                                         : others_;
  kind.emplace_back(std::move(typed));
}

bool ItemKinds::exclude_each_other_all(const json::array& schemas) const {
  for (size_t i = 0; i < schemas.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (!exclude_each_other(fuel_, document_, schemas[k], schemas[i])) return false;
    }
  }
  return true;
}

// Objects that no other schema of them accepts are told apart by a string or number of their own;
// otherwise the first that can be is, and the others are without that string.
bool ItemKinds::add_objects() {
  const bool exclusive = exclude_each_other_all(objects_);
  std::vector<std::vector<std::string>> paths;
  for (const json::value& one : objects_) {
    paths.push_back(telling_field(fuel_, document_, one.get_object()).path);
  }
  const auto first = std::ranges::find_if(paths, [](const auto& path) { return !path.empty(); });
  for (size_t i = 0; i < objects_.size(); ++i) {
    const json::object& object = objects_[i].get_object();
    const bool is_first = std::cmp_equal(first - paths.begin(), i);
    if (first == paths.end() || (exclusive && paths[i].empty())) {
      others_.push_back(object);
      continue;
    }
    const bool is_told = exclusive || is_first;
    if (is_told) apart_.emplace_back(with_string(document_, object, paths[i]));
    auto rest =
        without_string(document_, object, is_told ? FieldPath(paths[i]) : FieldPath(*first));
    if (rest.empty() && !is_told) return false;
    for (json::object& one : rest) others_.emplace_back(std::move(one));
  }
  return true;
}

}  // namespace rudder::constraint
