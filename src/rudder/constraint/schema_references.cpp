#include "rudder/constraint/schema_references.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "rudder/constraint/schema_keywords.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

// Names whose values are data, not schemas.
bool has_data(std::string_view key) {
  return key == "const" || key == "enum" || key == "default" || key == "examples" ||
         key == "example";
}

std::string escaped(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~' || c == '/') {
      out += c == '~' ? "~0" : "~1";
    } else if (c == '%') {
      out += "%25";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

const json::string* name_of(const json::object& schema) {
  for (const char* key : {"$id", "id"}) {
    const json::value* name = schema.if_contains(key);
    if (name != nullptr && name->is_string()) return &name->get_string();
  }
  return nullptr;
}

// Without the fragment and what marks it.
std::string_view document_of(std::string_view name) {
  return name.substr(0, name.find('#'));
}

// Maps of schemas: their keys are names of clients.
bool is_map(std::string_view key) {
  return key == "properties" || key == "patternProperties" || key == "$defs" ||
         key == "definitions" || key == "dependentSchemas" || key == "dependencies";
}

}  // namespace

std::optional<std::vector<std::string>> pointer_keys(std::string_view pointer) {
  std::vector<std::string> keys;
  for (size_t i = 2; i <= pointer.size();) {
    const size_t end = std::min(pointer.find('/', i), pointer.size());
    std::string key;
    for (size_t k = i; k < end; ++k) {
      const char c = pointer[k];
      if (c == '~' && k + 1 < end && (pointer[k + 1] == '0' || pointer[k + 1] == '1')) {
        key.push_back(pointer[++k] == '0' ? '~' : '/');
      } else if (c == '%') {
        unsigned value = 0;
        const char* from = pointer.data() + k + 1;
        if (k + 2 >= end || std::from_chars(from, from + 2, value, 16).ptr != from + 2) {
          return std::nullopt;
        }
        key.push_back(static_cast<char>(value));
        k += 2;
      } else {
        key.push_back(c);
      }
    }
    keys.push_back(std::move(key));
    i = end + 1;
  }
  return keys;
}

Result<void> SchemaReferences::make_pointers() {
  if (!root_.is_object()) return {};
  if (const json::string* name = name_of(root_.get_object())) base_ = document_of(*name);
  find_names(root_, "#");
  rewrite(root_);
  for (const std::string& pointer : targets_) mark(pointer);
  if (fuel_.out()) return tl::unexpected(fuel_.error());
  return {};
}

void SchemaReferences::name(const std::string& text, const std::string& pointer) {
  constexpr int64_t kEntry = 200;
  if (held_.add(kEntry + std::ssize(text) + std::ssize(pointer))) pointers_.emplace(text, pointer);
}

void SchemaReferences::find_names(const json::value& value, const std::string& pointer) {
  if (!fuel_.burn(10 + std::ssize(pointer) / 8)) return;
  if (const json::array* list = value.if_array()) {
    for (size_t i = 0; i < list->size(); ++i) {
      find_names((*list)[i], pointer + '/' + std::to_string(i));
    }
    return;
  }
  const json::object* object = value.if_object();
  if (object == nullptr) return;
  if (pointer != "#") {
    if (const json::string* text = name_of(*object)) name(std::string(*text), pointer);
  }
  const json::value* anchor = object->if_contains("$anchor");
  if (anchor != nullptr && anchor->is_string()) {
    name('#' + std::string(anchor->get_string()), pointer);
  }
  for (const auto& field : *object) {
    if (!has_data(field.key())) find_names(field.value(), pointer + '/' + escaped(field.key()));
  }
}

std::optional<std::string> SchemaReferences::pointer_of(std::string_view reference) const {
  if (reference.starts_with("#/") || reference == "#") return std::nullopt;
  if (const auto known = pointers_.find(std::string(reference)); known != pointers_.end()) {
    return known->second;
  }
  const std::string_view document = document_of(reference);
  const std::string fragment(reference.substr(document.size()));
  if (document.empty() && fragment.empty()) return "#";
  const bool is_own =
      !base_.empty() && (document == base_ || (document.find('/') == std::string_view::npos &&
                                               base_.ends_with('/' + std::string(document))));
  if (document.empty() || is_own) {
    if (fragment.empty() || fragment == "#") return "#";
    if (fragment.starts_with("#/")) return fragment;
    const auto known = pointers_.find(fragment);
    return known == pointers_.end() ? std::nullopt : std::optional(known->second);
  }
  const auto known = pointers_.find(std::string(document));
  if (known == pointers_.end()) return std::nullopt;
  if (fragment.empty() || fragment == "#") return known->second;
  if (fragment.starts_with("#/")) return known->second + fragment.substr(1);
  return std::nullopt;
}

void SchemaReferences::rewrite(json::value& value) {
  if (json::array* list = value.if_array()) {
    for (json::value& item : *list) rewrite(item);
    return;
  }
  json::object* object = value.if_object();
  if (object == nullptr) return;
  if (json::value* reference = object->if_contains("$ref");
      reference != nullptr && reference->is_string()) {
    std::string text(reference->get_string());
    if (std::optional<std::string> pointer = pointer_of(text)) {
      text = std::move(*pointer);
      *reference = text;
    }
    if (held_.add(std::ssize(text))) targets_.push_back(std::move(text));
  }
  for (auto& field : *object) {
    if (!has_data(field.key()) && !field.value().is_primitive()) rewrite(field.value());
  }
}

void SchemaReferences::mark(std::string_view pointer) {
  if (!fuel_.burn(20 + std::ssize(pointer)) || !pointer.starts_with("#/")) return;
  const auto keys = pointer_keys(pointer);
  if (!keys) return;
  json::value* at = &root_;
  bool outside = false;  // of what keywords have as schemas
  bool in_map = false;
  for (const std::string& key : *keys) {
    if (json::object* object = at->if_object()) {
      if (!in_map && has_data(key)) return;
      outside = outside || (!in_map && !is_keyword(key));
      in_map = !in_map && is_map(key);
      at = object->if_contains(key);
    } else if (json::array* list = at->if_array()) {
      size_t index = list->size();
      std::from_chars(key.data(), key.data() + key.size(), index);
      at = index < list->size() ? &(*list)[index] : nullptr;
      in_map = false;
    } else {
      return;
    }
    if (at == nullptr) return;
  }
  if (outside && at->is_object()) at->get_object()[kTarget] = true;
}

}  // namespace rudder::constraint
