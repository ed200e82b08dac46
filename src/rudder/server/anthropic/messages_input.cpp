#include "rudder/server/anthropic/messages_input.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/request/chat_translation.h"
#include "rudder/server/request/field_reader.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// `read` gets each block with its type and its path.
template <typename Read>
Result<void> for_each_block(const json::value& content, const std::string& path, const Read& read) {
  const json::array* blocks = content.if_array();
  if (blocks == nullptr) {
    return field_error(
        ErrorCode::kInvalidArgument,
        fmt::format("must be a string or a list of blocks, not {}", json_type_name(content)), path);
  }
  for (size_t i = 0; i < blocks->size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    const json::object* block = (*blocks)[i].if_object();
    if (block == nullptr) return field_error(ErrorCode::kInvalidArgument, "must be an object", at);
    RUDDER_TRY(const std::string type, required_string(*block, "type", at));
    RUDDER_TRY_VOID(read(*block, type, at));
  }
  return {};
}

// A string, or blocks of text alone.
Result<json::array> read_text_blocks(const json::value& content, const std::string& path) {
  if (content.is_string()) return json::array{text_part(content.get_string())};
  json::array parts;
  RUDDER_TRY_VOID(for_each_block(
      content, path,
      [&](const json::object& block, std::string_view type, const std::string& at) -> Result<void> {
        if (type != "text") return unsupported_type(type, "'text'", at);
        RUDDER_TRY(const std::string text, required_string(block, "text", at));
        parts.push_back(text_part(text));
        return {};
      }));
  return parts;
}

Result<json::object> read_tool_result(const json::object& block, const std::string& path) {
  RUDDER_TRY(const std::string id, required_string(block, "tool_use_id", path));
  json::array parts;
  if (const json::value* content = block.if_contains("content");
      content != nullptr && !content->is_null()) {
    RUDDER_TRY(parts, read_text_blocks(*content, path + ".content"));
  }
  json::object message = {{"role", "tool"}, {"tool_call_id", id}, {"content", ""}};
  for (const json::value& part : parts) append_content(message, part.at("text").get_string());
  return message;
}

Result<void> read_user_message(const json::value& content, const std::string& path,
                               json::array& messages, FieldMap& map) {
  json::array parts;
  RUDDER_TRY_VOID(for_each_block(
      content, path,
      [&](const json::object& block, std::string_view type, const std::string& at) -> Result<void> {
        if (type == "tool_result") {
          RUDDER_TRY(json::object message, read_tool_result(block, at));
          push_message(messages, map, std::move(message), at);
          return {};
        }
        if (type != "text") return unsupported_type(type, "'text' or 'tool_result'", at);
        RUDDER_TRY(const std::string text, required_string(block, "text", at));
        parts.push_back(text_part(text));
        return {};
      }));
  if (!parts.empty()) {
    push_message(messages, map, {{"role", "user"}, {"content", content_of(std::move(parts))}},
                 path);
  }
  return {};
}

Result<void> read_tool_use(const json::object& block, const std::string& path,
                           json::object& message) {
  RUDDER_TRY(const std::string id, required_string(block, "id", path));
  RUDDER_TRY(const std::string name, required_string(block, "name", path));
  const json::value* input = block.if_contains("input");
  if (input == nullptr || !input->is_object()) {
    return field_error(ErrorCode::kInvalidArgument, "must be an object", path + ".input");
  }
  append_call(message, id, name, to_json_text(*input));
  return {};
}

Result<json::object> read_assistant_message(const json::value& content, const std::string& path) {
  json::object message = {{"role", "assistant"}, {"content", ""}};
  std::string thought;
  RUDDER_TRY_VOID(for_each_block(
      content, path,
      [&](const json::object& block, std::string_view type, const std::string& at) -> Result<void> {
        if (type == "tool_use") return read_tool_use(block, at, message);
        if (type == "redacted_thinking") return {};  // nobody here can read it
        if (type == "thinking") {
          RUDDER_TRY(const std::string text, required_string(block, "thinking", at));
          thought += text;
          return {};
        }
        if (type != "text") {
          return unsupported_type(type, "'text', 'tool_use' or 'thinking'", at);
        }
        RUDDER_TRY(const std::string text, required_string(block, "text", at));
        append_content(message, text);
        return {};
      }));
  if (!thought.empty()) message["reasoning_content"] = thought;
  return message;
}

Result<void> read_message(const json::value& item, const std::string& path, json::array& messages,
                          FieldMap& map) {
  const json::object* message = item.if_object();
  if (message == nullptr) {
    return field_error(ErrorCode::kInvalidArgument,
                       fmt::format("must be an object, not {}", json_type_name(item)), path);
  }
  RUDDER_TRY(const std::string role, required_string(*message, "role", path));
  if (role != "user" && role != "assistant") {
    return field_error(ErrorCode::kInvalidArgument, "must be 'user' or 'assistant'",
                       path + ".role");
  }
  const std::string content_path = path + ".content";
  const json::value* content = message->if_contains("content");
  if (content == nullptr) {
    return field_error(ErrorCode::kInvalidArgument, "is required", content_path);
  }
  if (content->is_string()) {
    push_message(messages, map, {{"role", role}, {"content", *content}}, path);
  } else if (role == "user") {
    RUDDER_TRY_VOID(read_user_message(*content, content_path, messages, map));
  } else {
    RUDDER_TRY(json::object read, read_assistant_message(*content, content_path));
    push_message(messages, map, std::move(read), path);
  }
  return {};
}

}  // namespace

Result<void> read_system(const json::value& system, json::array& messages, FieldMap& map) {
  RUDDER_TRY(json::array parts, read_text_blocks(system, "system"));
  if (parts.empty()) return {};
  push_message(messages, map, {{"role", "system"}, {"content", content_of(std::move(parts))}},
               "system");
  return {};
}

Result<void> read_message_list(const json::array& list, json::array& messages, FieldMap& map) {
  for (size_t i = 0; i < list.size(); ++i) {
    RUDDER_TRY_VOID(read_message(list[i], fmt::format("messages[{}]", i), messages, map));
  }
  return {};
}

}  // namespace rudder::server
