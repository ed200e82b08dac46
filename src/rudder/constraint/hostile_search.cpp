#include "rudder/constraint/hostile_search.h"

#include <utility>

#include "rudder/base/json.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

constexpr size_t kMostTextBytes = 2'000;  // of a text
constexpr int kMostMisses = 40;

// Every schema, and list or map of schemas, in the value.
void collect_places(json::value& value, std::vector<json::value*>& out) {
  if (json::object* object = value.if_object()) {
    out.push_back(&value);
    for (auto& field : *object) collect_places(field.value(), out);
  } else if (json::array* list = value.if_array()) {
    for (json::value& item : *list) collect_places(item, out);
  }
}

}  // namespace

const char* HostileSearch::name() {
  static const char* const names[] = {"", "a", "b", "c", "kind", "é"};
  return names[pick(std::size(names))];
}

json::value HostileSearch::value(int depth) {
  switch (pick(depth > 0 ? 7 : 5)) {
    case 0:
      return name();
    case 1:
      return static_cast<int64_t>(pick(5)) - 2;
    case 2:
      return 1e14;
    case 3:
      return nullptr;
    case 4:
      return pick(2) == 0;
    case 5:
      return json::array({value(depth - 1), value(depth - 1)});
    default:
      return json::object({{name(), value(depth - 1)}});
  }
}

// A bound; few of them are far.
json::value HostileSearch::number() {
  static const double far[] = {40, 300, 5'000, 0.07, -1e30, 12345678901.5};
  if (pick(4) > 0) return static_cast<int64_t>(pick(4)) + 1;
  return far[pick(std::size(far))];
}

// A pattern of what is dear to put together, or a format's name.
std::string HostileSearch::text_form() {
  static const char* const parts[] = {"a",   ".*",     "(a|b)", "[^c]", "\\w", "\\p{L}",  "x?",
                                      "{3}", "{2,40}", "(ab)*", "\\b",  "é+",  "(?=.*b)", "(?!c)"};
  static const char* const formats[] = {"date-time", "uuid", "email", "ipv6", "uri"};
  if (pick(6) == 0) return formats[pick(std::size(formats))];
  std::string out = pick(2) == 0 ? "^" : "";
  for (size_t i = 0; i <= pick(6); ++i) out += parts[pick(std::size(parts))];
  return pick(2) == 0 ? out + "$" : out;
}

void HostileSearch::add_keyword(json::object& schema, int depth) {
  static const char* const singles[] = {"not",
                                        "if",
                                        "then",
                                        "else",
                                        "contains",
                                        "items",
                                        "additionalProperties",
                                        "propertyNames",
                                        "unevaluatedProperties",
                                        "unevaluatedItems",
                                        "additionalItems"};
  static const char* const lists[] = {"allOf", "anyOf", "oneOf", "prefixItems"};
  static const char* const maps[] = {"properties", "patternProperties", "dependentSchemas"};
  static const char* const numbers[] = {
      "minimum",   "maximum",   "exclusiveMinimum", "multipleOf",    "minItems",    "maxItems",
      "minLength", "maxLength", "minProperties",    "maxProperties", "minContains", "maxContains"};
  const auto some = [&](const auto& keywords) { return keywords[pick(std::size(keywords))]; };
  switch (pick(13)) {
    case 0:
    case 1:
    case 2:
      schema[some(singles)] = this->schema(depth - 1);
      break;
    case 3:
    case 4: {
      json::array list;
      for (size_t i = 0; i <= pick(3); ++i) list.push_back(this->schema(depth - 1));
      schema[some(lists)] = std::move(list);
      break;
    }
    case 5: {
      json::object map;
      for (size_t i = 0; i <= pick(3); ++i) map[name()] = this->schema(depth - 1);
      schema[some(maps)] = std::move(map);
      break;
    }
    case 6:
      schema[some(numbers)] = number();
      break;
    case 10:
      schema[pick(4) == 0 ? "format" : "pattern"] = text_form();
      break;
    case 11:
      schema["uniqueItems"] = true;
      break;
    case 12:
      schema["dependentRequired"] = json::object({{name(), {name()}}, {name(), {name(), name()}}});
      break;
    case 7:
      schema["type"] = json::array({"object", pick(2) == 0 ? "array" : "string"});
      break;
    case 8:
      schema["enum"] = json::array({value(2), value(1)});
      break;
    default:
      schema["required"] = json::array({json::value(name())});
  }
}

json::value HostileSearch::schema(int depth) {
  if (depth <= 0 || pick(4) == 0) {
    switch (pick(6)) {
      case 0:
        return pick(2) == 0;
      case 1:
        return json::object({{"type", "integer"}, {"minimum", static_cast<int64_t>(pick(9))}});
      case 2:
        return json::object({{"const", value(1)}});
      case 3:
        return json::object({{"$ref", "#/$defs/d"}});
      default:
        return json::object({{"$ref", "#"}});
    }
  }
  json::object made;
  for (size_t i = 0; i <= pick(3); ++i) add_keyword(made, depth);
  return made;
}

// One place of it: a keyword more or fewer, another schema, or one that stands elsewhere in it.
void HostileSearch::change(json::value& whole) {
  std::vector<json::value*> places;
  collect_places(whole, places);
  json::value& place = *places[pick(places.size())];
  json::object& object = place.get_object();
  switch (pick(5)) {
    case 0:
      if (!object.empty())
        object.erase(object.begin() + static_cast<std::ptrdiff_t>(pick(object.size())));
      break;
    case 1: {
      const json::value other = *places[pick(places.size())];
      if (&place != &whole) place = other;
      break;
    }
    case 2:
      if (&place != &whole) place = schema(2);
      break;
    default:
      add_keyword(object, 2);
  }
}

const std::string& HostileSearch::next() {
  if (misses_ == kMostMisses) cost_ = -1;
  if (cost_ < 0) {
    json::object root;
    for (int i = 0; i < 3; ++i) add_keyword(root, 3);
    root["$defs"] = json::object({{"d", schema(3)}});
    tried_ = std::move(root);
  } else {
    tried_ = now_;
    for (size_t i = 0; i <= pick(3); ++i) change(tried_);
  }
  text_ = to_json_text(tried_);
  if (text_.size() > kMostTextBytes) {
    tried_ = json::object({{"$ref", "#"}});
    text_ = to_json_text(tried_);
  }
  return text_;
}

void HostileSearch::report(double cost) {
  constexpr double kLeastBytes = 100;  // a text is not better for being nothing
  const double each = cost / (static_cast<double>(text_.size()) + kLeastBytes);
  if (each >= cost_) {
    misses_ = each > cost_ ? 0 : misses_ + 1;
    now_ = tried_;
    cost_ = each;
  } else {
    ++misses_;
  }
  if (each <= best_cost_) return;
  best_cost_ = each;
  best_text_ = text_;
}

}  // namespace rudder::constraint
