#include "rudder/server/request/chat_translation.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <utility>

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

tl::unexpected<Error> unsupported_type(std::string_view type, std::string_view only,
                                       const std::string& path) {
  return field_error(ErrorCode::kUnsupported,
                     fmt::format("'{}' is not supported: only {} is", type.substr(0, 64), only),
                     path + ".type");
}

void translate_tools(FieldReader& reader, const FunctionOfTool& function_of, json::object& chat) {
  const json::array* tools = reader.array("tools");
  if (tools == nullptr || tools->empty()) return;
  json::array functions;
  for (const json::value& item : *tools) {
    const std::string name = fmt::format("tools[{}]", functions.size());
    const json::object* tool = item.if_object();
    if (tool == nullptr) {
      return reader.error(ErrorCode::kInvalidArgument, "must be an object", name);
    }
    Result<json::object> function = function_of(*tool, reader.path_of(name));
    if (!function) return reader.adopt(function.error());
    functions.push_back({{"type", "function"}, {"function", *std::move(function)}});
  }
  chat["tools"] = std::move(functions);
}

void push_message(json::array& messages, FieldMap& map, json::object message, std::string path) {
  map.add(fmt::format("messages[{}]", messages.size()), std::move(path));
  messages.push_back(std::move(message));
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
                 std::string_view arguments) {
  json::value& calls = message["tool_calls"];
  if (!calls.is_array()) calls.emplace_array();
  calls.get_array().push_back(json::object{
      {"id", json::string_view(id)},
      {"type", "function"},
      {"function",
       {{"name", json::string_view(name)}, {"arguments", json::string_view(arguments)}}}});
}

}  // namespace rudder::server
