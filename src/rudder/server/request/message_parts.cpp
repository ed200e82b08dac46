#include "rudder/server/request/message_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/request/field_reader.h"

namespace rudder::server {

namespace json = boost::json;

Result<std::string> required_string(const json::object& object, std::string_view name,
                                    const std::string& path) {
  const json::value* value = object.if_contains(name);
  std::string at = path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
  if (value == nullptr) return field_error(ErrorCode::kInvalidArgument, "is required", at);
  if (value->is_string()) return std::string(value->get_string());
  return field_error(ErrorCode::kInvalidArgument,
                     fmt::format("must be a string, not {}", json_type_name(*value)), at);
}

std::string_view string_in(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string_view(value->get_string())
                                                : std::string_view();
}

bool is_text_or_parts(const json::value& result) {
  if (!result.is_array()) return result.is_string();
  return std::ranges::all_of(result.get_array(), [](const json::value& element) {
    const json::object* part = element.if_object();
    if (part == nullptr) return element.is_string();
    const json::value* type = part->if_contains("type");
    if (type == nullptr || type->is_null()) type = part->if_contains("text");
    return type != nullptr && type->is_string();
  });
}

tl::unexpected<Error> unsupported_type(std::string_view type, std::string_view only,
                                       const std::string& path) {
  return field_error(ErrorCode::kUnsupported,
                     fmt::format("'{}' is not supported: only {} is", type.substr(0, 64), only),
                     path + ".type");
}

json::value content_of(json::array parts) {
  if (parts.empty()) return "";
  if (parts.size() == 1) return parts.front().at("text");
  return parts;
}

json::object text_part(std::string_view text) {
  return {{"type", "text"}, {"text", json::string_view(text)}};
}

void append_content(json::object& message, std::string_view text) {
  json::value& content = message["content"];
  if (!content.is_string()) content = "";
  content.get_string().append(json::string_view(text));
}

void append_call(json::object& message, std::string_view id, std::string_view name,
                 json::value arguments) {
  json::value& calls = message["tool_calls"];
  if (!calls.is_array()) calls.emplace_array();
  calls.get_array().push_back(json::object{
      {"id", json::string_view(id)},
      {"type", "function"},
      {"function", {{"name", json::string_view(name)}, {"arguments", std::move(arguments)}}}});
}

std::string shown_function(const json::object& function) {
  return fmt::format("<function>{}</function>", to_json_text(function));
}

}  // namespace rudder::server
