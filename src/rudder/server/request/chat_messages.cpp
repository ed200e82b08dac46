#include "rudder/server/request/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "rudder/base/json.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/text/message_marks.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr size_t kMaxMessages = 65'536;

Result<std::string> read_role(const json::object& message, const std::string& path) {
  constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                      "tool"};
  const json::value* role = message.if_contains("role");
  if (role == nullptr || !role->is_string())
    return invalid_field("must be a string", path + ".role");
  const std::string_view name(role->get_string());
  if (std::find(kRoles.begin(), kRoles.end(), name) == kRoles.end()) {
    return invalid_field("must be one of system, developer, user, assistant and tool",
                         path + ".role");
  }
  return std::string(name);
}

// Parts of other names that are text all the same, and where it stands in them.
std::string_view text_field(std::string_view type) {
  if (type == "refusal") return "refusal";
  const bool is_text = type == "text" || type == "input_text" || type == "output_text";
  return is_text ? "text" : "";
}

// Every part becomes one of type "text".
Result<void> normalise_parts(json::array& parts, const std::string& path) {
  size_t i = 0;
  for (json::value& item : parts) {
    const std::string part_path = fmt::format("{}[{}]", path, i++);
    if (item.is_string()) {
      item = json::object{{"type", "text"}, {"text", std::move(item.get_string())}};
      continue;
    }
    json::object* part = item.if_object();
    if (part == nullptr) return invalid_field("must be an object", part_path);
    const json::value* type = part->if_contains("type");
    if (type == nullptr || !type->is_string()) {
      return invalid_field("must be a string", part_path + ".type");
    }
    const std::string_view field = text_field(type->get_string());
    if (field.empty()) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}.type '{}' is not supported: only 'text' is", part_path,
                              std::string_view(type->get_string()).substr(0, 64)),
                  part_path + ".type");
    }
    const json::value* text = part->if_contains(field);
    if (text == nullptr || !text->is_string()) {
      return invalid_field("must be a string", fmt::format("{}.{}", part_path, field));
    }
    if (type->get_string() != "text") {
      json::value same = *text;
      *part = {{"type", "text"}, {"text", std::move(same)}};
    }
  }
  return {};
}

// Each call's function.arguments: the string of JSON is replaced by what it says.
Result<void> open_arguments(json::value& tool_calls, const std::string& path) {
  json::array* calls = tool_calls.if_array();
  if (calls == nullptr) return invalid_field("must be a list", path);
  for (size_t i = 0; i < calls->size(); ++i) {
    const std::string call_path = fmt::format("{}[{}].function", path, i);
    json::object* call = (*calls)[i].if_object();
    json::value* function_value = call != nullptr ? call->if_contains("function") : nullptr;
    json::object* function = function_value != nullptr ? function_value->if_object() : nullptr;
    if (function == nullptr) return invalid_field("must be an object", call_path);
    const json::value* name = function->if_contains("name");
    if (name == nullptr || !name->is_string()) {
      return invalid_field("must be a string", call_path + ".name");
    }
    json::value* arguments = function->if_contains("arguments");
    if (arguments == nullptr || !arguments->is_string()) continue;
    const std::string_view text(arguments->get_string());
    if (text.empty()) {
      *arguments = json::object();
      continue;
    }
    Result<json::value> parsed = parse_json(text, "arguments");
    if (!parsed || !parsed->is_object()) {
      return invalid_field("must be a JSON object", call_path + ".arguments");
    }
    *arguments = std::move(*parsed);
  }
  return {};
}

// The fields of tool calls and thoughts that templates read.
Result<void> check_turn(json::object& message, const std::string& role, const std::string& path) {
  if (const json::value* id = message.if_contains("tool_call_id")) {
    if (!id->is_string() && !id->is_null()) {
      return invalid_field("must be a string", path + ".tool_call_id");
    }
  }
  for (const std::string_view name : text::kThoughtNames) {
    const json::value* thoughts = message.if_contains(name);
    if (thoughts == nullptr) continue;
    if (thoughts->is_null()) {
      message.erase(name);
    } else if (!thoughts->is_string()) {
      return invalid_field("must be a string", fmt::format("{}.{}", path, name));
    }
  }
  json::value* calls = message.if_contains("tool_calls");
  if (calls == nullptr) return {};
  if (calls->is_null() || (calls->is_array() && calls->get_array().empty())) {
    message.erase("tool_calls");
    return {};
  }
  if (role != "assistant") {
    return invalid_field("only an assistant's message has tool calls", path + ".tool_calls");
  }
  return open_arguments(*calls, path + ".tool_calls");
}

Result<json::object> normalise_message(const json::value& item, const std::string& path) {
  const json::object* given = item.if_object();
  if (given == nullptr) {
    return invalid_field(fmt::format("must be an object, not {}", json_type_name(item)), path);
  }
  RUDDER_TRY(std::string role, read_role(*given, path));
  json::object message = *given;
  message["role"] = role;
  RUDDER_TRY_VOID(check_turn(message, role, path));
  const std::string content_path = path + ".content";
  json::value* content = message.if_contains("content");
  if (content == nullptr || content->is_null()) {
    // An answer of calls or of thoughts alone has none, and comes back as it was sent.
    if (role != "assistant") {
      return invalid_field("must be a string or a list of parts", content_path);
    }
    message["content"] = "";  // templates that trim or join it know no null
  } else if (content->is_array()) {
    RUDDER_TRY_VOID(normalise_parts(content->get_array(), content_path));
  } else if (!content->is_string()) {
    return invalid_field(
        fmt::format("must be a string or a list of parts, not {}", json_type_name(*content)),
        content_path);
  }
  return message;
}

}  // namespace

Result<json::array> normalise_messages(const json::array& messages) {
  if (messages.empty()) return invalid_field("must hold at least one message", "messages");
  if (messages.size() > kMaxMessages) {
    return invalid_field(fmt::format("has more than {} messages", kMaxMessages), "messages");
  }
  json::array normalised;
  normalised.reserve(messages.size());
  for (const json::value& item : messages) {
    RUDDER_TRY(json::object message,
               normalise_message(item, fmt::format("messages[{}]", normalised.size())));
    normalised.push_back(std::move(message));
  }
  return normalised;
}

std::string echoed_message(const json::object& body) {
  const json::object& last = body.at("messages").as_array().back().as_object();
  const json::value* prompts = body.if_contains("add_generation_prompt");
  const bool new_message = prompts == nullptr || !prompts->is_bool() || prompts->get_bool();
  if (new_message && last.at("role").as_string() != "assistant") return "";
  const json::value* content = last.if_contains("content");
  if (content == nullptr) return "";
  if (content->is_string()) return std::string(content->get_string());
  std::string text;
  if (!content->is_array()) return text;
  for (const json::value& part : content->get_array()) {
    if (!text.empty()) text += "\n";
    const json::string* whole = part.if_string();
    text +=
        whole != nullptr ? *whole : part.at(text_field(part.at("type").as_string())).as_string();
  }
  return text;
}

}  // namespace rudder::server
