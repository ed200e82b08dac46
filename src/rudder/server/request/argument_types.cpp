#include "rudder/server/request/argument_types.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace rudder::server {

namespace json = boost::json;

namespace {

using dialect::ValueTypes;

constexpr ValueTypes kAnything = dialect::kString | dialect::kNumber | dialect::kBoolean |
                                 dialect::kNull | dialect::kList | dialect::kObject;
constexpr int kMaxDepth = 64;  // of schemas in one another

const json::value* member(const json::object& object, std::string_view name) {
  return object.if_contains(name);
}

ValueTypes named_type(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, ValueTypes>, 7> kNames = {
      {{"string", dialect::kString},
       {"number", dialect::kNumber},
       {"integer", dialect::kNumber},
       {"boolean", dialect::kBoolean},
       {"null", dialect::kNull},
       {"array", dialect::kList},
       {"object", dialect::kObject}}};
  const auto* found =
      std::ranges::find(kNames, name, &std::pair<std::string_view, ValueTypes>::first);
  return found == kNames.end() ? kAnything : found->second;
}

ValueTypes kinds_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return dialect::kNull;
    case json::kind::bool_:
      return dialect::kBoolean;
    case json::kind::string:
      return dialect::kString;
    case json::kind::array:
      return dialect::kList;
    case json::kind::object:
      return dialect::kObject;
    default:
      return dialect::kNumber;
  }
}

// Of a schema without a type: what its other words are about.
ValueTypes implied_types(const json::object& schema) {
  constexpr std::array<std::pair<std::string_view, ValueTypes>, 15> kWords = {
      {{"properties", dialect::kObject},
       {"additionalProperties", dialect::kObject},
       {"patternProperties", dialect::kObject},
       {"required", dialect::kObject},
       {"items", dialect::kList},
       {"prefixItems", dialect::kList},
       {"minItems", dialect::kList},
       {"maxItems", dialect::kList},
       {"minimum", dialect::kNumber},
       {"maximum", dialect::kNumber},
       {"exclusiveMinimum", dialect::kNumber},
       {"exclusiveMaximum", dialect::kNumber},
       {"multipleOf", dialect::kNumber},
       {"pattern", dialect::kString},
       {"format", dialect::kString}}};
  ValueTypes types = 0;
  for (const auto& [word, about] : kWords) {
    if (member(schema, word) != nullptr) types |= about;
  }
  return types == 0 ? kAnything : types;
}

class SchemaReader {
 public:
  explicit SchemaReader(const json::object& root) : root_(root) {}

  ValueTypes types(const json::value& schema, int depth = 0) {
    if (const bool* any = schema.if_bool()) return *any ? kAnything : 0;
    const json::object* object = schema.if_object();
    if (object == nullptr || depth == kMaxDepth) return kAnything;
    const auto [found, is_new] = types_.try_emplace(object, kAnything);
    if (is_new) {
      const ValueTypes read = read_types(*object, depth);
      types_[object] = read;
      return read;
    }
    return found->second;
  }

  // Puts what objects of this schema may have into `tool`.
  void read_properties(const json::object& schema, dialect::Tool* tool, int depth = 0) {
    if (depth == kMaxDepth || !seen_.insert(&schema).second) return;
    if (const json::value* target = referred(schema); target != nullptr && target->is_object()) {
      read_properties(target->get_object(), tool, depth + 1);
    }
    const json::value* value = member(schema, "properties");
    if (const json::object* properties = value == nullptr ? nullptr : value->if_object()) {
      for (const auto& [name, property] : *properties) add(name, types(property), tool);
    }
    read_others(schema, tool);
    for (const char* word : {"allOf", "anyOf", "oneOf"}) {
      const json::value* parts = member(schema, word);
      if (parts == nullptr || !parts->is_array()) continue;
      for (const json::value& part : parts->get_array()) {
        if (part.is_object()) read_properties(part.get_object(), tool, depth + 1);
      }
    }
    for (const char* word : {"if", "then", "else"}) {
      const json::value* part = member(schema, word);
      if (part != nullptr && part->is_object()) {
        read_properties(part->get_object(), tool, depth + 1);
      }
    }
    for (const char* word : {"dependentSchemas", "dependencies"}) {
      const json::value* parts = member(schema, word);
      if (parts == nullptr || !parts->is_object()) continue;
      for (const auto& [name, part] : parts->get_object()) {
        if (part.is_object()) read_properties(part.get_object(), tool, depth + 1);
      }
    }
  }

 private:
  // Text, where the schema does not say.
  static ValueTypes settled(ValueTypes types) {
    return types == 0 || types == kAnything ? dialect::kString : types;
  }

  // Of arguments that no schema names: which of the patterns a name has is not asked.
  void read_others(const json::object& schema, dialect::Tool* tool) {
    ValueTypes others = 0;
    for (const char* word : {"additionalProperties", "unevaluatedProperties"}) {
      const json::value* of_rest = member(schema, word);
      if (of_rest != nullptr && of_rest->is_object()) others |= settled(types(*of_rest));
    }
    const json::value* patterns = member(schema, "patternProperties");
    if (patterns != nullptr && patterns->is_object()) {
      for (const auto& [pattern, of_names] : patterns->get_object()) {
        others |= settled(types(of_names));
      }
    }
    if (others != 0) tool->other_arguments = others;
  }

  void add(std::string_view name, ValueTypes types, dialect::Tool* tool) {
    const auto [found, is_new] = index_.try_emplace(std::string(name), tool->arguments.size());
    if (is_new) {
      tool->arguments.push_back({found->first, settled(types)});
    } else {
      tool->arguments[found->second].types |= settled(types);  // of alternatives
    }
  }

  ValueTypes read_types(const json::object& schema, int depth) {
    ValueTypes types = own_types(schema);
    if (refers_to_root(schema)) types &= dialect::kObject;
    if (const json::value* target = referred(schema)) types &= this->types(*target, depth + 1);
    if (const json::value* all = member(schema, "allOf"); all != nullptr && all->is_array()) {
      for (const json::value& part : all->get_array()) types &= this->types(part, depth + 1);
    }
    for (const char* word : {"anyOf", "oneOf"}) {
      const json::value* any = member(schema, word);
      if (any == nullptr || !any->is_array() || any->get_array().empty()) continue;
      ValueTypes either = 0;
      for (const json::value& part : any->get_array()) either |= this->types(part, depth + 1);
      types &= either;
    }
    const json::value* nullable = member(schema, "nullable");  // as OpenAPI has it
    if (nullable != nullptr && *nullable == true && types != 0) types |= dialect::kNull;
    return types == kAnything ? implied_types(schema) : types;
  }

  // By the words that name values or types.
  static ValueTypes own_types(const json::object& schema) {
    ValueTypes types = kAnything;
    if (const json::value* type = member(schema, "type")) {
      ValueTypes named = 0;
      if (type->is_string()) named = named_type(type->get_string());
      if (const json::array* list = type->if_array()) {
        for (const json::value& one : *list) {
          if (one.is_string()) named |= named_type(one.get_string());
        }
      }
      if (named != 0) types &= named;
    }
    if (const json::value* values = member(schema, "enum"); values && values->is_array()) {
      ValueTypes listed = 0;
      for (const json::value& one : values->get_array()) listed |= kinds_of(one);
      if (listed != 0) types &= listed;
    }
    if (const json::value* value = member(schema, "const")) types &= kinds_of(*value);
    return types;
  }

  static bool refers_to_root(const json::object& schema) {
    const json::value* ref = member(schema, "$ref");
    return ref != nullptr && *ref == "#";
  }

  // What `$ref` names inside the parameters; null where there is none, or it is elsewhere.
  const json::value* referred(const json::object& schema) const {
    const json::value* ref = member(schema, "$ref");
    if (ref == nullptr || !ref->is_string()) return nullptr;
    const std::string_view text = ref->get_string();
    if (!text.starts_with("#/")) return named(text);
    std::string decoded;
    for (size_t i = 1; i < text.size(); ++i) {
      const std::string_view digits = text.substr(i + 1, 2);
      unsigned code = 0;
      if (text[i] == '%' && read_hex(digits, &code)) {
        decoded.push_back(static_cast<char>(code));
        i += 2;
      } else {
        decoded.push_back(text[i]);
      }
    }
    return find(decoded);
  }

  // What calls itself so among the definitions: by `$anchor` ("#name") or by `$id`.
  const json::value* named(std::string_view reference) const {
    for (const char* word : {"$defs", "definitions"}) {
      const json::value* all = member(root_, word);
      if (all == nullptr || !all->is_object()) continue;
      for (const auto& [key, one] : all->get_object()) {
        if (!one.is_object()) continue;
        const json::value* anchor = member(one.get_object(), "$anchor");
        const json::value* id = member(one.get_object(), "$id");
        const bool is_anchor = anchor != nullptr && anchor->is_string() &&
                               reference.starts_with('#') &&
                               reference.substr(1) == anchor->get_string();
        if (is_anchor || (id != nullptr && id->is_string() && reference == id->get_string())) {
          return &one;
        }
      }
    }
    return nullptr;
  }

  static bool read_hex(std::string_view digits, unsigned* code) {
    if (digits.size() != 2) return false;
    for (const char digit : digits) {
      const size_t value =
          std::string_view("0123456789abcdef")
              .find(static_cast<char>(digit >= 'A' && digit <= 'F' ? digit - 'A' + 'a' : digit));
      if (value == std::string_view::npos) return false;
      *code = *code * 16 + static_cast<unsigned>(value);
    }
    return true;
  }

  // By JSON pointer, from the parameters on.
  const json::value* find(std::string_view pointer) const {
    const json::object* object = &root_;
    const json::value* found = nullptr;
    while (!pointer.empty()) {
      pointer.remove_prefix(1);
      const size_t length = std::min(pointer.find('/'), pointer.size());
      std::string name(pointer.substr(0, length));
      pointer.remove_prefix(length);
      replace_all(name, "~1", "/");
      replace_all(name, "~0", "~");
      if (found != nullptr && found->is_array()) {
        found = element(found->get_array(), name);
      } else {
        found = object == nullptr ? nullptr : object->if_contains(name);
      }
      if (found == nullptr) return nullptr;
      object = found->if_object();
    }
    return found;
  }

  static const json::value* element(const json::array& list, const std::string& name) {
    size_t index = 0;
    for (const char digit : name) {
      if (digit < '0' || digit > '9' || index > list.size()) return nullptr;
      index = 10 * index + static_cast<size_t>(digit - '0');
    }
    return name.empty() || index >= list.size() ? nullptr : &list[index];
  }

  static void replace_all(std::string& text, std::string_view from, std::string_view to) {
    for (size_t at = text.find(from); at != std::string::npos;
         at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
  }

  const json::object& root_;
  std::map<const json::object*, ValueTypes> types_;  // read so far, or being read
  std::set<const json::object*> seen_;               // of which the properties are read
  std::map<std::string, size_t> index_;              // of the tool's arguments
};

}  // namespace

void read_argument_types(const json::object& parameters, dialect::Tool* tool) {
  SchemaReader(parameters).read_properties(parameters, tool);
}

}  // namespace rudder::server
