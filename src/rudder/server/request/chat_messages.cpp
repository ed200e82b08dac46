#include "rudder/server/request/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/request/message_parts.h"
#include "rudder/text/message_marks.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// The role as templates know it: results of what were functions before there were tools are a
// tool's.
Result<std::string> read_role(const json::object& message, const std::string& path) {
  constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                      "assistant", "tool",      "function"};
  const json::value* role = message.if_contains("role");
  if (role == nullptr || !role->is_string())
    return invalid_field("must be a string", path + ".role");
  const std::string_view name(role->get_string());
  if (std::find(kRoles.begin(), kRoles.end(), name) == kRoles.end()) {
    return invalid_field("must be one of system, developer, user, assistant and tool",
                         path + ".role");
  }
  return std::string(name == "function" ? "tool" : name);
}

// "" where there is none.
std::string_view given_role(const json::value& message) {
  const json::object* object = message.if_object();
  const json::value* role = object != nullptr ? object->if_contains("role") : nullptr;
  return role != nullptr && role->is_string() ? std::string_view(role->get_string())
                                              : std::string_view();
}

// Parts of other names that are text all the same, and where it stands in them.
std::string_view text_field(std::string_view type) {
  if (type == "refusal") return "refusal";
  const bool is_text = type == "text" || type == "input_text" || type == "output_text";
  return is_text ? "text" : "";
}

// One part as text; one without text, where nothing stands for it.
Result<std::string> read_part(const json::value& item, const std::string& path, bool is_asked,
                              History& history) {
  if (item.is_string()) return std::string(item.get_string());
  const json::object* part = item.if_object();
  if (part == nullptr) return invalid_field("must be an object", path);
  RUDDER_TRY(const std::string type, history.part_type(*part, path, is_asked));
  const std::string_view field = text_field(type);
  if (!field.empty()) return history.text_in(*part, field, path, is_asked);
  // Clients of another API send a result of a tool as a part of the user's.
  const json::value* result = type == "tool_result" ? part->if_contains("content") : nullptr;
  if (result == nullptr) return history.stand_in(type, path, is_asked);
  if (result->is_string()) return std::string(result->get_string());
  std::string text;
  if (!is_text_or_parts(*result)) return to_json_text(*result);
  for (size_t i = 0; i < result->get_array().size(); ++i) {
    RUDDER_TRY(
        const std::string more,
        read_part(result->get_array()[i], fmt::format("{}.content[{}]", path, i), false, history));
    if (!text.empty()) text += '\n';
    text += more;
  }
  return text;
}

// Every part becomes one of type "text".
Result<void> normalise_parts(json::array& parts, const std::string& path, bool is_asked,
                             History& history) {
  json::array texts;
  texts.reserve(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t told = history.num_told();
    RUDDER_TRY(const std::string text,
               read_part(parts[i], fmt::format("{}[{}]", path, i), is_asked, history));
    if (text.empty() && history.num_told() != told) continue;  // left out
    texts.push_back({{"type", "text"}, {"text", text}});
  }
  parts = std::move(texts);
  return {};
}

// Null where it is absent or null.
json::value* given_field(json::object& object, std::string_view name) {
  json::value* value = object.if_contains(name);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

// {"type": "custom", "custom": {"name", "input"}}: a call whose one argument is a text.
void open_custom_call(json::object& call) {
  const json::value* custom = call.if_contains("custom");
  if (custom == nullptr || !custom->is_object() || call.contains("function")) return;
  const json::value* name = custom->get_object().if_contains("name");
  const json::value* input = custom->get_object().if_contains("input");
  json::object function = {{"name", name != nullptr ? *name : json::value()},
                           {"arguments", {{"input", input != nullptr ? *input : json::value("")}}}};
  call = {{"id", call["id"]}, {"type", "function"}, {"function", std::move(function)}};
}

// A call as it was before there were tools.
void open_function_call(json::object& message) {
  const json::value* call = message.if_contains("function_call");
  if (call == nullptr || !call->is_object() || message.contains("tool_calls")) return;
  const json::value* name = call->get_object().if_contains("name");
  message["tool_calls"] = json::array{{{"id", name != nullptr ? *name : json::value("")},
                                       {"type", "function"},
                                       {"function", *call}}};
}

// Each call's function.arguments are an object, or the text of one. Calls of a kind that no
// function is, and such that lack their function or its name, are left out.
Result<void> open_calls(json::value& tool_calls, const std::string& path, History& history) {
  json::array* calls = tool_calls.if_array();
  if (calls == nullptr) return invalid_field("must be a list", path);
  json::array given = std::move(*calls);
  calls->clear();
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string call_path = fmt::format("{}[{}].function", path, i);
    json::object* call = given[i].if_object();
    if (call == nullptr) return invalid_field("must be an object", fmt::format("{}[{}]", path, i));
    open_custom_call(*call);
    json::value* function_value = given_field(*call, "function");
    json::object* function = function_value != nullptr ? function_value->if_object() : nullptr;
    if (function_value != nullptr && function == nullptr) {
      return invalid_field("must be an object", call_path);
    }
    const json::value* name = function != nullptr ? given_field(*function, "name") : nullptr;
    if (name == nullptr) {
      history.tell(fmt::format("{}[{}]", path, i));
      continue;
    }
    if (!name->is_string()) return invalid_field("must be a string", call_path + ".name");
    json::value& arguments = (*function)["arguments"];
    arguments = history.open_arguments(arguments, call_path + ".arguments");
    calls->push_back(std::move(given[i]));
  }
  return {};
}

// The fields of tool calls and thoughts that templates read.
Result<void> check_turn(json::object& message, const std::string& role, const std::string& path,
                        History& history) {
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
  if (role == "assistant") open_function_call(message);
  json::value* calls = message.if_contains("tool_calls");
  if (calls == nullptr) return {};
  if (calls->is_null() || (calls->is_array() && calls->get_array().empty())) {
    message.erase("tool_calls");
    return {};
  }
  if (role != "assistant") {
    return invalid_field("only an assistant's message has tool calls", path + ".tool_calls");
  }
  RUDDER_TRY_VOID(open_calls(*calls, path + ".tool_calls", history));
  if (calls->get_array().empty()) message.erase("tool_calls");
  return {};
}

// What an assistant's message without a content says in another field.
Result<std::string> said_elsewhere(const json::object& message, const std::string& path,
                                   History& history) {
  const std::string_view refusal = string_in(message, "refusal");
  if (!refusal.empty()) return std::string(refusal);
  const json::value* audio = message.if_contains("audio");
  if (audio == nullptr || !audio->is_object()) return std::string();
  return history.stand_in("audio", path + ".audio", false);
}

// Of retrieval: the template's variable of that name.
void read_documents(FieldReader& reader, json::object& kwargs) {
  const json::array* documents = reader.array("documents");
  if (documents == nullptr) return;
  size_t i = 0;
  for (const json::value& document : *documents) {
    if (!document.is_object()) {
      reader.error(ErrorCode::kInvalidArgument, "must be an object",
                   fmt::format("documents[{}]", i));
    }
    ++i;
  }
  kwargs["documents"] = *documents;
}

void read_chat_options(FieldReader& reader, text::ChatOptions* options) {
  reader.boolean("add_generation_prompt", &options->add_generation_prompt);
  reader.boolean("continue_final_message", &options->continue_final_message);
  if (!options->continue_final_message) return;
  if (reader.raw("add_generation_prompt") != nullptr && options->add_generation_prompt) {
    reader.error(ErrorCode::kInvalidArgument, "excludes add_generation_prompt",
                 "continue_final_message");
  }
  options->add_generation_prompt = false;
}

}  // namespace

Result<json::object> normalise_message(const json::value& item, const std::string& path,
                                       bool is_asked, History& history) {
  const json::object* given = item.if_object();
  if (given == nullptr) {
    return invalid_field(fmt::format("must be an object, not {}", json_type_name(item)), path);
  }
  RUDDER_TRY(std::string role, read_role(*given, path));
  json::object message = *given;
  message["role"] = role;
  RUDDER_TRY_VOID(check_turn(message, role, path, history));
  const std::string content_path = path + ".content";
  json::value* content = message.if_contains("content");
  if (content == nullptr || content->is_null()) {
    // An answer of calls or of thoughts alone has none, and comes back as it was sent. Templates
    // that trim or join it know no null.
    json::value& text = message["content"];
    if (role == "assistant") {
      RUDDER_TRY(text, said_elsewhere(message, path, history));
    } else if (role == "tool") {
      text = "";
    } else {
      RUDDER_TRY(text, history.content_in(*given, path, is_asked));
    }
  } else if (role == "tool" && !is_text_or_parts(*content)) {
    message["content"] = to_json_text(*content);  // data of the tool's own
  } else if (content->is_array()) {
    const Result<void> read =
        normalise_parts(content->get_array(), content_path, is_asked, history);
    if (!read && role != "tool") return tl::unexpected(read.error());
    if (!read) message["content"] = to_json_text(*content);
  } else if (!content->is_string()) {
    return invalid_field(
        fmt::format("must be a string or a list of parts, not {}", json_type_name(*content)),
        content_path);
  }
  return message;
}

void read_template_fields(FieldReader& reader, Conversation* conversation) {
  if (const json::object* kwargs = reader.object("chat_template_kwargs")) {
    conversation->kwargs = *kwargs;
  }
  reader.refuse("chat_template", "is not accepted from clients");
  read_documents(reader, conversation->kwargs);
  reader.boolean("add_special_tokens", &conversation->add_special_tokens);
}

// "none" also by the names of the switches.
void read_reasoning_effort(FieldReader& reader, std::string_view name, Conversation* conversation) {
  constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                        "high", "xhigh",   "max"};
  constexpr size_t kMaxBytes = 32;
  std::string effort;
  reader.string(name, kMaxBytes, &effort);
  if (effort.empty()) return;
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    return reader.error(ErrorCode::kInvalidArgument,
                        fmt::format("must be one of {}", fmt::join(kEfforts, ", ")), name);
  }
  json::object& kwargs = conversation->kwargs;
  kwargs.emplace("reasoning_effort", effort);
  if (effort != "none") return;
  kwargs.emplace("enable_thinking", false);
  kwargs.emplace("thinking", false);
}

Result<Conversation> read_chat_conversation(FieldReader& reader) {
  Conversation conversation;
  read_chat_options(reader, &conversation.options);
  read_template_fields(reader, &conversation);
  read_reasoning_effort(reader, "reasoning_effort", &conversation);
  reader.refuse("functions", "is not supported; use tools");
  reader.refuse("function_call", "is not supported; use tool_choice");
  const json::array* given = reader.array("messages");
  RUDDER_TRY_VOID(reader.result());
  if (given == nullptr) return invalid_field("is required", "messages");
  const int64_t question = find_question(
      std::ssize(*given), [&](int64_t i) { return given_role((*given)[static_cast<size_t>(i)]); });
  conversation.messages.reserve(given->size());
  for (size_t i = 0; i < given->size(); ++i) {
    std::string path = fmt::format("messages[{}]", i);
    RUDDER_TRY(json::object message,
               normalise_message((*given)[i], path, static_cast<int64_t>(i) == question,
                                 conversation.history));
    conversation.add(std::move(message), std::move(path));
  }
  return conversation;
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
    History untold;  // what is not shown is not repeated either
    const Result<std::string> shown = read_part(part, "", false, untold);
    if (!shown || shown->empty()) continue;
    if (!text.empty()) text += '\n';
    text += *shown;
  }
  return text;
}

}  // namespace rudder::server
