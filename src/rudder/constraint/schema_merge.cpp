#include "rudder/constraint/schema_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "rudder/base/exact_json.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_parts.h"
#include "rudder/constraint/string_formats.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

constexpr size_t kMaxProduct = 2048;  // alternatives of two lists that bind together

// The parts of a schema that is nothing but parts, or the schema: each once, as far as they are
// few.
void add_parts(const json::value& schema, json::array& parts) {
  constexpr size_t kFew = 16;
  const json::object* object = schema.if_object();
  const json::value* list =
      object != nullptr && object->size() == 1 ? object->if_contains("allOf") : nullptr;
  if (list != nullptr) {
    for (const json::value& part : list->get_array()) add_parts(part, parts);
  } else if (parts.size() > kFew || std::ranges::find(parts, schema) == parts.end()) {
    parts.push_back(schema);
  }
}

// The same schemas are the same list however they were put together.
json::value all_of(const json::value& a, const json::value& b) {
  if (a.is_bool()) return a.get_bool() ? b : a;
  if (b.is_bool()) return b.get_bool() ? a : b;
  json::array parts;
  add_parts(a, parts);
  add_parts(b, parts);
  if (parts.size() > 1) return json::object({{"allOf", std::move(parts)}});
  json::value only = std::move(parts[0]);
  return only;
}

// What a schema says of fields by their names, as a list of shapes.
json::array shapes_in(const json::object& schema) {
  if (const json::value* shapes = schema.if_contains(kShapes)) return shapes->get_array();
  json::object shape;
  for (const char* key : {"properties", "patternProperties", "additionalProperties"}) {
    if (const json::value* value = schema.if_contains(key)) shape[key] = *value;
  }
  return {json::value(std::move(shape))};
}

bool is_part_of_numbers(const json::value& type) {
  return type == "integer" || type == json::value(kFraction);
}

class Merger {
 public:
  Merger(Fuel& fuel, const json::object& a, const json::object& b, const std::string& path)
      : fuel_(fuel), a_(a), b_(b), path_(path) {}

  Result<json::value> merge();

 private:
  tl::unexpected<Error> bad(std::string_view key, std::string_view why) const {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("meets another {} here, which {}", key, why), path_to(path_, key));
  }
  Result<void> both(std::string_view key, const json::value& a, const json::value& b);
  Result<void> objects();
  void arrays();
  void values();
  bool has_any(const json::object& schema, std::initializer_list<std::string_view> keys) const {
    return std::any_of(keys.begin(), keys.end(),
                       [&](std::string_view key) { return schema.contains(key); });
  }

  Fuel& fuel_;
  const json::object& a_;
  const json::object& b_;
  const std::string& path_;
  json::object out_;
  bool impossible_ = false;
};

// Keywords whose two operands make one.
Result<void> Merger::both(std::string_view key, const json::value& a, const json::value& b) {
  const auto number = [](const json::value& value) { return *decimal_of(value); };
  if (a == b || keyword_info(key).annotation) {
    out_[key] = a;
  } else if (key.starts_with("min") || key == "exclusiveMinimum") {
    out_[key] = number(a) > number(b) ? a : b;
  } else if (key.starts_with("max") || key == "exclusiveMaximum") {
    out_[key] = number(a) < number(b) ? a : b;
  } else if (key == "type") {
    const json::array types = common_types(a, b);
    impossible_ = impossible_ || types.empty();
    out_[key] = types;
  } else if (key == "uniqueItems" || key == kUnique) {
    out_[key] = true;
  } else if (key == "unevaluatedProperties") {
    out_[key] = all_of(a, b);
  } else if (key == "format" && format_pattern(b.get_string()).empty()) {
    out_[key] = a;
  } else if (key == "format" && format_pattern(a.get_string()).empty()) {
    out_[key] = b;
  } else if (key == "required" || key == kPatterns || key == kNoPatterns) {
    json::array names = a.get_array();
    for (const json::value& name : b.get_array()) {
      if (!fuel_.burn(std::ssize(names))) return tl::unexpected(fuel_.error());
      if (!lists_value(names, name)) names.push_back(name);
    }
    out_[key] = std::move(names);
  } else if (key == "allOf" || key == kNoneOf || key == kConditions) {
    json::array list = a.get_array();
    list.insert(list.end(), b.get_array().begin(), b.get_array().end());
    out_[key] = std::move(list);
  } else if (key == "anyOf" || key == "oneOf") {
    json::array product;
    if (a.get_array().size() * b.get_array().size() > kMaxProduct) {
      return bad(key, "makes too many alternatives");
    }
    const auto sizes = static_cast<int64_t>(b.get_array().size()) * json_bytes(a) +
                       static_cast<int64_t>(a.get_array().size()) * json_bytes(b);
    if (!fuel_.can_hold(sizes)) return tl::unexpected(fuel_.error());
    for (const json::value& x : a.get_array()) {
      for (const json::value& y : b.get_array()) product.push_back(all_of(x, y));
    }
    out_[key] = std::move(product);
  } else if (key == "multipleOf") {
    const std::optional<int64_t> x = number(a).to_int64();
    const std::optional<int64_t> y = number(b).to_int64();
    constexpr int64_t kMaxMultiple = 1'000'000'000;
    if (!x || !y || *x > kMaxMultiple || *y > kMaxMultiple) return bad(key, "is not supported");
    out_[key] = std::lcm(*x, *y);
  } else {
    return bad(key, "is not supported");
  }
  return {};
}

Result<void> Merger::objects() {
  const auto shapes = {std::string_view("properties"), std::string_view("additionalProperties"),
                       std::string_view("patternProperties"), std::string_view("propertyNames"),
                       kShapes};
  const auto any = [](const json::object& schema, const auto& keys) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](std::string_view key) { return schema.contains(key); });
  };
  if (!any(a_, shapes) || !any(b_, shapes)) {
    const json::object& one = any(a_, shapes) ? a_ : b_;
    for (const std::string_view key : shapes) {
      if (const json::value* value = one.if_contains(key)) out_[key] = *value;
    }
    return {};
  }
  const auto take = [](const json::object& schema, const char* key) -> json::object {
    const json::value* value = schema.if_contains(key);
    return value == nullptr ? json::object() : value->get_object();
  };
  for (const json::object* side : {&a_, &b_}) {
    const json::value* names = side->if_contains("propertyNames");
    if (names == nullptr) continue;
    json::value& joined = out_["propertyNames"];
    joined = joined.is_null() ? *names : all_of(joined, *names);
  }
  json::object patterns = take(a_, "patternProperties");
  const json::object more_patterns = take(b_, "patternProperties");
  const size_t num_before = patterns.size();
  for (const auto& field : more_patterns) {
    const json::value* known = patterns.if_contains(field.key());
    patterns[field.key()] = known == nullptr ? field.value() : all_of(*known, field.value());
  }
  // A name that only one side has a pattern for is an additional one of the other.
  const bool same = patterns.size() == num_before && patterns.size() == more_patterns.size();
  const bool has_more = a_.contains("additionalProperties") || b_.contains("additionalProperties");
  if (a_.contains(kShapes) || b_.contains(kShapes) || (!same && has_more)) {
    json::array all = shapes_in(a_);
    for (json::value& shape : shapes_in(b_)) all.push_back(std::move(shape));
    out_[kShapes] = std::move(all);
    return {};
  }
  if (!patterns.empty()) out_["patternProperties"] = std::move(patterns);
  const json::object none;
  const auto fields = [&](const json::object& schema) -> const json::object& {
    const json::value* value = schema.if_contains("properties");
    return value == nullptr ? none : value->get_object();
  };
  // What a schema says of a property: its own schema, or that of additional ones.
  const auto says = [&](const json::object& schema, std::string_view name) -> json::value {
    if (const json::value* value = fields(schema).if_contains(name)) return *value;
    const json::value* more = schema.if_contains("additionalProperties");
    return more == nullptr ? json::value(true) : *more;
  };
  json::object properties;
  for (const json::object* side : {&a_, &b_}) {
    for (const auto& field : fields(*side)) {
      properties[field.key()] = all_of(says(a_, field.key()), says(b_, field.key()));
    }
  }
  if (a_.contains("properties") || b_.contains("properties")) {
    out_["properties"] = std::move(properties);
  }
  const json::value* more_a = a_.if_contains("additionalProperties");
  const json::value* more_b = b_.if_contains("additionalProperties");
  if (more_a != nullptr && more_b != nullptr) {
    out_["additionalProperties"] = all_of(*more_a, *more_b);
  } else if (more_a != nullptr || more_b != nullptr) {
    out_["additionalProperties"] = more_a != nullptr ? *more_a : *more_b;
  }
  return {};
}

void Merger::arrays() {
  const auto keys = {std::string_view("prefixItems"), std::string_view("items"),
                     std::string_view("contains"), kContained};
  if (!has_any(a_, keys) && !has_any(b_, keys)) return;
  const auto prefix = [](const json::object& schema) {
    const json::value* value = schema.if_contains("prefixItems");
    return value == nullptr ? json::array() : value->get_array();
  };
  const json::array a = prefix(a_);
  const json::array b = prefix(b_);
  const json::value* rest_a = a_.if_contains("items");
  const json::value* rest_b = b_.if_contains("items");
  const auto item = [](const json::array& list, const json::value* rest, size_t i) -> json::value {
    if (i < list.size()) return list[i];
    return rest == nullptr ? json::value(true) : *rest;
  };
  json::array joined;
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    joined.push_back(all_of(item(a, rest_a, i), item(b, rest_b, i)));
  }
  if (!joined.empty()) out_["prefixItems"] = std::move(joined);
  if (rest_a != nullptr && rest_b != nullptr) {
    out_["items"] = all_of(*rest_a, *rest_b);
  } else if (rest_a != nullptr || rest_b != nullptr) {
    out_["items"] = rest_a != nullptr ? *rest_a : *rest_b;
  }
  json::array contained = contained_in(a_);
  for (json::value& one : contained_in(b_)) {
    if (std::ranges::find(contained, one) == contained.end()) contained.push_back(std::move(one));
  }
  if (contained.size() == 1) {
    out_["contains"] = std::move(contained[0]);
  } else if (!contained.empty()) {
    out_[kContained] = std::move(contained);
  }
}

void Merger::values() {
  json::array a;
  json::array b;
  const bool has_a = listed_values(a_, &a);
  const bool has_b = listed_values(b_, &b);
  if (!has_a && !has_b) return;
  json::array common = has_a ? a : b;
  if (has_a && has_b) {
    common.clear();
    for (const json::value& value : a) {
      if (!fuel_.burn(std::ssize(b))) return;  // merge() says so
      if (lists_value(b, value)) common.push_back(value);
    }
  }
  impossible_ = impossible_ || common.empty();
  out_["enum"] = std::move(common);
}

Result<json::value> Merger::merge() {
  constexpr std::string_view kDoneApart[] = {"const",
                                             "enum",
                                             "properties",
                                             "additionalProperties",
                                             "patternProperties",
                                             "propertyNames",
                                             "items",
                                             "prefixItems",
                                             "contains",
                                             kContained,
                                             kShapes};
  const auto apart = [&](std::string_view key) {
    return std::find(std::begin(kDoneApart), std::end(kDoneApart), key) != std::end(kDoneApart);
  };
  for (const json::object* side : {&a_, &b_}) {
    const json::object& other = side == &a_ ? b_ : a_;
    for (const auto& field : *side) {
      if (apart(field.key()) || out_.contains(field.key())) continue;
      if (keyword_info(field.key()).annotation) continue;
      const json::value* second = other.if_contains(field.key());
      if (second == nullptr) {
        out_[field.key()] = field.value();
        continue;
      }
      RUDDER_TRY_VOID(both(field.key(), field.value(), *second));
    }
  }
  RUDDER_TRY_VOID(objects());
  arrays();
  values();
  if (fuel_.out()) return tl::unexpected(fuel_.error());
  if (impossible_) return json::value(false);
  return json::value(std::move(out_));
}

}  // namespace

bool same_value(const json::value& a, const json::value& b) {
  if (a.is_array() && b.is_array()) {
    return std::ranges::equal(a.get_array(), b.get_array(), same_value);
  }
  if (!a.is_object() || !b.is_object()) return a == b;
  const json::object& other = b.get_object();
  return a.get_object().size() == other.size() &&
         std::ranges::all_of(a.get_object(), [&](const auto& field) {
           const json::value* value = other.if_contains(field.key());
           return value != nullptr && same_value(field.value(), *value);
         });
}

bool lists_value(const json::array& list, const json::value& value) {
  return std::any_of(list.begin(), list.end(),
                     [&](const json::value& item) { return same_value(item, value); });
}

json::array common_types(const json::value& a, const json::value& b) {
  json::array common;
  const auto as_list = [](const json::value& value) {
    return value.is_array() ? value.get_array() : json::array({value});
  };
  const json::array left = as_list(a);
  const json::array right = as_list(b);
  const auto keep = [&](const json::value& type) {
    if (!lists_value(common, type)) common.push_back(type);
  };
  for (const json::value& x : left) {
    for (const json::value& y : right) {
      if (x == y || (y == "number" && is_part_of_numbers(x))) keep(x);
      if (x == "number" && is_part_of_numbers(y)) keep(y);
    }
  }
  return common;
}

bool listed_values(const json::object& schema, json::array* out) {
  const json::value* list = schema.if_contains("enum");
  if (const json::value* value = schema.if_contains("const")) {
    *out = {*value};
    if (list != nullptr && !lists_value(list->get_array(), *value)) out->clear();
    return true;
  }
  if (list != nullptr) *out = list->get_array();
  return list != nullptr;
}

int64_t json_bytes(const json::value& value) {
  constexpr int64_t kValue = 96;    // with its key, and its share of what it is in
  constexpr int64_t kObject = 112;  // that has fields, with room for more of them
  int64_t bytes = kValue;
  if (const json::string* text = value.if_string()) return bytes + std::ssize(*text);
  if (const json::array* list = value.if_array()) {
    for (const json::value& item : *list) bytes += json_bytes(item);
  } else if (const json::object* object = value.if_object();
             object != nullptr && !object->empty()) {
    bytes += kObject;
    for (const auto& field : *object) bytes += std::ssize(field.key()) + json_bytes(field.value());
  }
  return bytes;
}

Result<json::value> merge_schemas(Fuel& fuel, const json::value& a, const json::value& b,
                                  const std::string& path) {
  const int64_t bytes = json_bytes(a) + json_bytes(b);
  if (!fuel.burn(bytes / 3) || !fuel.can_hold(2 * bytes)) return tl::unexpected(fuel.error());
  if (a.is_bool() || b.is_bool()) return all_of(a, b);
  return Merger(fuel, a.get_object(), b.get_object(), path).merge();
}

}  // namespace rudder::constraint
