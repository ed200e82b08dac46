#include "rudder/server/openai/responses_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/openai/item_references.h"
#include "rudder/server/openai/responses_tools.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/message_parts.h"
#include "rudder/server/request/sealed_text.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// Calls of tools that are no function: what the model is shown as the function, and as its
// arguments.
struct CallItem {
  std::string_view type;
  std::string_view function;
  std::string_view arguments;  // the field
};
constexpr std::array<CallItem, 6> kCallItems = {{{"local_shell_call", "local_shell", "action"},
                                                 {"shell_call", "shell", "action"},
                                                 {"apply_patch_call", "apply_patch", "operation"},
                                                 {"computer_call", "computer", "action"},
                                                 {"tool_search_call", "tool_search", "arguments"},
                                                 {"mcp_call", "", "arguments"}}};  // by its name

constexpr std::array<std::string_view, 5> kTextParts = {"input_text", "output_text", "text",
                                                        "reasoning_text", "summary_text"};

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};
// Of items that a conversation of OpenAI's own may have, beside those.
constexpr std::array<std::string_view, 3> kForeignRoles = {"critic", "discriminator", "unknown"};

// An item without one is a message, or a reference to one that the server has.
std::string type_of_item(const json::object& item) {
  const json::value* type = item.if_contains("type");
  if (type != nullptr && !type->is_null()) return std::string(string_in(item, "type"));
  return is_item_reference(item) ? "item_reference" : "message";
}

std::string joined(const json::array& parts) {
  std::string text;
  for (const json::value& part : parts) text += part.at("text").get_string();
  return text;
}

class InputReader {
 public:
  InputReader(Conversation& conversation, const ToolForms& forms)
      : conversation_(conversation), history_(conversation.history), forms_(forms) {}

  Result<void> read(const json::value& value, const std::string& path, bool is_asked);

 private:
  Result<json::array> read_parts(const json::value& content, const std::string& path,
                                 bool is_asked);
  Result<void> read_message(const json::object& item, const std::string& path, bool is_asked);
  Result<void> read_reasoning(const json::object& item, const std::string& path);
  Result<void> read_function_call(const json::object& item, const std::string& path,
                                  bool is_custom);
  void read_call_output(const json::object& item, std::string_view of, const std::string& path);
  void read_other_call(const json::object& item, const CallItem& call, const std::string& path);
  void read_summary(const json::object& item, const std::string& path);
  void read_tools(const std::string& path);
  std::string output_text(const json::value& output, const std::string& path);
  void push_result(std::string_view id, std::string_view text, const std::string& path);
  json::object& assistant(const std::string& path);

  Conversation& conversation_;
  History& history_;
  const ToolForms& forms_;
  bool is_assistants_ = false;  // the last message is made of an assistant's items
};

// A string or a list of parts, each as text.
Result<json::array> InputReader::read_parts(const json::value& content, const std::string& path,
                                            bool is_asked) {
  if (content.is_string()) return json::array{text_part(content.get_string())};
  const json::array* list = content.if_array();
  if (list == nullptr) {
    return field_error(
        ErrorCode::kInvalidArgument,
        fmt::format("must be a string or a list of parts, not {}", json_type_name(content)), path);
  }
  json::array parts;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    if (const json::string* text = (*list)[i].if_string()) {
      parts.push_back(text_part(*text));
      continue;
    }
    const json::object* part = (*list)[i].if_object();
    if (part == nullptr) return field_error(ErrorCode::kInvalidArgument, "must be an object", at);
    RUDDER_TRY(const std::string type, history_.part_type(*part, at, is_asked));
    const bool is_text = std::ranges::find(kTextParts, type) != kTextParts.end();
    if (is_text || type == "refusal") {
      RUDDER_TRY(const std::string text,
                 history_.text_in(*part, is_text ? "text" : "refusal", at, is_asked));
      parts.push_back(text_part(text));
    } else {
      RUDDER_TRY(const std::string text, history_.stand_in(type, at, is_asked));
      if (!text.empty()) parts.push_back(text_part(text));
    }
  }
  return parts;
}

// The message that the assistant's items go to.
json::object& InputReader::assistant(const std::string& path) {
  if (!is_assistants_) {
    conversation_.add({{"role", "assistant"}, {"content", ""}}, path);
    is_assistants_ = true;
  }
  return conversation_.last();
}

Result<void> InputReader::read_message(const json::object& item, const std::string& path,
                                       bool is_asked) {
  RUDDER_TRY(const std::string role, required_string(item, "role", path));
  if (std::ranges::find(kForeignRoles, role) != kForeignRoles.end()) {
    history_.tell(path);
    return {};
  }
  if (std::ranges::find(kRoles, role) == kRoles.end()) {
    return invalid_field(fmt::format("must be one of {}", fmt::join(kRoles, ", ")), path + ".role");
  }
  RUDDER_TRY(const json::value content, history_.content_in(item, path, is_asked));
  RUDDER_TRY(json::array parts, read_parts(content, path + ".content", is_asked));
  if (item.contains("tool_calls")) history_.tell(path + ".tool_calls");  // those are items here
  if (role == "assistant") {
    if (is_assistants_) {
      const json::object& last = conversation_.last();
      is_assistants_ = last.at("content") == "" && !last.contains("tool_calls");
    }
    append_content(assistant(path), joined(parts));
    return {};
  }
  is_assistants_ = false;
  conversation_.add({{"role", role}, {"content", content_of(std::move(parts))}}, path);
  return {};
}

Result<void> InputReader::read_reasoning(const json::object& item, const std::string& path) {
  is_assistants_ = false;
  std::string text;
  for (const char* name : {"content", "summary"}) {
    const json::value* parts = item.if_contains(name);
    if (parts == nullptr || parts->is_null() || !text.empty()) continue;
    RUDDER_TRY(const json::array read, read_parts(*parts, fmt::format("{}.{}", path, name), false));
    text = joined(read);
  }
  if (!text.empty()) assistant(path)["reasoning_content"] = text;
  return {};
}

// With the arguments as an object: what the model wrote may be no JSON, and the client has not
// looked into it.
Result<void> InputReader::read_function_call(const json::object& item, const std::string& path,
                                             bool is_custom) {
  const json::value* called = item.if_contains("name");
  if (called == nullptr || called->is_null()) {  // it was cut off in front of it
    history_.tell(path);
    return {};
  }
  RUDDER_TRY(const std::string name, required_string(item, "name", path));
  json::value arguments;
  if (is_custom) {
    RUDDER_TRY(const std::string given, history_.text_in(item, "input", path, false));
    arguments = json::object{{"input", given}};
  } else {
    const json::value* given = item.if_contains("arguments");
    arguments =
        history_.open_arguments(given != nullptr ? *given : json::value(), path + ".arguments");
  }
  append_call(assistant(path), call_id_of(item), function_name(string_in(item, "namespace"), name),
              std::move(arguments));
  return {};
}

void InputReader::read_other_call(const json::object& item, const CallItem& call,
                                  const std::string& path) {
  const std::string_view name = call.function.empty() ? string_in(item, "name") : call.function;
  const std::string_view id = call_id_of(item);
  if (name.empty() || id.empty()) return history_.tell(path);
  const json::value* given = item.if_contains(call.arguments);
  json::value arguments = history_.open_arguments(given != nullptr ? *given : json::value(),
                                                  fmt::format("{}.{}", path, call.arguments));
  append_call(assistant(path), id, name, std::move(arguments));
  // A call that a server ran has its result in it.
  if (const json::value* output = item.if_contains("output");
      call.type == "mcp_call" && output != nullptr) {
    push_result(id, output_text(*output, path + ".output"), path);
  }
}

void InputReader::push_result(std::string_view id, std::string_view text, const std::string& path) {
  is_assistants_ = false;
  conversation_.add({{"role", "tool"}, {"tool_call_id", id}, {"content", text}}, path);
}

// A text, parts, or data of a tool's own.
std::string InputReader::output_text(const json::value& output, const std::string& path) {
  if (output.is_null()) return "";
  if (output.is_string()) return std::string(output.get_string());
  if (is_text_or_parts(output)) {
    const size_t told = history_.num_told();
    const Result<json::array> parts = read_parts(output, path, false);
    if (parts) return joined(*parts);
    if (history_.num_told() == told) return to_json_text(output);
  }
  if (const json::object* part = output.if_object(); part != nullptr && part->contains("type")) {
    const Result<json::array> parts = read_parts(json::array{*part}, path, false);
    if (parts) return joined(*parts);
  }
  return to_json_text(output);
}

// Of a call that the model is shown. One of a server's own has no id, and is not shown either.
void InputReader::read_call_output(const json::object& item, std::string_view of,
                                   const std::string& path) {
  const bool is_function = of == "function_call" || of == "custom_tool_call";
  const bool is_known = is_function || std::ranges::any_of(kCallItems, [&](const CallItem& call) {
                          return call.type == of || call.type == fmt::format("{}_call", of);
                        });
  const std::string_view id = call_id_of(item);
  if (!is_known || (!is_function && id.empty())) return history_.tell(path);
  if (const auto found = forms_.shown_at.find(path); found != forms_.shown_at.end()) {
    return push_result(id, found->second, path);  // of a search for tools
  }
  for (const char* name : {"output", "tools", "status"}) {  // of a search; of a patch
    const json::value* output = item.if_contains(name);
    if (output == nullptr || output->is_null()) continue;
    return push_result(id, output_text(*output, fmt::format("{}.{}", path, name)), path);
  }
  push_result(id, "", path);
}

// What stands for the conversation before it; nobody else's can be read.
void InputReader::read_summary(const json::object& item, const std::string& path) {
  const std::optional<std::string> summary =
      open_sealed(kSealedSummary, string_in(item, "encrypted_content"));
  if (!summary) return history_.tell(path);
  is_assistants_ = false;
  const std::string told = "What was said until here, in short:\n" + *summary;
  conversation_.add({{"role", "user"}, {"content", told}}, path);
}

void InputReader::read_tools(const std::string& path) {
  const auto found = forms_.shown_at.find(path);
  if (found == forms_.shown_at.end()) return history_.tell(path);
  is_assistants_ = false;
  conversation_.add({{"role", "system"}, {"content", "New tools are there:\n" + found->second}},
                    path);
}

Result<void> InputReader::read(const json::value& value, const std::string& path, bool is_asked) {
  const json::object* item = value.if_object();
  if (item == nullptr) {
    return field_error(ErrorCode::kInvalidArgument,
                       fmt::format("must be an object, not {}", json_type_name(value)), path);
  }
  std::string type = type_of_item(*item);
  if (type.empty()) {
    RUDDER_TRY(type, required_string(*item, "type", path));
  }
  if (type == "message") return read_message(*item, path, is_asked);
  if (type == "reasoning") return read_reasoning(*item, path);
  if (type == "function_call") return read_function_call(*item, path, false);
  if (type == "custom_tool_call") return read_function_call(*item, path, true);
  if (type == "configuration_update") return {};  // the request's reader knows it
  if (type == "additional_tools") {
    read_tools(path);
    return {};
  }
  constexpr std::string_view kOutput = "_output";
  if (type.ends_with(kOutput)) {
    read_call_output(*item, std::string_view(type).substr(0, type.size() - kOutput.size()), path);
    return {};
  }
  if (type.starts_with("compaction")) {
    read_summary(*item, path);
    return {};
  }
  const auto* call = std::ranges::find(kCallItems, type, &CallItem::type);
  if (call != kCallItems.end()) {
    read_other_call(*item, *call, path);
  } else {
    history_.tell(path);
  }
  return {};
}

// Of an item that is no message, what a tool's result is: no question.
std::string_view role_of_item(const json::value& value) {
  const json::object* item = value.if_object();
  if (item == nullptr) return "tool";
  const std::string type = type_of_item(*item);
  if (type == "additional_tools" || type == "configuration_update") return "developer";
  return type == "message" ? string_in(*item, "role") : "tool";
}

}  // namespace

Result<void> read_input_items(const json::value& input, const ToolForms& forms,
                              Conversation& conversation) {
  if (input.is_string()) {
    conversation.add({{"role", "user"}, {"content", input.get_string()}}, "input");
    return {};
  }
  const json::array* items = input.if_array();
  if (items == nullptr) {
    return field_error(
        ErrorCode::kInvalidArgument,
        fmt::format("must be a string or a list of items, not {}", json_type_name(input)), "input");
  }
  if (items->empty()) return field_error(ErrorCode::kInvalidArgument, "is empty", "input");
  const int64_t question = find_question(std::ssize(*items), [&](int64_t i) {
    return role_of_item((*items)[static_cast<size_t>(i)]);
  });
  InputReader reader(conversation, forms);
  for (size_t i = 0; i < items->size(); ++i) {
    const bool is_asked = static_cast<int64_t>(i) == question;
    RUDDER_TRY_VOID(reader.read((*items)[i], fmt::format("input[{}]", i), is_asked));
  }
  if (!conversation.messages.empty()) return {};
  return unsupported_type(type_of_item(items->front().as_object()),
                          "what a model can read, such as a message,", "input[0]");
}

}  // namespace rudder::server
