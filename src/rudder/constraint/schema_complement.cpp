#include "rudder/constraint/schema_complement.h"

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>
#include <utility>

#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

constexpr int kMaxComplementDepth = 32;

class Complement {
 public:
  Complement(Fuel& fuel, const SchemaDocument& document) : fuel_(fuel), document_(document) {}

  Result<json::value> of(const json::value& schema, const std::string& path, int depth);

 private:
  // Values that break this one keyword; nothing is added where none can.
  Result<void> of_keyword(std::string_view key, const json::value& operand, const std::string& path,
                          int depth);
  Result<void> of_parts(std::string_view key, const json::value& operand, const std::string& path,
                        int depth);
  bool of_bound(std::string_view key, const json::value& operand);

  Fuel& fuel_;
  const SchemaDocument& document_;
  json::array ways_;
};

json::value all_of_two(json::value a, json::value b) {
  return json::object({{"allOf", json::array({std::move(a), std::move(b)})}});
}

json::array other_types(const json::value& type) {
  const json::array named = type.is_array() ? type.get_array() : json::array({type});
  json::array others;
  for (const char* one : {"object", "array", "string", "number", "boolean", "null"}) {
    const bool is_named = std::any_of(named.begin(), named.end(), [&](const json::value& name) {
      return name == one || (name == "integer" && one == std::string_view("number"));
    });
    if (!is_named) others.emplace_back(one);
  }
  return others;
}

struct Bound {
  std::string_view key;
  const char* opposite;
  const char* type;
  int step;  // from its operand to the opposite's; 0: the same number
};
constexpr Bound kBounds[] = {{"minimum", "exclusiveMaximum", "number", 0},
                             {"maximum", "exclusiveMinimum", "number", 0},
                             {"exclusiveMinimum", "maximum", "number", 0},
                             {"exclusiveMaximum", "minimum", "number", 0},
                             {"minLength", "maxLength", "string", -1},
                             {"maxLength", "minLength", "string", 1},
                             {"minItems", "maxItems", "array", -1},
                             {"maxItems", "minItems", "array", 1},
                             {"minProperties", "maxProperties", "object", -1},
                             {"maxProperties", "minProperties", "object", 1}};

bool Complement::of_bound(std::string_view key, const json::value& operand) {
  const auto* const bound = std::find_if(std::begin(kBounds), std::end(kBounds),
                                         [&](const Bound& one) { return one.key == key; });
  if (bound == std::end(kBounds)) return false;
  if (bound->step == 0) {
    ways_.emplace_back(json::object({{"type", bound->type}, {bound->opposite, operand}}));
    return true;
  }
  const int64_t number = static_cast<int64_t>(operand.to_number<double>()) + bound->step;
  if (number >= 0)
    ways_.emplace_back(json::object({{"type", bound->type}, {bound->opposite, number}}));
  return true;
}

Result<void> Complement::of_parts(std::string_view key, const json::value& operand,
                                  const std::string& path, int depth) {
  const json::array& parts = operand.get_array();
  json::array together;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string where = path_to(path, i);
    if (key == kConditions) {
      const json::object& condition = parts[i].get_object();
      Complement then_part(fuel_, document_);
      Complement else_part(fuel_, document_);
      Complement if_part(fuel_, document_);
      RUDDER_TRY(json::value not_if, if_part.of(condition.at("if"), where, depth + 1));
      RUDDER_TRY(json::value not_then, then_part.of(condition.at("then"), where, depth + 1));
      RUDDER_TRY(json::value not_else, else_part.of(condition.at("else"), where, depth + 1));
      ways_.push_back(all_of_two(condition.at("if"), std::move(not_then)));
      ways_.push_back(all_of_two(std::move(not_if), std::move(not_else)));
      continue;
    }
    if (key == kNoneOf) {
      ways_.push_back(parts[i]);
      continue;
    }
    RUDDER_TRY(json::value one, Complement(fuel_, document_).of(parts[i], where, depth + 1));
    (key == "allOf" ? ways_ : together).push_back(std::move(one));
  }
  if (key == "anyOf") ways_.push_back(json::object({{"allOf", std::move(together)}}));
  return {};
}

Result<void> Complement::of_keyword(std::string_view key, const json::value& operand,
                                    const std::string& path, int depth) {
  if (key == "type") {
    json::array others = other_types(operand);
    if (!others.empty()) ways_.emplace_back(json::object({{"type", std::move(others)}}));
  } else if (key == "const" || key == "enum") {
    const json::array values = key == "enum" ? operand.get_array() : json::array({operand});
    json::array lists = {json::value(json::object({{"enum", values}}))};
    ways_.emplace_back(json::object({{kNoneOf, std::move(lists)}}));
  } else if (key == "$ref") {
    RUDDER_TRY(const json::value* target, document_.resolve(operand.get_string(), path));
    RUDDER_TRY(json::value one, Complement(fuel_, document_).of(*target, path, depth + 1));
    ways_.push_back(std::move(one));
  } else if (key == "required") {
    for (const json::value& name : operand.get_array()) {
      json::object absent = {{name.get_string(), false}};
      ways_.emplace_back(json::object({{"type", "object"}, {"properties", std::move(absent)}}));
    }
  } else if (key == "properties") {
    for (const auto& field : operand.get_object()) {
      RUDDER_TRY(
          json::value one,
          Complement(fuel_, document_).of(field.value(), path_to(path, field.key()), depth + 1));
      if (one.is_bool() && !one.get_bool()) continue;
      json::object broken = {{field.key(), std::move(one)}};
      ways_.emplace_back(json::object({{"type", "object"},
                                       {"required", json::array({json::value(field.key())})},
                                       {"properties", std::move(broken)}}));
    }
  } else if (key == "allOf" || key == "anyOf" || key == kNoneOf || key == kConditions) {
    return of_parts(key, operand, path, depth);
  } else if (!of_bound(key, operand)) {
    return fail(ErrorCode::kInvalidArgument,
                "is not supported here: what it refuses cannot be said as a grammar", path);
  }
  return {};
}

Result<json::value> Complement::of(const json::value& schema, const std::string& path, int depth) {
  if (schema.is_bool()) return json::value(!schema.get_bool());
  if (depth > kMaxComplementDepth) {
    return fail(ErrorCode::kInvalidArgument, "goes round without an end", path);
  }
  for (const auto& field : schema.get_object()) {
    if (keyword_info(field.key()).annotation) continue;
    if (!fuel_.burn(json_bytes(field.value()) / 8)) return tl::unexpected(fuel_.error());
    RUDDER_TRY_VOID(of_keyword(field.key(), field.value(), path_to(path, field.key()), depth));
  }
  if (ways_.empty()) return json::value(false);
  if (ways_.size() == 1) return std::move(ways_[0]);
  return json::value(json::object({{"anyOf", std::move(ways_)}}));
}

}  // namespace

Result<json::value> complement(Fuel& fuel, const SchemaDocument& document,
                               const json::value& schema, const std::string& path) {
  return Complement(fuel, document).of(schema, path, 0);
}

}  // namespace rudder::constraint
