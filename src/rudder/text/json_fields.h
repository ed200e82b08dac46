// Typed access to the fields of tokenizer files: a missing or mistyped field is an Error whose
// `where` is its JSON path. Used by the loaders in this room, at load only.
#pragma once

#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::text {

inline std::string join_path(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

inline Result<const boost::json::object*> as_object(const boost::json::value& node,
                                                    std::string_view path) {
  if (!node.is_object())
    return fail(ErrorCode::kCorruptFile, "must be an object", std::string(path));
  return &node.get_object();
}

inline Result<std::string> string_field(const boost::json::object& node, std::string_view key,
                                        std::string_view path) {
  const auto* field = node.if_contains(key);
  if (field == nullptr || !field->is_string()) {
    return fail(ErrorCode::kCorruptFile, "must be a string", join_path(path, key));
  }
  return std::string(field->get_string());
}

// Absent and null both give `fallback`.
inline Result<bool> bool_field(const boost::json::object& node, std::string_view key, bool fallback,
                               std::string_view path) {
  const auto* field = node.if_contains(key);
  if (field == nullptr || field->is_null()) return fallback;
  if (!field->is_bool()) {
    return fail(ErrorCode::kCorruptFile, "must be true or false", join_path(path, key));
  }
  return field->get_bool();
}

inline Result<int64_t> int_field(const boost::json::object& node, std::string_view key, int64_t low,
                                 int64_t high, std::string_view path) {
  const auto* field = node.if_contains(key);
  int64_t value = 0;
  if (field != nullptr && field->is_int64()) {
    value = field->get_int64();
  } else if (field != nullptr && field->is_uint64()) {
    value = static_cast<int64_t>(std::min<uint64_t>(field->get_uint64(), INT64_MAX));
  } else {
    return fail(ErrorCode::kCorruptFile, "must be an integer", join_path(path, key));
  }
  if (value < low || value > high) {
    return fail(ErrorCode::kCorruptFile, fmt::format("{} is outside [{}, {}]", value, low, high),
                join_path(path, key));
  }
  return value;
}

// {"String": s} or {"Regex": r}, as Split and Replace spell their pattern.
struct PatternField {
  std::string text;
  bool is_regex = false;
};
inline Result<PatternField> pattern_field(const boost::json::object& node, std::string_view path) {
  const auto* field = node.if_contains("pattern");
  if (field != nullptr && field->is_object() && field->get_object().size() == 1) {
    const auto& pair = *field->get_object().begin();
    if (pair.value().is_string() && (pair.key() == "String" || pair.key() == "Regex")) {
      return PatternField{std::string(pair.value().get_string()), pair.key() == "Regex"};
    }
  }
  return fail(ErrorCode::kCorruptFile, "must be {\"String\": ...} or {\"Regex\": ...}",
              join_path(path, "pattern"));
}

inline tl::unexpected<Error> unsupported_component(std::string_view kind, std::string_view type,
                                                   std::string_view path) {
  return fail(ErrorCode::kUnsupported, fmt::format("{} \"{}\" is not supported", kind, type),
              std::string(path));
}

}  // namespace rudder::text
