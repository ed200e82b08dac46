#include "rudder/server/openai/responses_input.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/server/request/chat_translation.h"
#include "rudder/server/request/field_reader.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// A string or a list of parts of text.
Result<json::array> read_parts(const json::value& content, const std::string& path) {
  if (content.is_string()) return json::array{text_part(content.get_string())};
  const json::array* list = content.if_array();
  if (list == nullptr) {
    return field_error(
        ErrorCode::kInvalidArgument,
        fmt::format("must be a string or a list of parts, not {}", json_type_name(content)), path);
  }
  json::array parts;
  for (const json::value& item : *list) {
    const std::string at = fmt::format("{}[{}]", path, parts.size());
    const json::object* part = item.if_object();
    if (part == nullptr) return field_error(ErrorCode::kInvalidArgument, "must be an object", at);
    RUDDER_TRY(const std::string type, required_string(*part, "type", at));
    if (type == "refusal") {
      RUDDER_TRY(const std::string text, required_string(*part, "refusal", at));
      parts.push_back(text_part(text));
      continue;
    }
    if (type != "input_text" && type != "output_text" && type != "text" &&
        type != "reasoning_text" && type != "summary_text") {
      return unsupported_type(type, "text", at);
    }
    RUDDER_TRY(const std::string text, required_string(*part, "text", at));
    parts.push_back(text_part(text));
  }
  return parts;
}

std::string joined(const json::array& parts) {
  std::string text;
  for (const json::value& part : parts) text += part.at("text").get_string();
  return text;
}

class InputReader {
 public:
  InputReader(json::array& messages, FieldMap& map) : messages_(messages), map_(map) {}

  Result<void> read(const json::value& value, const std::string& path);

 private:
  Result<void> read_message(const json::object& item, const std::string& path);
  Result<void> read_reasoning(const json::object& item, const std::string& path);
  Result<void> read_call(const json::object& item, const std::string& path);
  Result<void> read_call_output(const json::object& item, const std::string& path);
  json::object& assistant(const std::string& path);

  json::array& messages_;
  FieldMap& map_;
  bool is_assistants_ = false;  // the last message is made of an assistant's items
};

// The message that the assistant's items go to.
json::object& InputReader::assistant(const std::string& path) {
  if (!is_assistants_) {
    push_message(messages_, map_, {{"role", "assistant"}, {"content", ""}}, path);
    is_assistants_ = true;
  }
  return messages_.back().get_object();
}

Result<void> InputReader::read_message(const json::object& item, const std::string& path) {
  RUDDER_TRY(const std::string role, required_string(item, "role", path));
  const json::value* content = item.if_contains("content");
  if (content == nullptr) {
    return field_error(ErrorCode::kInvalidArgument, "is required", path + ".content");
  }
  RUDDER_TRY(json::array parts, read_parts(*content, path + ".content"));
  if (role == "assistant") {
    const bool has_begun = is_assistants_ && (messages_.back().at("content") != "" ||
                                              messages_.back().get_object().contains("tool_calls"));
    if (has_begun) is_assistants_ = false;
    append_content(assistant(path), joined(parts));
    return {};
  }
  is_assistants_ = false;
  push_message(messages_, map_, {{"role", role}, {"content", content_of(std::move(parts))}}, path);
  return {};
}

Result<void> InputReader::read_reasoning(const json::object& item, const std::string& path) {
  is_assistants_ = false;
  std::string text;
  for (const char* name : {"content", "summary"}) {
    const json::value* parts = item.if_contains(name);
    if (parts == nullptr || parts->is_null() || !text.empty()) continue;
    RUDDER_TRY(const json::array read, read_parts(*parts, fmt::format("{}.{}", path, name)));
    text = joined(read);
  }
  if (!text.empty()) assistant(path)["reasoning_content"] = text;
  return {};
}

Result<void> InputReader::read_call(const json::object& item, const std::string& path) {
  RUDDER_TRY(const std::string id, required_string(item, "call_id", path));
  RUDDER_TRY(const std::string name, required_string(item, "name", path));
  RUDDER_TRY(const std::string arguments, required_string(item, "arguments", path));
  append_call(assistant(path), id, name, arguments);
  return {};
}

Result<void> InputReader::read_call_output(const json::object& item, const std::string& path) {
  RUDDER_TRY(const std::string id, required_string(item, "call_id", path));
  const json::value* output = item.if_contains("output");
  if (output == nullptr) {
    return field_error(ErrorCode::kInvalidArgument, "is required", path + ".output");
  }
  RUDDER_TRY(const json::array parts, read_parts(*output, path + ".output"));
  is_assistants_ = false;
  push_message(messages_, map_,
               {{"role", "tool"}, {"tool_call_id", id}, {"content", joined(parts)}}, path);
  return {};
}

Result<void> InputReader::read(const json::value& value, const std::string& path) {
  const json::object* item = value.if_object();
  if (item == nullptr) {
    return field_error(ErrorCode::kInvalidArgument,
                       fmt::format("must be an object, not {}", json_type_name(value)), path);
  }
  std::string type = "message";
  if (item->contains("type")) {
    RUDDER_TRY(type, required_string(*item, "type", path));
  }
  if (type == "message") return read_message(*item, path);
  if (type == "reasoning") return read_reasoning(*item, path);
  if (type == "function_call") return read_call(*item, path);
  if (type == "function_call_output") return read_call_output(*item, path);
  return unsupported_type(type, "message, reasoning, function_call and function_call_output", path);
}

}  // namespace

Result<void> read_input_items(const json::value& input, json::array& messages, FieldMap& map) {
  if (input.is_string()) {
    push_message(messages, map, {{"role", "user"}, {"content", input.get_string()}}, "input");
    return {};
  }
  const json::array* items = input.if_array();
  if (items == nullptr) {
    return field_error(
        ErrorCode::kInvalidArgument,
        fmt::format("must be a string or a list of items, not {}", json_type_name(input)), "input");
  }
  if (items->empty()) return field_error(ErrorCode::kInvalidArgument, "is empty", "input");
  InputReader reader(messages, map);
  for (size_t i = 0; i < items->size(); ++i) {
    RUDDER_TRY_VOID(reader.read((*items)[i], fmt::format("input[{}]", i)));
  }
  return {};
}

}  // namespace rudder::server
