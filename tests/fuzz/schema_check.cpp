#include "schema_check.h"

#include <boost/json.hpp>
#include <cmath>
#include <optional>

#include "rudder/base/utf8.h"

namespace rudder::fuzz {
namespace {

namespace json = boost::json;

constexpr long double kRelativeError = 1e-12L;  // of numbers with more digits than doubles have

std::optional<long double> number_of(const json::value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_int64()) return static_cast<long double>(value->get_int64());
  if (value->is_uint64()) return static_cast<long double>(value->get_uint64());
  if (value->is_double() && std::isfinite(value->get_double())) return value->get_double();
  return std::nullopt;
}

// Certainly so, whatever the rounding of either.
bool is_less(long double a, long double b) {
  return a < b - kRelativeError * (std::fabs(a) + std::fabs(b));
}

bool same(const json::value& a, const json::value& b) {
  const auto x = number_of(&a);
  const auto y = number_of(&b);
  if (x && y) return !is_less(*x, *y) && !is_less(*y, *x);
  if (a.kind() != b.kind()) return false;
  if (a.is_array()) {
    const json::array& left = a.get_array();
    const json::array& right = b.get_array();
    if (left.size() != right.size()) return false;
    for (size_t i = 0; i < left.size(); ++i) {
      if (!same(left[i], right[i])) return false;
    }
    return true;
  }
  if (!a.is_object()) return a == b;
  const json::object& left = a.get_object();
  const json::object& right = b.get_object();
  if (left.size() != right.size()) return false;
  for (const auto& [key, value] : left) {
    const json::value* other = right.if_contains(key);
    if (other == nullptr || !same(value, *other)) return false;
  }
  return true;
}

bool has_type(const json::value& document, std::string_view type) {
  if (type == "null") return document.is_null();
  if (type == "boolean") return document.is_bool();
  if (type == "string") return document.is_string();
  if (type == "array") return document.is_array();
  if (type == "object") return document.is_object();
  if (type == "number") return document.is_number();
  if (type != "integer") return true;
  const auto number = number_of(&document);
  return document.is_number() && (!number || *number == std::floor(*number));
}

class SchemaReader {
 public:
  SchemaReader(const json::object& schema, const json::value& document)
      : schema_(schema), document_(document) {}

  std::string broken() const {
    if (schema_.contains("$ref")) return "";
    for (const auto part :
         {&SchemaReader::values, &SchemaReader::numbers, &SchemaReader::lengths,
          &SchemaReader::items, &SchemaReader::properties, &SchemaReader::joined}) {
      if (std::string keyword = (this->*part)(); !keyword.empty()) return keyword;
    }
    return "";
  }

 private:
  const json::value* keyword(std::string_view name) const { return schema_.if_contains(name); }
  std::optional<long double> number(std::string_view name) const {
    return number_of(keyword(name));
  }

  std::string values() const {
    if (const json::value* type = keyword("type")) {
      bool has = !type->is_string() && !type->is_array();
      if (type->is_string()) has = has_type(document_, type->get_string());
      if (type->is_array()) {
        for (const json::value& each : type->get_array()) {
          has = has || !each.is_string() || has_type(document_, each.get_string());
        }
      }
      if (!has) return "type";
    }
    if (const json::value* one = keyword("const"); one != nullptr && !same(*one, document_)) {
      return "const";
    }
    const json::value* list = keyword("enum");
    if (list == nullptr || !list->is_array()) return "";
    for (const json::value& each : list->get_array()) {
      if (same(each, document_)) return "";
    }
    return "enum";
  }

  std::string numbers() const {
    const auto value = number_of(&document_);
    if (!value) return "";
    const auto min = number("minimum");
    if (min && is_less(*value, *min)) return "minimum";
    const auto max = number("maximum");
    if (max && is_less(*max, *value)) return "maximum";
    const auto above = number("exclusiveMinimum");
    if (above && (is_less(*value, *above) || *value == *above)) return "exclusiveMinimum";
    const auto below = number("exclusiveMaximum");
    if (below && (is_less(*below, *value) || *value == *below)) return "exclusiveMaximum";
    return "";
  }

  std::string bounds(size_t size, const char* least, const char* most) const {
    const auto min = number(least);
    if (min && static_cast<long double>(size) < *min) return least;
    const auto max = number(most);
    if (max && static_cast<long double>(size) > *max) return most;
    return "";
  }
  std::string lengths() const {
    if (document_.is_string()) {
      const auto& text = document_.get_string();
      return bounds(count_code_points({text.data(), text.size()}), "minLength", "maxLength");
    }
    if (document_.is_array()) return bounds(document_.get_array().size(), "minItems", "maxItems");
    if (document_.is_object()) {
      return bounds(document_.get_object().size(), "minProperties", "maxProperties");
    }
    return "";
  }

  std::string items() const {
    if (!document_.is_array()) return "";
    const json::value* rest = keyword("items");
    const json::value* first = keyword("prefixItems");
    if (rest != nullptr && rest->is_array()) std::swap(first, rest);  // of older drafts
    const size_t num_first = first != nullptr && first->is_array() ? first->get_array().size() : 0;
    const json::array& list = document_.get_array();
    for (size_t i = 0; i < list.size(); ++i) {
      const json::value* schema = i < num_first ? &first->get_array()[i] : rest;
      if (i >= num_first && first != nullptr && first == keyword("items")) break;
      if (schema == nullptr) continue;
      if (const std::string inner = broken_keyword(*schema, list[i]); !inner.empty()) {
        return "items/" + inner;
      }
    }
    return "";
  }

  std::string properties() const {
    if (!document_.is_object()) return "";
    const json::object& object = document_.get_object();
    if (const json::value* required = keyword("required");
        required != nullptr && required->is_array()) {
      for (const json::value& name : required->get_array()) {
        if (name.is_string() && !object.contains(name.get_string())) return "required";
      }
    }
    const json::value* named = keyword("properties");
    const json::value* others =
        schema_.contains("patternProperties") ? nullptr : keyword("additionalProperties");
    for (const auto& [key, value] : object) {
      const json::value* schema =
          named != nullptr && named->is_object() ? named->get_object().if_contains(key) : nullptr;
      if (schema == nullptr) schema = others;
      if (schema == nullptr) continue;
      if (const std::string inner = broken_keyword(*schema, value); !inner.empty()) {
        return "properties/" + inner;
      }
    }
    return "";
  }

  std::string joined() const {
    if (const json::value* all = keyword("allOf"); all != nullptr && all->is_array()) {
      for (const json::value& each : all->get_array()) {
        if (const std::string inner = broken_keyword(each, document_); !inner.empty()) {
          return "allOf/" + inner;
        }
      }
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      const json::value* any = keyword(name);
      if (any == nullptr || !any->is_array() || any->get_array().empty()) continue;
      bool fits = false;
      for (const json::value& each : any->get_array()) {
        fits = fits || broken_keyword(each, document_).empty();
      }
      if (!fits) return name;
    }
    return "";
  }

  const json::object& schema_;
  const json::value& document_;
};

}  // namespace

std::string broken_keyword(const json::value& schema, const json::value& document) {
  if (schema.is_bool()) return schema.get_bool() ? "" : "false";
  if (!schema.is_object()) return "";
  return SchemaReader(schema.get_object(), document).broken();
}

}  // namespace rudder::fuzz
