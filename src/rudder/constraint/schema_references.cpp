#include "rudder/constraint/schema_references.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "rudder/base/exact_json.h"
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
    if (name != nullptr && is_string(*name)) return &name->get_string();
  }
  return nullptr;
}

// Without the fragment and what marks it.
std::string_view document_of(std::string_view name) {
  return name.substr(0, name.find('#'));
}

bool has_scheme(std::string_view name) {
  const size_t end = name.find_first_of(":/?#");
  return end != std::string_view::npos && end > 0 && name[end] == ':';
}

// The URI that a reference without a fragment has in a document (RFC 3986, section 5.2; of what
// climbs only "./" and "../" in front of it).
std::string resolved(std::string_view base, std::string_view name) {
  if (name.empty()) return std::string(base);
  if (base.empty() || has_scheme(name)) return std::string(name);
  const size_t authority = base.find("//");
  const size_t root = authority == std::string_view::npos ? 0 : base.find('/', authority + 2);
  if (name.starts_with('/')) return std::string(base.substr(0, root)) + std::string(name);
  std::string_view folder = base.substr(0, base.rfind('/') + 1);
  while (name.starts_with('.')) {
    if (name.starts_with("./")) {
      name.remove_prefix(2);
    } else if (name.starts_with("../") && folder.size() > root + 1) {
      name.remove_prefix(3);
      folder = folder.substr(0, folder.rfind('/', folder.size() - 2) + 1);
    } else {
      break;
    }
  }
  return std::string(folder) + std::string(name);
}

// An anchor is of the document that it is in.
std::string anchor_name(std::string_view pointer, std::string_view fragment) {
  return std::string(pointer) + ' ' + std::string(fragment);
}

// What has this key, or this index in a list; null where nothing has.
json::value* step(json::value& at, const std::string& key) {
  if (json::object* object = at.if_object()) return object->if_contains(key);
  json::array* list = at.if_array();
  if (list == nullptr) return nullptr;
  size_t index = list->size();
  std::from_chars(key.data(), key.data() + key.size(), index);
  return index < list->size() ? &(*list)[index] : nullptr;
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
  const json::string* own = name_of(root_.get_object());
  if (own != nullptr) root_name_ = document_of(*own);
  const Resource whole = {"#", root_name_};
  find_names(root_, "#", whole);
  rewrite(root_, &whole);
  for (const std::string& pointer : targets_) mark(pointer);
  if (fuel_.out()) return tl::unexpected(fuel_.error());
  return {};
}

void SchemaReferences::name(const std::string& text, const std::string& pointer) {
  constexpr int64_t kEntry = 200;
  if (held_.add(kEntry + std::ssize(text) + std::ssize(pointer))) pointers_.emplace(text, pointer);
}

void SchemaReferences::find_names(const json::value& value, const std::string& pointer,
                                  const Resource& around) {
  if (!fuel_.burn(10 + std::ssize(pointer) / 8)) return;
  if (const json::array* list = value.if_array()) {
    for (size_t i = 0; i < list->size() && !fuel_.out(); ++i) {
      find_names((*list)[i], pointer + '/' + std::to_string(i), around);
    }
    return;
  }
  const json::object* object = value.if_object();
  if (object == nullptr) return;
  const Resource* here = &around;
  const json::string* text = pointer == "#" ? nullptr : name_of(*object);
  if (text != nullptr && text->starts_with('#')) {  // an anchor of older drafts
    name(anchor_name(around.pointer, *text), pointer);
  } else if (text != nullptr) {
    constexpr int64_t kResource = 300;
    const std::string full = resolved(around.name, document_of(*text));
    if (!held_.add(kResource + std::ssize(full) + std::ssize(pointer))) return;
    here = &resources_.emplace(&value, Resource{pointer, full}).first->second;
    name(full, pointer);
    if (full != std::string_view(*text)) name(std::string(*text), pointer);
  }
  const json::value* anchor = object->if_contains("$anchor");
  if (anchor != nullptr && is_string(*anchor)) {
    name(anchor_name(here->pointer, '#' + std::string(anchor->get_string())), pointer);
  }
  for (const auto& field : *object) {
    if (fuel_.out()) return;
    if (!has_data(field.key())) {
      find_names(field.value(), pointer + '/' + escaped(field.key()), *here);
    }
  }
}

std::optional<std::string> SchemaReferences::known(const std::string& name) const {
  const auto found = pointers_.find(name);
  return found == pointers_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string> SchemaReferences::pointer_of(std::string_view reference,
                                                        const Resource& around) {
  const std::string_view document = document_of(reference);
  const std::string_view fragment = reference.substr(document.size());
  fuel_.burn(std::ssize(around.name) + std::ssize(around.pointer) + std::ssize(reference));
  if (fuel_.out()) return std::nullopt;
  std::string document_pointer = around.pointer;
  if (!document.empty()) {
    const bool is_own = !root_name_.empty() &&
                        (document == root_name_ || resolved(around.name, document) == root_name_ ||
                         (document.find('/') == std::string_view::npos &&
                          root_name_.ends_with('/' + std::string(document))));
    std::optional<std::string> other = known(std::string(reference));
    if (other) return other;
    other = known(resolved(around.name, document));
    if (!other) other = known(std::string(document));
    if (!other && is_own) other = "#";
    if (!other) return std::nullopt;
    document_pointer = std::move(*other);
  }
  if (fragment.empty() || fragment == "#") return document_pointer;
  if (!fragment.starts_with("#/")) return known(anchor_name(document_pointer, fragment));
  std::string pointer = document_pointer + std::string(fragment.substr(1));
  // Generators give names to schemas that are no documents: those mean the whole one.
  if (document.empty() && document_pointer != "#" && find(pointer) == nullptr)
    return std::string(fragment);
  return pointer;
}

// What lies there; null where nothing does.
const json::value* SchemaReferences::find(std::string_view pointer) {
  if (!fuel_.burn(20 + std::ssize(pointer))) return nullptr;
  const auto keys = pointer_keys(pointer);
  json::value* at = keys ? &root_ : nullptr;
  for (size_t i = 0; at != nullptr && i < keys->size(); ++i) at = step(*at, (*keys)[i]);
  return at;
}

void SchemaReferences::rewrite(json::value& value, const Resource* around) {
  if (json::array* list = value.if_array()) {
    for (json::value& item : *list) rewrite(item, around);
    return;
  }
  json::object* object = value.if_object();
  if (object == nullptr) return;
  if (const auto own = resources_.find(&value); own != resources_.end()) around = &own->second;
  if (json::value* reference = object->if_contains("$ref");
      reference != nullptr && is_string(*reference)) {
    std::string text(reference->get_string());
    if (std::optional<std::string> pointer = pointer_of(text, *around)) {
      text = std::move(*pointer);
      *reference = text;
    }
    if (held_.add(std::ssize(text))) targets_.push_back(std::move(text));
  }
  for (auto& field : *object) {
    if (!has_data(field.key()) && !field.value().is_primitive()) rewrite(field.value(), around);
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
    if (at->is_object()) {
      if (!in_map && has_data(key)) return;
      outside = outside || (!in_map && !is_keyword(key));
      in_map = !in_map && is_map(key);
    } else {
      in_map = false;
    }
    at = step(*at, key);
    if (at == nullptr) return;
  }
  if (outside && at->is_object()) at->get_object()[kTarget] = true;
}

}  // namespace rudder::constraint
