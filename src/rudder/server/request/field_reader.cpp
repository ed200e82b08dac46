#include "rudder/server/request/field_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cfloat>
#include <cmath>
#include <limits>

#include "rudder/base/exact_json.h"

namespace rudder::server {

namespace json = boost::json;

std::optional<int64_t> whole_number(const json::value& value) {
  if (const int64_t* number = value.if_int64()) return *number;
  if (const double* number = value.if_double()) {
    constexpr double kLimit = 0x1p63;
    if (std::nearbyint(*number) == *number && *number >= -kLimit && *number < kLimit) {
      return static_cast<int64_t>(*number);
    }
  }
  return std::nullopt;
}

std::string_view json_type_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return is_string(value) ? "a string" : "a number";
    case json::kind::array:
      return "a list";
    case json::kind::object:
      return "an object";
  }
  return "something else";
}

Result<std::vector<int32_t>> parse_token_ids(const json::array& array, const std::string& path) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const json::value& item : array) {
    const std::optional<int64_t> id = whole_number(item);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      const std::string where = fmt::format("{}[{}]", path, ids.size());
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} must be a token id, a non-negative integer", where), where);
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

std::string FieldReader::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

void FieldReader::error(ErrorCode code, std::string_view message, std::string_view name) {
  adopt(field_error(code, message, path_of(name)).value());
}

void FieldReader::adopt(const Error& error) {
  if (!error_) error_ = error;
}

void FieldReader::adopt(const FieldReader& inner) {
  if (inner.error_) adopt(*inner.error_);
  for (std::string& name : inner.ignored()) ignored_inside_.push_back(std::move(name));
}

Result<void> FieldReader::result() const {
  if (error_) return tl::unexpected<Error>(*error_);
  return {};
}

const json::value* FieldReader::raw(std::string_view name) {
  asked_.push_back(name);
  const json::value* value = object_.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const json::object* FieldReader::object(std::string_view name) {
  const json::value* value = raw(name);
  if (value == nullptr || value->is_object()) return value ? &value->get_object() : nullptr;
  error(ErrorCode::kInvalidArgument,
        fmt::format("must be an object, not {}", json_type_name(*value)), name);
  return nullptr;
}

const json::array* FieldReader::array(std::string_view name) {
  const json::value* value = raw(name);
  if (value == nullptr || value->is_array()) return value ? &value->get_array() : nullptr;
  error(ErrorCode::kInvalidArgument, fmt::format("must be a list, not {}", json_type_name(*value)),
        name);
  return nullptr;
}

void FieldReader::boolean(std::string_view name, bool* out) {
  const json::value* value = raw(name);
  if (value == nullptr) return;
  if (const bool* flag = value->if_bool()) {
    *out = *flag;
  } else {
    error(ErrorCode::kInvalidArgument,
          fmt::format("must be true or false, not {}", json_type_name(*value)), name);
  }
}

std::optional<int64_t> FieldReader::read_integer(std::string_view name, int64_t min, int64_t max,
                                                 int64_t told_max) {
  const json::value* value = raw(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    error(ErrorCode::kInvalidArgument,
          fmt::format("must be an integer, not {}", json_type_name(*value)), name);
    return std::nullopt;
  }
  const std::optional<int64_t> number = whole_number(*value);
  if (!number && value->is_double() && std::trunc(value->get_double()) != value->get_double()) {
    error(ErrorCode::kInvalidArgument, "must be an integer, not a fraction", name);
    return std::nullopt;
  }
  if (!number || *number < min || *number > max) {
    error(ErrorCode::kInvalidArgument, fmt::format("must be between {} and {}", min, told_max),
          name);
    return std::nullopt;
  }
  return number;
}

void FieldReader::integer(std::string_view name, int64_t min, int64_t max,
                          std::optional<int64_t>* out, std::optional<int64_t> told_max) {
  const std::optional<int64_t> number = read_integer(name, min, max, told_max.value_or(max));
  if (number) *out = *number;
}

void FieldReader::int32(std::string_view name, int64_t min, int64_t max, int32_t* out,
                        std::optional<int64_t> told_max) {
  const std::optional<int64_t> number = read_integer(name, min, max, told_max.value_or(max));
  if (number) *out = static_cast<int32_t>(*number);
}

void FieldReader::real(std::string_view name, float* out) {
  const json::value* value = raw(name);
  if (value == nullptr) return;
  if (!value->is_number()) {
    return error(ErrorCode::kInvalidArgument,
                 fmt::format("must be a number, not {}", json_type_name(*value)), name);
  }
  const double number = value->to_number<double>();
  if (!(std::fabs(number) <= FLT_MAX)) {
    return error(ErrorCode::kInvalidArgument, "is too large a number", name);
  }
  *out = static_cast<float>(number);
}

void FieldReader::string(std::string_view name, size_t max_bytes, std::string* out) {
  const json::value* value = raw(name);
  if (value == nullptr) return;
  if (!is_string(*value)) {
    error(ErrorCode::kInvalidArgument,
          fmt::format("must be a string, not {}", json_type_name(*value)), name);
  } else if (value->get_string().size() > max_bytes) {
    error(ErrorCode::kInvalidArgument, fmt::format("has more than {} bytes", max_bytes), name);
  } else {
    *out = std::string(value->get_string());
  }
}

void FieldReader::string(std::string_view name, size_t max_bytes, std::optional<std::string>* out) {
  if (raw(name) == nullptr) return;
  std::string text;
  string(name, max_bytes, &text);
  if (ok()) *out = std::move(text);
}

void FieldReader::token_ids(std::string_view name, size_t max_items, std::vector<int32_t>* out) {
  const json::array* list = array(name);
  if (list == nullptr) return;
  if (list->size() > max_items) {
    error(ErrorCode::kInvalidArgument, fmt::format("has more than {} items", max_items), name);
    return;
  }
  Result<std::vector<int32_t>> ids = parse_token_ids(*list, path_of(name));
  if (ids) {
    *out = std::move(*ids);
  } else {
    adopt(ids.error());
  }
}

void FieldReader::refuse(std::string_view name, std::string_view why) {
  const json::value* value = raw(name);
  if (value == nullptr) return;
  const bool empty = (value->is_bool() && !value->get_bool()) ||
                     (value->is_number() && value->to_number<double>() == 0) ||
                     (value->is_string() && value->get_string().empty()) ||
                     (value->is_array() && value->get_array().empty()) ||
                     (value->is_object() && value->get_object().empty());
  if (!empty) error(ErrorCode::kUnsupported, why, name);
}

namespace {

// In visible ASCII, and without the comma of lists.
std::string shown_name(std::string_view name, size_t max_length) {
  std::string shown(name.substr(0, max_length));
  for (char& ch : shown) {
    if (ch <= ' ' || ch >= 0x7f || ch == ',') ch = '?';
  }
  return shown;
}

}  // namespace

void FieldReader::ignore(std::string_view path) {
  constexpr size_t kMaxPath = 256;
  ignored_inside_.push_back(shown_name(path, kMaxPath));
}

std::vector<std::string> FieldReader::ignored() const {
  constexpr size_t kMaxNames = 16;
  constexpr size_t kMaxLength = 64;
  std::vector<std::string> names;
  for (const auto& field : object_) {
    if (names.size() == kMaxNames) break;
    const std::string_view name(field.key().data(), field.key().size());
    if (std::find(asked_.begin(), asked_.end(), name) != asked_.end()) continue;
    std::string shown = shown_name(name, kMaxLength);
    names.push_back(path_.empty() ? shown : fmt::format("{}.{}", path_, shown));
  }
  for (const std::string& name : ignored_inside_) {
    if (names.size() < kMaxNames) names.push_back(name);
  }
  return names;
}

tl::unexpected<Error> field_error(ErrorCode code, std::string_view message, std::string path) {
  std::string text = fmt::format("{} {}", path, message);
  return fail(code, std::move(text), std::move(path));
}

tl::unexpected<Error> invalid_field(std::string_view message, std::string path) {
  return field_error(ErrorCode::kInvalidArgument, message, std::move(path));
}

}  // namespace rudder::server
