#include "rudder/constraint/schema_complement.h"

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>
#include <optional>
#include <utility>

#include "rudder/base/exact_json.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"
#include "rudder/constraint/string_formats.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

constexpr int kMaxComplementDepth = 32;

class Complementer {
 public:
  // `held`: of what all of one complement is built of.
  Complementer(Fuel& fuel, Held& held, const SchemaDocument& document, const KnownFields& fields)
      : fuel_(fuel), held_(held), document_(document), fields_(fields) {}

  Result<Complement> of(const json::value& schema, const std::string& path, int depth);

 private:
  // Ways to break this one keyword; none are added where none can.
  Result<void> of_keyword(std::string_view key, const json::value& operand, const std::string& path,
                          int depth);
  Result<void> of_parts(std::string_view key, const json::value& operand, const std::string& path,
                        int depth);
  void of_pairs(const json::array& options);
  Result<void> of_fields(const json::value& operand, const std::string& path, int depth);
  Result<void> of_additional(const json::object& schema, const std::string& path, int depth);
  bool of_bound(std::string_view key, const json::value& operand);
  bool of_string(std::string_view key, const json::value& operand);
  // What another schema refuses, of the same value or of one in it; nothing, and a note of it,
  // where that cannot be said.
  Result<std::optional<json::value>> of_other(const json::value& schema, const std::string& path,
                                              int depth) {
    return of_other(schema, path, depth, fields_);
  }
  Result<std::optional<json::value>> of_other(const json::value& schema, const std::string& path,
                                              int depth, const KnownFields& fields);
  // A copy of what was there before, which is paid for. Null where the fuel is out.
  json::value copy_of(const json::value& value);
  // A way around what was built, or copied, already.
  void add_way(json::object way);
  void break_field(std::string_view name, json::value broken);
  void lose(Error error);
  bool spend(int64_t bytes) { return fuel_.burn(bytes / kBytesOfWork) && held_.add(bytes); }

  static constexpr int64_t kBytesOfWork = 3;  // that are built for a unit, as where schemas join

  Fuel& fuel_;
  Held& held_;
  const SchemaDocument& document_;
  const KnownFields& fields_;
  Complement out_;
  std::optional<Error> lost_;  // the first keyword that cannot be said
};

Error cannot_say(const std::string& path) {
  return {ErrorCode::kInvalidArgument,
          "is not supported here: what it refuses cannot be said as a grammar", path};
}

json::object all_of_two(json::value a, json::value b) {
  json::array both;
  both.reserve(2);
  both.push_back(std::move(a));
  both.push_back(std::move(b));
  json::object way;
  way["allOf"] = std::move(both);
  return way;
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

json::value Complementer::copy_of(const json::value& value) {
  return spend(json_bytes(value)) ? value : json::value();
}

void Complementer::add_way(json::object way) {
  // An object of two fields, with what they are called, and what the lists around it keep free.
  constexpr int64_t kWay = 560;
  if (spend(kWay)) out_.ways.emplace_back(std::move(way));
}

void Complementer::lose(Error error) {
  out_.exact = false;
  if (!lost_) lost_ = std::move(error);
}

bool Complementer::of_bound(std::string_view key, const json::value& operand) {
  const auto* const bound = std::find_if(std::begin(kBounds), std::end(kBounds),
                                         [&](const Bound& one) { return one.key == key; });
  if (bound == std::end(kBounds)) return false;
  if (bound->step == 0) {
    add_way({{"type", bound->type}, {bound->opposite, operand}});
    return true;
  }
  const int64_t number = operand.get_int64() + bound->step;
  if (number >= 0) {
    add_way({{"type", bound->type}, {bound->opposite, number}});
  }
  return true;
}

// Each expression that must match may be the one that does not, and the other way round.
bool Complementer::of_string(std::string_view key, const json::value& operand) {
  const bool is_format = key == "format";
  if (key != kPatterns && key != kNoPatterns && !is_format) return false;
  json::array patterns;
  if (is_format) {
    const std::string wide = wide_format_pattern(operand.get_string());
    if (wide.empty()) return true;  // of a format that is not known: says nothing
    patterns.emplace_back(wide);
  } else {
    if (!spend(json_bytes(operand))) return true;
    patterns = operand.get_array();
  }
  const std::string_view opposite = key == kNoPatterns ? kPatterns : kNoPatterns;
  for (json::value& pattern : patterns) {
    json::object way = {{"type", "string"}};
    way[opposite] = json::array({std::move(pattern)});
    add_way(std::move(way));
  }
  return true;
}

Result<std::optional<json::value>> Complementer::of_other(const json::value& schema,
                                                          const std::string& path, int depth,
                                                          const KnownFields& fields) {
  Result<Complement> other =
      Complementer(fuel_, held_, document_, fields).of(schema, path, depth + 1);
  if (fuel_.out()) return tl::unexpected(fuel_.error());
  if (!other) {
    lose(std::move(other.error()));
    return std::optional<json::value>();
  }
  out_.exact = out_.exact && other->exact;
  return std::optional(std::move(*other).any());
}

Result<void> Complementer::of_parts(std::string_view key, const json::value& operand,
                                    const std::string& path, int depth) {
  const json::array& parts = operand.get_array();
  json::array together;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string where = path_to(path, i);
    if (key == kConditions) {
      const json::object& condition = parts[i].get_object();
      RUDDER_TRY(auto not_if, of_other(condition.at("if"), where, depth));
      RUDDER_TRY(auto not_then, of_other(condition.at("then"), where, depth));
      RUDDER_TRY(auto not_else, of_other(condition.at("else"), where, depth));
      if (not_then) add_way(all_of_two(copy_of(condition.at("if")), std::move(*not_then)));
      if (not_if && not_else) add_way(all_of_two(std::move(*not_if), std::move(*not_else)));
      continue;
    }
    if (key == kNoneOf) {
      out_.ways.push_back(copy_of(parts[i]));
      continue;
    }
    RUDDER_TRY(auto one, of_other(parts[i], where, depth));
    if (key == "allOf") {
      if (one) out_.ways.push_back(std::move(*one));
    } else {
      if (!one) return {};
      together.push_back(std::move(*one));
    }
  }
  if (together.empty()) return {};
  add_way({{"allOf", std::move(together)}});
  if (key == "oneOf") of_pairs(parts);
  return {};
}

// Of oneOf, two that hold at once are refused as well.
void Complementer::of_pairs(const json::array& options) {
  constexpr size_t kMostOptions = 8;
  if (options.size() > kMostOptions) {
    out_.exact = false;
    return;
  }
  for (size_t i = 1; i < options.size(); ++i) {
    for (size_t j = 0; j < i && !fuel_.out(); ++j) {
      add_way(all_of_two(copy_of(options[j]), copy_of(options[i])));
    }
  }
}

void Complementer::break_field(std::string_view name, json::value broken) {
  add_way({{"type", "object"},
           {"required", json::array({json::value(name)})},
           {"properties", json::object({{name, std::move(broken)}})}});
}

Result<void> Complementer::of_fields(const json::value& operand, const std::string& path,
                                     int depth) {
  for (const auto& field : operand.get_object()) {
    RUDDER_TRY(auto one, of_other(field.value(), path_to(path, field.key()), depth, {}));
    if (!one || (one->is_bool() && !one->get_bool())) continue;
    break_field(field.key(), std::move(*one));
  }
  return {};
}

// Of the fields that are known, those that are additional ones here.
Result<void> Complementer::of_additional(const json::object& schema, const std::string& path,
                                         int depth) {
  const json::value& operand = schema.at("additionalProperties");
  if (operand == json::value(true)) return {};
  const json::value* own = schema.if_contains("properties");
  if (!fields_.all || schema.contains("patternProperties")) {
    lose(cannot_say(path));
  }
  if (schema.contains("patternProperties")) return {};
  RUDDER_TRY(auto one, of_other(operand, path, depth, {}));
  for (const std::string& name : fields_.names) {
    if (!one || (own != nullptr && own->get_object().contains(name))) continue;
    json::value broken = copy_of(*one);
    if (fuel_.out()) return tl::unexpected(fuel_.error());
    break_field(name, std::move(broken));
  }
  return {};
}

Result<void> Complementer::of_keyword(std::string_view key, const json::value& operand,
                                      const std::string& path, int depth) {
  constexpr std::string_view kOfMembers[] = {"unevaluatedProperties", "propertyNames", "items"};
  const bool is_of_members =
      std::find(std::begin(kOfMembers), std::end(kOfMembers), key) != std::end(kOfMembers);
  if (is_of_members && operand.is_bool() && operand.get_bool()) return {};  // refuses nothing
  if (key == "type") {
    json::array others = other_types(operand);
    if (!others.empty()) add_way({{"type", std::move(others)}});
  } else if (key == "const" || key == "enum") {
    json::value values = copy_of(operand);
    if (key == "const") values = json::array({std::move(values)});
    json::array lists = {json::value(json::object({{"enum", std::move(values)}}))};
    add_way({{kNoneOf, std::move(lists)}});
  } else if (key == "$ref") {
    RUDDER_TRY(const json::value* target, document_.resolve(operand.get_string(), path));
    RUDDER_TRY(auto one, of_other(*target, path, depth));
    if (one) out_.ways.push_back(std::move(*one));
  } else if (key == "required") {
    for (const json::value& name : operand.get_array()) {
      json::object absent = {{name.get_string(), false}};
      add_way({{"type", "object"}, {"properties", std::move(absent)}});
    }
  } else if (key == "contains") {
    RUDDER_TRY(auto one, of_other(operand, path, depth, {}));
    if (one) add_way({{"type", "array"}, {"items", std::move(*one)}});
  } else if (key == "properties") {
    return of_fields(operand, path, depth);
  } else if (key == "multipleOf" && decimal_of(operand)->is_whole()) {
    // No multiple has a fraction; of whole numbers that are none, only those of 1 are known.
    add_way({{"type", kFraction}});
    if (*decimal_of(operand) != Decimal(1)) lose(cannot_say(path));
  } else if (key == "allOf" || key == "anyOf" || key == "oneOf" || key == kNoneOf ||
             key == kConditions) {
    return of_parts(key, operand, path, depth);
  } else if (!of_bound(key, operand) && !of_string(key, operand)) {
    lose(cannot_say(path));
  }
  return {};
}

Result<Complement> Complementer::of(const json::value& schema, const std::string& path, int depth) {
  if (schema.is_bool()) {
    if (!schema.get_bool()) out_.ways.emplace_back(true);
    return std::move(out_);
  }
  if (depth > kMaxComplementDepth) {
    return fail(ErrorCode::kInvalidArgument, "goes round without an end", path);
  }
  for (const auto& field : schema.get_object()) {
    if (keyword_info(field.key()).annotation) continue;
    if (!fuel_.burn(json_bytes(field.value()) / 8)) return tl::unexpected(fuel_.error());
    const std::string where = path_to(path, field.key());
    if (field.key() == "additionalProperties") {
      RUDDER_TRY_VOID(of_additional(schema.get_object(), where, depth));
    } else {
      RUDDER_TRY_VOID(of_keyword(field.key(), field.value(), where, depth));
    }
  }
  if (fuel_.out()) return tl::unexpected(fuel_.error());
  if (out_.ways.empty() && lost_) return tl::unexpected(std::move(*lost_));
  return std::move(out_);
}

}  // namespace

json::array other_types(const json::value& type) {
  const json::array named = type.is_array() ? type.get_array() : json::array({type});
  json::array others;
  for (const std::string_view one : {"object", "array", "string", "boolean", "null", "number"}) {
    if (!lists_value(named, json::string(one))) others.emplace_back(one);
  }
  const bool has_whole = lists_value(named, "integer");
  const bool has_others = lists_value(named, json::string(kFraction));
  if (!lists_value(others, "number") || (!has_whole && !has_others)) return others;
  others.pop_back();  // "number", of which one half is left, or none
  if (!has_whole) others.emplace_back("integer");
  if (!has_others) others.emplace_back(kFraction);
  return others;
}

json::value Complement::any() && {
  if (ways.empty()) return json::value(false);
  if (ways.size() == 1) {
    json::value only = std::move(ways[0]);
    return only;
  }
  return json::value(json::object({{"anyOf", std::move(ways)}}));
}

Result<Complement> complement(Fuel& fuel, const SchemaDocument& document, const json::value& schema,
                              const std::string& path, const KnownFields& fields) {
  Held held(fuel);
  return Complementer(fuel, held, document, fields).of(schema, path, 0);
}

}  // namespace rudder::constraint
