#include "rudder/server/anthropic/messages_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "rudder/server/anthropic/messages_input.h"
#include "rudder/server/request/chat_translation.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/text_prompts.h"
#include "rudder/server/request/tool_fields.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// The fields that only this API has; the code below translates each of them.
constexpr std::array<std::string_view, 15> kMessagesFields = {
    "messages",      "system",        "max_tokens", "stop_sequences", "tools",
    "tool_choice",   "thinking",      "metadata",   "container",      "mcp_servers",
    "output_config", "cache_control", "speed",      "inference_geo",  "context_management"};
// Fields of chat requests that this API has not, or by another name: unknown here.
constexpr std::array<std::string_view, 10> kNotOfMessages = {"n",
                                                             "max_completion_tokens",
                                                             "response_format",
                                                             "logprobs",
                                                             "top_logprobs",
                                                             "functions",
                                                             "reasoning_effort",
                                                             "echo",
                                                             "stream_options",
                                                             "stop"};

class MessagesTranslation {
 public:
  MessagesTranslation(const json::object& body, const ServerModel& model)
      : body_(body), model_(model), reader_(body, "") {}

  tl::expected<GenerationRequest, ApiError> parse(const GenerationScope& scope);
  tl::expected<int64_t, ApiError> count();

 private:
  tl::expected<void, ApiError> read();
  Result<void> read_conversation();
  void read_limits();
  void read_stop();
  Result<json::object> function_of(const json::object& tool, const std::string& path);
  void read_tool_choice();
  void read_thinking();
  void read_output_config();
  void pass_on();
  json::value& template_field(std::string_view name);

  const json::object& body_;
  const ServerModel& model_;
  FieldReader reader_;
  FieldMap map_;
  json::object chat_;
  std::optional<int64_t> max_tokens_;
  std::vector<std::string> unknown_;
};

Result<void> MessagesTranslation::read_conversation() {
  json::array messages;
  if (const json::value* system = reader_.raw("system")) {
    RUDDER_TRY_VOID(read_system(*system, messages, map_));
  }
  const json::array* list = reader_.array("messages");
  RUDDER_TRY_VOID(reader_.result());
  if (list == nullptr) return field_error(ErrorCode::kInvalidArgument, "is required", "messages");
  if (list->empty()) {
    return field_error(ErrorCode::kInvalidArgument, "must hold at least one message", "messages");
  }
  RUDDER_TRY_VOID(read_message_list(*list, messages, map_));
  if (!messages.empty() && messages.back().at("role") == "assistant") {
    chat_["continue_final_message"] = true;
    chat_["add_generation_prompt"] = false;
  }
  chat_["messages"] = std::move(messages);
  return {};
}

void MessagesTranslation::read_limits() {
  reader_.integer("max_tokens", 1, INT32_MAX, &max_tokens_);
  map_.add("max_completion_tokens", "max_tokens");
  if (max_tokens_) chat_["max_completion_tokens"] = *max_tokens_;
}

void MessagesTranslation::read_stop() {
  map_.add("stop", "stop_sequences");
  if (const json::array* stop = reader_.array("stop_sequences");
      stop != nullptr && !stop->empty()) {
    chat_["stop"] = *stop;
  }
}

Result<json::object> MessagesTranslation::function_of(const json::object& tool,
                                                      const std::string& path) {
  FieldReader fields(tool, path);
  std::string type = "custom";
  fields.string("type", kMaxNameBytes, &type);
  const json::object* schema = fields.object("input_schema");
  RUDDER_TRY_VOID(fields.result());
  if (type != "custom") {
    return field_error(ErrorCode::kUnsupported,
                       "is not supported: only tools with an input_schema are", path + ".type");
  }
  RUDDER_TRY(const std::string name, required_string(tool, "name", path));
  if (schema == nullptr) {
    return field_error(ErrorCode::kInvalidArgument, "is required", path + ".input_schema");
  }
  json::object function = {{"name", name}, {"parameters", *schema}};
  for (const char* also : {"description", "strict"}) {
    if (const json::value* value = tool.if_contains(also)) function[also] = *value;
  }
  map_.add(path + ".function", path);
  map_.add(path + ".function.parameters", path + ".input_schema");
  return function;
}

void MessagesTranslation::read_tool_choice() {
  const json::object* choice = reader_.object("tool_choice");
  if (choice == nullptr) return;
  const Result<std::string> type = required_string(*choice, "type", "tool_choice");
  if (!type) return reader_.adopt(type.error());
  if (*type == "auto" || *type == "none") {
    chat_["tool_choice"] = *type;
  } else if (*type == "any") {
    chat_["tool_choice"] = "required";
  } else if (*type == "tool") {
    const Result<std::string> name = required_string(*choice, "name", "tool_choice");
    if (!name) return reader_.adopt(name.error());
    chat_["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
    map_.add("tool_choice.function", "tool_choice");
  } else {
    return reader_.error(ErrorCode::kInvalidArgument, "must be auto, any, tool or none",
                         "tool_choice.type");
  }
  FieldReader fields(*choice, "tool_choice");
  bool is_single = false;
  fields.boolean("disable_parallel_tool_use", &is_single);
  if (!fields.ok()) return reader_.adopt(fields.error());
  if (is_single) chat_["parallel_tool_calls"] = false;
  map_.add("parallel_tool_calls", "tool_choice.disable_parallel_tool_use");
}

// What templates ask for when a model can think or not.
void MessagesTranslation::read_thinking() {
  const json::object* thinking = reader_.object("thinking");
  if (thinking == nullptr) return;
  const Result<std::string> type = required_string(*thinking, "type", "thinking");
  if (!type) return reader_.adopt(type.error());
  if (*type != "enabled" && *type != "disabled" && *type != "adaptive") {
    return reader_.error(ErrorCode::kInvalidArgument, "must be enabled, disabled or adaptive",
                         "thinking.type");
  }
  FieldReader fields(*thinking, "thinking");
  std::optional<int64_t> budget;
  fields.integer("budget_tokens", 1, INT32_MAX, &budget);
  if (!fields.ok()) return reader_.adopt(fields.error());
  if (budget && max_tokens_ && *budget >= *max_tokens_) {
    return reader_.error(ErrorCode::kInvalidArgument, "must be below max_tokens",
                         "thinking.budget_tokens");
  }
  if (budget && model_.dialect.reasoning != nullptr) {
    chat_["thinking_token_budget"] = *budget;
    map_.add("thinking_token_budget", "thinking.budget_tokens");
  } else if (budget) {
    unknown_.emplace_back("thinking.budget_tokens");  // nobody knows where a thought would end
  }
  json::value& kwargs = chat_["chat_template_kwargs"];
  if (const json::object* given = reader_.object("chat_template_kwargs")) kwargs = *given;
  if (!kwargs.is_object()) kwargs.emplace_object();
  if (*type != "adaptive") kwargs.get_object()["enable_thinking"] = *type == "enabled";
}

void MessagesTranslation::read_output_config() {
  const json::object* config = reader_.object("output_config");
  if (config == nullptr) return;
  FieldReader fields(*config, "output_config");
  std::optional<std::string> effort;
  fields.string("effort", kMaxNameBytes, &effort);
  const json::object* format = fields.object("format");
  if (!fields.ok()) return reader_.adopt(fields.error());
  map_.add("reasoning_effort", "output_config.effort");
  map_.add("response_format", "output_config.format");
  map_.add("response_format.json_schema", "output_config.format");
  if (effort) chat_["reasoning_effort"] = *effort;
  if (format == nullptr) return;
  const Result<std::string> type = required_string(*format, "type", "output_config.format");
  if (!type) return reader_.adopt(type.error());
  const json::value* schema = format->if_contains("schema");
  if (*type != "json_schema" || schema == nullptr || !schema->is_object()) {
    return reader_.error(ErrorCode::kInvalidArgument, "must be a json_schema with its schema",
                         "output_config.format");
  }
  chat_["response_format"] = {{"type", "json_schema"},
                              {"json_schema", {{"name", "output"}, {"schema", *schema}}}};
}

void MessagesTranslation::pass_on() {
  for (const auto& [key, value] : body_) {
    const std::string_view name(key);
    if (std::ranges::find(kMessagesFields, name) != kMessagesFields.end()) continue;
    if (chat_.contains(key)) continue;
    if (std::ranges::find(kNotOfMessages, name) != kNotOfMessages.end()) {
      unknown_.emplace_back(name);
    } else {
      chat_[key] = value;
    }
  }
}

tl::expected<void, ApiError> MessagesTranslation::read() {
  read_limits();
  read_stop();
  translate_tools(
      reader_,
      [this](const json::object& tool, const std::string& path) { return function_of(tool, path); },
      chat_);
  read_tool_choice();
  read_thinking();
  read_output_config();
  reader_.refuse("container", "is not supported");
  reader_.refuse("mcp_servers", "is not supported");
  reader_.refuse("steering_pair", "gives two answers, and a message is one; use chat completions");
  reader_.refuse("return_steered_tokens", "is not supported; use chat completions");
  // It asks for less of the conversation than there is; all of it is right as well.
  if (reader_.raw("context_management") != nullptr) unknown_.emplace_back("context_management");
  reader_.object("metadata");
  if (!reader_.ok()) return tl::unexpected(to_api_error(reader_.error()));
  if (const Result<void> conversation = read_conversation(); !conversation) {
    return tl::unexpected(to_api_error(conversation.error()));
  }
  pass_on();
  return {};
}

tl::expected<GenerationRequest, ApiError> MessagesTranslation::parse(const GenerationScope& scope) {
  if (auto understood = read(); !understood) return tl::unexpected(std::move(understood.error()));
  if (!max_tokens_) {
    return tl::unexpected(to_api_error(
        field_error(ErrorCode::kInvalidArgument, "is required", "max_tokens").value()));
  }
  GenerationScope named = scope;
  named.answer_id = "msg_" + scope.request_id;
  auto parsed = parse_generation(Api::kChat, chat_, named);
  if (!parsed) return tl::unexpected(map_.told(std::move(parsed.error())));
  parsed->answer.api = Api::kMessages;
  std::ranges::move(unknown_, std::back_inserter(parsed->ignored_fields));
  return parsed;
}

tl::expected<int64_t, ApiError> MessagesTranslation::count() {
  if (auto understood = read(); !understood) return tl::unexpected(std::move(understood.error()));
  FieldReader chat(chat_, "");
  if (const auto name = read_model(chat, model_); !name) return tl::unexpected(name.error());
  const Result<PromptText> prompt =
      render_chat(chat, model_, read_tool_fields(chat, model_.dialect));
  if (!prompt) return tl::unexpected(map_.told(to_api_error(prompt.error())));
  if (!chat.ok()) return tl::unexpected(map_.told(to_api_error(chat.error())));
  return static_cast<int64_t>(prompt->ids.size());
}

}  // namespace

tl::expected<GenerationRequest, ApiError> parse_messages(std::string_view body,
                                                         const GenerationScope& scope) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return MessagesTranslation(*object, scope.model).parse(scope);
}

tl::expected<int64_t, ApiError> count_message_tokens(std::string_view body,
                                                     const ServerModel& model) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return MessagesTranslation(*object, model).count();
}

}  // namespace rudder::server
