#include "rudder/server/anthropic/messages_input.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/message_parts.h"
#include "rudder/server/request/sealed_text.h"
#include "rudder/server/request/tool_fields.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr std::string_view kBillingLine = "x-anthropic-billing-header:";

// `read` gets each block with its type and its path; a string among them is a text.
template <typename Read>
Result<void> for_each_block(const json::value& content, const std::string& path, bool is_asked,
                            History& history, const Read& read) {
  const json::array* blocks = content.if_array();
  if (blocks == nullptr) {
    return field_error(
        ErrorCode::kInvalidArgument,
        fmt::format("must be a string or a list of blocks, not {}", json_type_name(content)), path);
  }
  for (size_t i = 0; i < blocks->size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    const json::string* text = (*blocks)[i].if_string();
    const json::object* block = (*blocks)[i].if_object();
    if (text != nullptr) {
      RUDDER_TRY_VOID(read(text_part(*text), "text", at));
      continue;
    }
    if (block == nullptr) return field_error(ErrorCode::kInvalidArgument, "must be an object", at);
    RUDDER_TRY(const std::string type, history.part_type(*block, at, is_asked));
    RUDDER_TRY_VOID(read(*block, type, at));
  }
  return {};
}

void push_text(json::array& parts, std::string_view text) {
  if (!text.empty()) parts.push_back(text_part(text));
}

// Reads the messages one after another.
class ConversationReader {
 public:
  explicit ConversationReader(MessagesInput& input) : input_(input) {}

  Result<void> read_message(const json::value& item, const std::string& path, bool is_asked);
  // A string, or blocks: what each of them says, as parts of text.
  Result<json::array> read_texts(const json::value& content, const std::string& path,
                                 bool is_asked);

 private:
  Result<std::string> text_of(const json::object& block, std::string_view type,
                              const std::string& path, bool is_asked);
  Result<std::string> text_of_source(const json::object& block, const std::string& path,
                                     bool is_asked);
  Result<std::string> joined_texts(const json::value& content, const std::string& path,
                                   bool is_asked);
  Result<std::string> text_of_change(const json::object& block, std::string_view type,
                                     const std::string& path);
  std::string referred(std::string_view name, const std::string& path);
  Result<void> read_user_message(const json::value& content, const std::string& path,
                                 bool is_asked);
  Result<void> read_tool_result(const json::object& block, const std::string& path);
  Result<void> read_tool_use(const json::object& block, const std::string& path,
                             json::object& message);
  Result<json::object> read_assistant_message(const json::value& content, const std::string& path);

  MessagesInput& input_;
  std::set<std::string, std::less<>> shown_;  // tools
};

// Which tool a reference means: the first one to a tool shows all of it.
std::string ConversationReader::referred(std::string_view name, const std::string& path) {
  const json::value* function = input_.functions.if_contains(name);
  if (function == nullptr) {
    input_.conversation.history.tell(path);
  } else if (shown_.emplace(name).second) {
    return shown_function(function->get_object());
  }
  return fmt::format("[tool {}]", name);
}

Result<std::string> ConversationReader::text_of_source(const json::object& block,
                                                       const std::string& path, bool is_asked) {
  const json::value* value = block.if_contains("source");
  const json::object* source = value != nullptr ? value->if_object() : nullptr;
  const std::string_view kind = source != nullptr ? string_in(*source, "type") : "";
  if (kind == "text") return std::string(string_in(*source, "data"));
  if (kind == "content" && source->contains("content")) {
    return joined_texts(source->at("content"), path + ".source.content", is_asked);
  }
  return input_.conversation.history.stand_in("document", path, is_asked);
}

// Tools that come and go in the middle of a conversation.
Result<std::string> ConversationReader::text_of_change(const json::object& block,
                                                       std::string_view type,
                                                       const std::string& path) {
  const json::value* value = block.if_contains("tool");
  const json::object* tool = value != nullptr ? value->if_object() : nullptr;
  if (tool == nullptr) return input_.conversation.history.stand_in(type, path, false);
  std::string name(string_in(*tool, "name"));
  if (name.empty()) name = string_in(*tool, "tool_name");
  if (type == "tool_removal") return fmt::format("The tool {} is no longer there.", name);
  const json::value* definition = tool->if_contains("definition");
  if (definition != nullptr && definition->is_object()) {
    const std::string at = path + ".tool.definition";
    const std::string_view kind = string_in(definition->get_object(), "type");
    Result<json::object> function = function_of_tool(definition->get_object(), at);
    if (!function || !can_be_offered(*function) || (!kind.empty() && kind != "custom")) {
      input_.conversation.history.tell(at);
      return "";
    }
    name = std::string_view(function->at("name").get_string());
    input_.functions.emplace(name, *std::move(function));
  }
  return "A new tool is there: " + referred(name, path);
}

Result<std::string> ConversationReader::text_of(const json::object& block, std::string_view type,
                                                const std::string& path, bool is_asked) {
  if (type == "text") return input_.conversation.history.text_in(block, "text", path, is_asked);
  if (type == "document") {
    RUDDER_TRY(std::string text, text_of_source(block, path, is_asked));
    const std::string_view title = string_in(block, "title");
    return title.empty() ? text : fmt::format("{}\n{}", title, text);
  }
  if (type == "search_result" && block.contains("content")) {
    RUDDER_TRY(const std::string text,
               joined_texts(block.at("content"), path + ".content", is_asked));
    return fmt::format("{}\n{}\n{}", string_in(block, "title"), string_in(block, "source"), text);
  }
  // What stands for the conversation before it.
  if (type == "compaction")
    return input_.conversation.history.text_in(block, "content", path, false);
  if (type == "tool_reference") return referred(string_in(block, "tool_name"), path);
  if (type == "tool_addition" || type == "tool_removal") return text_of_change(block, type, path);
  return input_.conversation.history.stand_in(type, path, is_asked);
}

Result<json::array> ConversationReader::read_texts(const json::value& content,
                                                   const std::string& path, bool is_asked) {
  if (content.is_string()) return json::array{text_part(content.get_string())};
  json::array parts;
  RUDDER_TRY_VOID(for_each_block(
      content, path, is_asked, input_.conversation.history,
      [&](const json::object& block, std::string_view type, const std::string& at) -> Result<void> {
        RUDDER_TRY(const std::string text, text_of(block, type, at, is_asked));
        push_text(parts, text);
        return {};
      }));
  return parts;
}

Result<std::string> ConversationReader::joined_texts(const json::value& content,
                                                     const std::string& path, bool is_asked) {
  RUDDER_TRY(const json::array parts, read_texts(content, path, is_asked));
  std::string text;
  for (const json::value& part : parts) {
    if (!text.empty()) text += '\n';
    text += part.at("text").get_string();
  }
  return text;
}

Result<void> ConversationReader::read_tool_result(const json::object& block,
                                                  const std::string& path) {
  const std::string_view id = string_in(block, "tool_use_id");
  std::string text;
  if (const json::value* content = block.if_contains("content");
      content != nullptr && !content->is_null()) {
    // What a tool gave is not what the request asks, and may be data of its own.
    const std::string at = path + ".content";
    const Result<std::string> blocks = is_text_or_parts(*content)
                                           ? joined_texts(*content, at, false)
                                           : Result<std::string>(to_json_text(*content));
    text = blocks ? *blocks : to_json_text(*content);
  }
  input_.conversation.add({{"role", "tool"}, {"tool_call_id", id}, {"content", text}}, path);
  return {};
}

Result<void> ConversationReader::read_user_message(const json::value& content,
                                                   const std::string& path, bool is_asked) {
  json::array parts;
  bool has_results = false;
  RUDDER_TRY_VOID(for_each_block(
      content, path + ".content", is_asked, input_.conversation.history,
      [&](const json::object& block, std::string_view type, const std::string& at) -> Result<void> {
        if (type == "tool_result") {
          has_results = true;
          return read_tool_result(block, at);
        }
        RUDDER_TRY(const std::string text, text_of(block, type, at, is_asked));
        push_text(parts, text);
        return {};
      }));
  if (!parts.empty() || !has_results) {
    input_.conversation.add({{"role", "user"}, {"content", content_of(std::move(parts))}}, path);
  }
  return {};
}

Result<void> ConversationReader::read_tool_use(const json::object& block, const std::string& path,
                                               json::object& message) {
  const std::string_view id = string_in(block, "id");
  const json::value* called = block.if_contains("name");
  if (called == nullptr || called->is_null()) {  // it was cut off in front of it
    input_.conversation.history.tell(path);
    return {};
  }
  RUDDER_TRY(const std::string name, required_string(block, "name", path));
  const json::value* given = block.if_contains("input");
  json::value input = input_.conversation.history.open_arguments(
      given != nullptr ? *given : json::value(), path + ".input");
  append_call(message, id, name, std::move(input));
  return {};
}

Result<json::object> ConversationReader::read_assistant_message(const json::value& content,
                                                                const std::string& path) {
  json::object message = {{"role", "assistant"}, {"content", ""}};
  std::string thought;
  RUDDER_TRY_VOID(for_each_block(
      content, path, false, input_.conversation.history,
      [&](const json::object& block, std::string_view type, const std::string& at) -> Result<void> {
        if (type == "tool_use") return read_tool_use(block, at, message);
        if (type == "thinking") {
          const std::string_view told = string_in(block, "thinking");
          thought += told.empty()
                         ? open_sealed(kSealedThought, string_in(block, "signature")).value_or("")
                         : std::string(told);
          return {};
        }
        RUDDER_TRY(const std::string text, text_of(block, type, at, false));
        append_content(message, text);
        return {};
      }));
  if (!thought.empty()) message["reasoning_content"] = thought;
  return message;
}

Result<void> ConversationReader::read_message(const json::value& item, const std::string& path,
                                              bool is_asked) {
  const json::object* message = item.if_object();
  if (message == nullptr) {
    return field_error(ErrorCode::kInvalidArgument,
                       fmt::format("must be an object, not {}", json_type_name(item)), path);
  }
  RUDDER_TRY(std::string role, required_string(*message, "role", path));
  if (role == "developer") role = "system";
  if (role != "user" && role != "assistant" && role != "system") {
    return field_error(ErrorCode::kInvalidArgument, "must be 'user', 'assistant' or 'system'",
                       path + ".role");
  }
  const std::string content_path = path + ".content";
  RUDDER_TRY(const json::value content,
             input_.conversation.history.content_in(*message, path, is_asked));
  if (content.is_string()) {
    input_.conversation.add({{"role", role}, {"content", content}}, path);
  } else if (role == "user") {
    RUDDER_TRY_VOID(read_user_message(content, path, is_asked));
  } else if (role == "system") {
    RUDDER_TRY(json::array parts, read_texts(content, content_path, false));
    if (parts.empty()) return {};
    input_.conversation.add({{"role", role}, {"content", content_of(std::move(parts))}}, path);
  } else {
    RUDDER_TRY(json::object read, read_assistant_message(content, content_path));
    input_.conversation.add(std::move(read), path);
  }
  return {};
}

std::string_view role_in_message(const json::value& message) {
  const json::object* object = message.if_object();
  return object != nullptr ? string_in(*object, "role") : std::string_view();
}

// Without the line that tells who pays, if it begins with one.
std::string_view without_billing(std::string_view text) {
  if (!text.starts_with(kBillingLine)) return text;
  const size_t end = text.find('\n');
  return end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
}

}  // namespace

Result<json::object> function_of_tool(const json::object& tool, const std::string& path) {
  RUDDER_TRY(const std::string name, required_string(tool, "name", path));
  FieldReader fields(tool, path);
  const json::object* schema = fields.object("input_schema");
  RUDDER_TRY_VOID(fields.result());
  if (schema == nullptr) {
    return field_error(ErrorCode::kInvalidArgument, "is required", path + ".input_schema");
  }
  json::object function = {{"name", name}, {"parameters", *schema}};
  for (const char* also : {"description", "strict"}) {
    if (const json::value* value = tool.if_contains(also)) function[also] = *value;
  }
  return function;
}

Result<void> read_system(const json::value& system, MessagesInput& input) {
  RUDDER_TRY(const json::array texts,
             ConversationReader(input).read_texts(system, "system", false));
  json::array parts;
  for (const json::value& part : texts) {
    push_text(parts, without_billing(part.at("text").get_string()));
  }
  if (parts.empty()) return {};
  input.conversation.add({{"role", "system"}, {"content", content_of(std::move(parts))}}, "system");
  return {};
}

Result<void> read_message_list(const json::array& list, MessagesInput& input) {
  const int64_t question = find_question(
      std::ssize(list), [&](int64_t i) { return role_in_message(list[static_cast<size_t>(i)]); });
  ConversationReader reader(input);
  for (size_t i = 0; i < list.size(); ++i) {
    const bool is_asked = static_cast<int64_t>(i) == question;
    RUDDER_TRY_VOID(reader.read_message(list[i], fmt::format("messages[{}]", i), is_asked));
  }
  return {};
}

}  // namespace rudder::server
