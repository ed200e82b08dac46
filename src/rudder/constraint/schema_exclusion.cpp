#include "rudder/constraint/schema_exclusion.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string_view>
#include <vector>

#include "rudder/constraint/schema_complement.h"
#include "rudder/constraint/schema_keywords.h"
#include "rudder/constraint/schema_merge.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

constexpr int kMaxProofDepth = 8;

// A schema with the parts that bind together with it: references are looked up, `allOf` is opened.
// Nothing where a part cannot be looked up, which leaves the others.
using Conjuncts = std::vector<const json::object*>;

void add_conjuncts(const SchemaDocument& document, const json::value& schema, int depth,
                   Conjuncts& out) {
  constexpr size_t kMaxConjuncts = 16;
  const json::object* object = schema.if_object();
  if (object == nullptr || depth > kMaxProofDepth || out.size() == kMaxConjuncts) return;
  out.push_back(object);
  if (const json::value* reference = object->if_contains("$ref")) {
    const auto target = document.resolve(reference->get_string(), "");
    if (target) add_conjuncts(document, **target, depth + 1, out);
  }
  if (const json::value* parts = object->if_contains("allOf")) {
    for (const json::value& part : parts->get_array()) {
      add_conjuncts(document, part, depth + 1, out);
    }
  }
}

bool required_in(const Conjuncts& parts, const json::value& name) {
  return std::any_of(parts.begin(), parts.end(), [&](const json::object* part) {
    const json::value* required = part->if_contains("required");
    return required != nullptr && lists_value(required->get_array(), name);
  });
}

const json::value* field_of(const json::object& schema, std::string_view name) {
  const json::value* fields = schema.if_contains("properties");
  return fields == nullptr ? nullptr : fields->get_object().if_contains(name);
}

// No object that it accepts has a field of the name.
bool is_without(const Conjuncts& parts, std::string_view name) {
  return std::any_of(parts.begin(), parts.end(), [&](const json::object* part) {
    const json::value* field = field_of(*part, name);
    if (field != nullptr && *field == json::value(false)) return true;
    const json::value* more = part->if_contains("additionalProperties");
    return more != nullptr && more->is_bool() && !more->get_bool() &&
           !part->contains("patternProperties") && field_of(*part, name) == nullptr;
  });
}

class Exclusion {
 public:
  Exclusion(Fuel& fuel, const SchemaDocument& document) : fuel_(fuel), document_(document) {}

  bool prove(const json::value& left, const json::value& right, int depth);
  // Every value of the schema is one of the way's, which a complement has.
  bool within(const json::value& schema, const json::value& way, int depth);
  // Every object of the schema takes the way, which says something of one field.
  bool takes(const json::value& schema, const json::value& way);

 private:
  // Each option of a list excludes the other schema.
  bool by_options(const Conjuncts& parts, const json::value& other, int depth);
  bool by_values(const Conjuncts& a, const Conjuncts& b);
  // A property that one must have, and that the other may not have, or not with such a value.
  bool by_fields(const Conjuncts& a, const Conjuncts& b, int depth);

  Fuel& fuel_;
  const SchemaDocument& document_;
};

bool Exclusion::by_options(const Conjuncts& parts, const json::value& other, int depth) {
  for (const json::object* part : parts) {
    for (const char* key : {"anyOf", "oneOf"}) {
      const json::value* list = part->if_contains(key);
      if (list != nullptr &&
          std::all_of(list->get_array().begin(), list->get_array().end(),
                      [&](const json::value& option) { return prove(option, other, depth + 1); })) {
        return true;
      }
    }
  }
  return false;
}

bool Exclusion::by_values(const Conjuncts& a, const Conjuncts& b) {
  for (const json::object* x : a) {
    json::array values_a;
    if (!listed_values(*x, &values_a)) continue;
    for (const json::object* y : b) {
      json::array values_b;
      if (!listed_values(*y, &values_b)) continue;
      const auto pairs = static_cast<int64_t>((values_a.size() + 8) * (values_b.size() + 8));
      if (!fuel_.burn(pairs)) return false;
      if (std::none_of(values_a.begin(), values_a.end(),
                       [&](const json::value& value) { return lists_value(values_b, value); })) {
        return true;
      }
    }
  }
  return false;
}

bool Exclusion::by_fields(const Conjuncts& a, const Conjuncts& b, int depth) {
  for (const json::object* one : a) {
    const json::value* required = one->if_contains("required");
    if (required == nullptr) continue;
    for (const json::value& name : required->get_array()) {
      const std::string_view key = name.get_string();
      if (!fuel_.burn(std::ssize(b))) return false;
      if (is_without(b, key)) return true;
      for (const json::object* x : a) {
        const json::value* mine = field_of(*x, key);
        if (mine == nullptr) continue;
        for (const json::object* y : b) {
          const json::value* theirs = field_of(*y, key);
          if (theirs != nullptr && prove(*mine, *theirs, depth + 1)) return true;
        }
      }
    }
  }
  return false;
}

bool Exclusion::prove(const json::value& left, const json::value& right, int depth) {
  constexpr int64_t kWorkOfProof = 500;
  if (!fuel_.burn(kWorkOfProof)) return false;
  if (left.is_bool() && !left.get_bool()) return true;
  if (right.is_bool() && !right.get_bool()) return true;
  if (!left.is_object() || !right.is_object() || depth > kMaxProofDepth) return false;
  Conjuncts a;
  Conjuncts b;
  add_conjuncts(document_, left, 0, a);
  add_conjuncts(document_, right, 0, b);
  if (!fuel_.burn(20 * std::ssize(a) * std::ssize(b))) return false;
  if (by_options(a, right, depth) || by_options(b, left, depth) || by_values(a, b)) return true;
  json::value types;  // that both may have; null: any
  for (const Conjuncts* side : {&a, &b}) {
    for (const json::object* part : *side) {
      const json::value* type = part->if_contains("type");
      if (type == nullptr) continue;
      const bool may_be_null = part->contains("nullable") && part->at("nullable").get_bool();
      json::array named = common_types(*type, *type);
      if (may_be_null) named.emplace_back("null");
      types = types.is_null() ? named : common_types(types, named);
    }
  }
  if (types.is_null()) return false;
  const json::array& common = types.get_array();
  if (common.empty()) return true;
  if (common.size() > 1 || common[0] != "object") return false;
  return by_fields(a, b, depth) || by_fields(b, a, depth);
}

bool Exclusion::within(const json::value& schema, const json::value& way, int depth) {
  if (way.is_bool()) return way.get_bool();
  if (!way.is_object() || depth > kMaxProofDepth) return false;
  Conjuncts parts;
  add_conjuncts(document_, schema, 0, parts);
  constexpr int64_t kBytesOfWork = 16;  // that are compared for a unit
  if (!fuel_.burn((20 + json_bytes(way) / kBytesOfWork) * std::ssize(parts))) return false;
  if (std::any_of(parts.begin(), parts.end(),
                  [&](const json::object* part) { return *part == way.get_object(); })) {
    return true;
  }
  if (way.get_object().size() != 1) return false;
  const auto& [key, operand] = *way.get_object().begin();
  if (key == "anyOf") {
    return std::any_of(operand.get_array().begin(), operand.get_array().end(),
                       [&](const json::value& one) { return within(schema, one, depth + 1); });
  }
  if (key == kNoneOf) {
    return std::all_of(operand.get_array().begin(), operand.get_array().end(),
                       [&](const json::value& one) { return prove(schema, one, depth + 1); });
  }
  return key == "type" && prove(schema, json::object({{"type", other_types(operand)}}), depth + 1);
}

bool Exclusion::takes(const json::value& schema, const json::value& way) {
  const json::object& asked = way.get_object();
  const json::value* fields = asked.if_contains("properties");
  if (fields == nullptr || fields->get_object().size() != 1) return false;
  const std::string_view name = fields->get_object().begin()->key();
  Conjuncts parts;
  add_conjuncts(document_, schema, 0, parts);
  const json::value* required = asked.if_contains("required");
  constexpr size_t kTypeAndField = 2;
  if (asked.size() != kTypeAndField + (required != nullptr ? 1 : 0)) return false;
  if (required == nullptr) return is_without(parts, name);
  if (*required != json::array({json::value(name)})) return false;
  return required_in(parts, json::string(name)) &&
         std::any_of(parts.begin(), parts.end(), [&](const json::object* part) {
           const json::value* mine = field_of(*part, name);
           return mine != nullptr && within(*mine, fields->get_object().begin()->value(), 0);
         });
}

bool is_open(const SchemaDocument& document, const json::value& schema, int depth) {
  if (schema.is_bool() || depth > kMaxProofDepth) return schema.is_bool() && schema.get_bool();
  const json::object& object = schema.get_object();
  return std::all_of(object.begin(), object.end(), [&](const auto& field) {
    const KeywordInfo info = keyword_info(field.key());
    if (field.key() == "$ref") {
      const auto target = document.resolve(field.value().get_string(), "");
      return target && is_open(document, **target, depth + 1);
    }
    if (field.key() == "allOf") {
      const json::array& parts = field.value().get_array();
      return std::all_of(parts.begin(), parts.end(), [&](const json::value& part) {
        return is_open(document, part, depth + 1);
      });
    }
    return info.annotation || info.of == KeywordOf::kObject;
  });
}

}  // namespace

bool exclude_each_other(Fuel& fuel, const SchemaDocument& document, const json::value& a,
                        const json::value& b) {
  return Exclusion(fuel, document).prove(a, b, 0);
}

bool objects_take(Fuel& fuel, const SchemaDocument& document, const json::value& schema,
                  const json::value& way) {
  return Exclusion(fuel, document).takes(schema, way);
}

KnownFields known_fields(const SchemaDocument& document, const json::value& schema) {
  KnownFields known;
  Conjuncts parts;
  add_conjuncts(document, schema, 0, parts);
  for (const json::object* part : parts) {
    const json::value* fields = part->if_contains("properties");
    const json::value* more = part->if_contains("additionalProperties");
    const bool is_closed =
        more != nullptr && *more == json::value(false) && !part->contains("patternProperties");
    if (is_closed) known = {.names = {}, .all = true};
    if (fields != nullptr) {
      for (const auto& field : fields->get_object()) known.names.emplace_back(field.key());
    }
    if (is_closed) break;
  }
  return known;
}

bool binds_objects_alone(const SchemaDocument& document, const json::value& schema) {
  return is_open(document, schema, 0);
}

}  // namespace rudder::constraint
