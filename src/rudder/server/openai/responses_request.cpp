#include "rudder/server/openai/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/http/request_id.h"
#include "rudder/server/openai/responses_input.h"
#include "rudder/server/request/chat_translation.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/json_numbers.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr size_t kMaxText = size_t{256} << 20;

// Fields of this API alone; what they mean to a chat request is written by hand.
constexpr std::array<std::string_view, 21> kResponsesFields = {
    "input",          "instructions", "max_output_tokens",
    "max_tool_calls", "text",         "reasoning",
    "tools",          "tool_choice",  "previous_response_id",
    "store",          "background",   "truncation",
    "include",        "conversation", "prompt",
    "metadata",       "top_logprobs", "context_management",
    "moderation",     "user",         "stream_options"};
// Fields of chat requests that this API has not, or by another name: unknown here.
constexpr std::array<std::string_view, 11> kNotOfResponses = {"messages",
                                                              "n",
                                                              "max_tokens",
                                                              "max_completion_tokens",
                                                              "response_format",
                                                              "logprobs",
                                                              "echo",
                                                              "functions",
                                                              "function_call",
                                                              "reasoning_effort",
                                                              "continue_final_message"};

// What `include` may ask for of items that no answer has here; thoughts are told in plain text.
constexpr std::array<std::string_view, 7> kNothingToInclude = {
    "reasoning.encrypted_content",   "file_search_call.results",
    "web_search_call.results",       "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs"};

class ResponsesTranslation {
 public:
  ResponsesTranslation(const json::object& body, const GenerationScope& scope,
                       std::shared_ptr<ResponseStore> store)
      : body_(body), scope_(scope), store_(std::move(store)), reader_(body, "") {}

  tl::expected<GenerationRequest, ApiError> parse();

 private:
  Result<void> read_messages();
  void read_limits();
  // What chat has as the function of the tool at `chat_path`.
  Result<json::object> function_of(const json::object& tool, const std::string& path,
                                   const std::string& chat_path);
  void read_tool_choice();
  void read_allowed_tools(const json::object& choice);
  void read_text_format();
  void read_reasoning();
  void read_include();
  void refuse_what_is_missing();
  std::string told_fields(const engine::RequestParams& params) const;

  const json::object& body_;
  const GenerationScope& scope_;
  const std::shared_ptr<ResponseStore> store_;
  FieldReader reader_;
  FieldMap map_;
  json::object chat_;
  json::array messages_;
  size_t num_instructions_ = 0;  // messages in front that are not stored
  bool is_stored_ = true;
  bool is_background_ = false;
  std::optional<std::string> previous_;
};

void ResponsesTranslation::refuse_what_is_missing() {
  reader_.refuse("conversation", "is not supported; use previous_response_id");
  reader_.refuse("prompt", "is not supported: no prompt templates are kept here");
  reader_.refuse("context_management", "is not supported");
  reader_.refuse("moderation", "is not supported");
  reader_.refuse("steering_pair", "gives two answers, and a response is one; use chat completions");
  reader_.refuse("return_steered_tokens", "is not supported; use chat completions");
  if (const json::object* metadata = reader_.object("metadata")) {
    for (const auto& [key, value] : *metadata) {
      if (!value.is_string())
        reader_.error(ErrorCode::kInvalidArgument, "must have strings only", "metadata");
    }
  }
  std::optional<int64_t> calls;
  reader_.integer("max_tool_calls", 1, INT32_MAX, &calls);  // of built-in tools: there are none
}

Result<void> ResponsesTranslation::read_messages() {
  std::optional<std::string> instructions;
  reader_.string("instructions", kMaxText, &instructions);
  if (instructions) {
    push_message(messages_, map_, {{"role", "system"}, {"content", json::string(*instructions)}},
                 "instructions");
    num_instructions_ = 1;
  }
  reader_.string("previous_response_id", kMaxNameBytes, &previous_);
  RUDDER_TRY_VOID(reader_.result());
  if (previous_) {
    const std::optional<StoredResponse> stored =
        store_ == nullptr ? std::nullopt : store_->find(*previous_, scope_.tenant);
    if (!stored || stored->conversation == nullptr) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("there is no finished response '{}' here, or no longer", *previous_),
                  "previous_response_id");
    }
    RUDDER_TRY(const json::value before, parse_json(*stored->conversation, "conversation"));
    for (const json::value& message : before.as_array()) {
      push_message(messages_, map_, message.as_object(), "previous_response_id");
    }
  }
  const json::value* input = reader_.raw("input");
  if (input == nullptr) return field_error(ErrorCode::kInvalidArgument, "is required", "input");
  RUDDER_TRY_VOID(read_input_items(*input, messages_, map_));
  map_.add("messages", "input");
  return {};
}

void ResponsesTranslation::read_limits() {
  std::optional<int64_t> limit;
  reader_.integer("max_output_tokens", 1, INT32_MAX, &limit);
  map_.add("max_completion_tokens", "max_output_tokens");
  map_.add("max_tokens", "max_output_tokens");
  if (limit) chat_["max_completion_tokens"] = *limit;
  std::string truncation = "disabled";
  reader_.string("truncation", kMaxNameBytes, &truncation);
  map_.add("truncate_prompt_tokens", "truncation");
  if (truncation == "auto") {
    chat_["truncate_prompt_tokens"] = -1;
  } else if (truncation != "disabled") {
    reader_.error(ErrorCode::kInvalidArgument, "must be 'auto' or 'disabled'", "truncation");
  }
  reader_.boolean("store", &is_stored_);
  reader_.boolean("background", &is_background_);
  bool is_streamed = false;
  reader_.boolean("stream", &is_streamed);
  if (is_background_ && is_streamed) {
    reader_.error(ErrorCode::kUnsupported, "together with stream is not supported", "background");
  } else if (is_background_ && !is_stored_) {
    reader_.error(ErrorCode::kInvalidArgument, "needs a response that is stored", "background");
  }
  if (const json::object* options = reader_.object("stream_options")) {
    FieldReader fields(*options, "stream_options");
    bool obfuscated = false;
    fields.boolean("include_obfuscation", &obfuscated);  // padding of events: there is none
    if (!fields.ok()) reader_.adopt(fields.error());
  }
}

Result<json::object> ResponsesTranslation::function_of(const json::object& tool,
                                                       const std::string& path,
                                                       const std::string& chat_path) {
  RUDDER_TRY(const std::string type, required_string(tool, "type", path));
  if (type != "function") return unsupported_type(type, "'function'", path);
  json::object function(tool);
  function.erase("type");
  map_.add(chat_path + ".function", path);
  return function;
}

void ResponsesTranslation::read_tool_choice() {
  const json::value* choice = reader_.raw("tool_choice");
  if (choice == nullptr) return;
  const json::object* object = choice->if_object();
  if (object == nullptr) {
    chat_["tool_choice"] = *choice;
    return;
  }
  const Result<std::string> type = required_string(*object, "type", "tool_choice");
  if (!type) return reader_.adopt(type.error());
  if (*type == "allowed_tools") return read_allowed_tools(*object);
  if (*type != "function") {
    return reader_.adopt(
        unsupported_type(*type, "'function' or 'allowed_tools'", "tool_choice").value());
  }
  const Result<std::string> name = required_string(*object, "name", "tool_choice");
  if (!name) return reader_.adopt(name.error());
  chat_["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  map_.add("tool_choice.function", "tool_choice");
}

// Chat has the same one object further in, and each tool's name in its `function`.
void ResponsesTranslation::read_allowed_tools(const json::object& choice) {
  const std::string client = "tool_choice";
  const std::string chat = "tool_choice.allowed_tools";
  map_.add(chat, client);
  json::object allowed(choice);
  FieldReader fields(choice, client);
  const auto function = [&](const json::object& tool, const std::string& path) {
    return function_of(tool, path, chat + path.substr(client.size()));
  };
  translate_tools(fields, function, allowed);
  if (!fields.ok()) return reader_.adopt(fields.error());
  allowed.erase("type");
  chat_["tool_choice"] = {{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
}

void ResponsesTranslation::read_text_format() {
  const json::object* text = reader_.object("text");
  const json::value* found = text == nullptr ? nullptr : text->if_contains("format");
  if (found == nullptr || found->is_null()) return;
  map_.add("response_format", "text.format");
  map_.add("response_format.json_schema", "text.format");
  const json::object* format = found->if_object();
  if (format == nullptr) {
    return reader_.error(ErrorCode::kInvalidArgument, "must be an object", "text.format");
  }
  json::object flat(*format);
  const json::value* type = flat.if_contains("type");
  if (type == nullptr || !type->is_string() || type->get_string() != "json_schema") {
    chat_["response_format"] = std::move(flat);
    return;
  }
  flat.erase("type");
  chat_["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(flat)}};
}

void ResponsesTranslation::read_reasoning() {
  const json::object* reasoning = reader_.object("reasoning");
  if (reasoning == nullptr) return;
  FieldReader fields(*reasoning, "reasoning");
  std::optional<std::string> effort;
  fields.string("effort", kMaxNameBytes, &effort);
  if (effort) chat_["reasoning_effort"] = *effort;
  map_.add("reasoning_effort", "reasoning.effort");
  fields.skip("summary");  // what is thought is told whole
  fields.skip("generate_summary");
  if (!fields.ok()) reader_.adopt(fields.error());
}

void ResponsesTranslation::read_include() {
  std::optional<int64_t> top;
  reader_.integer("top_logprobs", 0, INT32_MAX, &top);
  bool logprobs = top.has_value() && *top > 0;
  if (const json::array* include = reader_.array("include")) {
    size_t number = 0;
    for (const json::value& item : *include) {
      const std::string path = fmt::format("include[{}]", number++);
      if (!item.is_string()) {
        return reader_.error(ErrorCode::kInvalidArgument, "must be a string", path);
      }
      const std::string_view name(item.get_string());
      if (name == "message.output_text.logprobs") {
        logprobs = true;
      } else if (std::ranges::find(kNothingToInclude, name) == kNothingToInclude.end()) {
        return reader_.error(ErrorCode::kInvalidArgument, "is not known", path);
      }
    }
  }
  if (!logprobs) return;
  chat_["logprobs"] = true;
  chat_["top_logprobs"] = top.value_or(0);
}

// What the answer repeats of the request, as members of a JSON object behind others.
std::string ResponsesTranslation::told_fields(const engine::RequestParams& params) const {
  const auto told = [&](std::string_view name, const json::value& otherwise) {
    const json::value* given = body_.if_contains(name);
    return given == nullptr || given->is_null() ? otherwise : *given;
  };
  const json::object fields = {
      {"background", is_background_},
      {"instructions", told("instructions", nullptr)},
      {"max_output_tokens", told("max_output_tokens", nullptr)},
      {"max_tool_calls", told("max_tool_calls", nullptr)},
      {"metadata", told("metadata", json::object())},
      {"parallel_tool_calls", told("parallel_tool_calls", true)},
      {"previous_response_id", told("previous_response_id", nullptr)},
      {"prompt_cache_key", told("prompt_cache_key", nullptr)},
      {"reasoning", told("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
      {"safety_identifier", told("safety_identifier", nullptr)},
      {"service_tier", "default"},
      {"store", is_stored_},
      {"temperature", as_written(params.sampling.temperature)},
      {"text", told("text", {{"format", {{"type", "text"}}}})},
      {"tool_choice", told("tool_choice", "auto")},
      {"tools", told("tools", json::array())},
      {"top_logprobs", std::max(params.sampling.num_logprobs, 0)},
      {"top_p", as_written(params.sampling.top_p)},
      {"truncation", told("truncation", "disabled")},
      {"user", told("user", nullptr)}};
  std::string text = to_json_text(fields);
  return text.substr(1, text.size() - 2);
}

tl::expected<GenerationRequest, ApiError> ResponsesTranslation::parse() {
  refuse_what_is_missing();
  read_limits();
  translate_tools(
      reader_,
      [this](const json::object& tool, const std::string& path) {
        return function_of(tool, path, path);
      },
      chat_);
  read_tool_choice();
  read_text_format();
  read_reasoning();
  read_include();
  if (!reader_.ok()) return tl::unexpected(to_api_error(reader_.error()));
  if (const Result<void> read = read_messages(); !read) {
    return tl::unexpected(to_api_error(read.error()));
  }
  std::string conversation;
  if (is_stored_ && store_ != nullptr) {
    conversation = to_json_text(json::array(
        messages_.begin() + static_cast<ptrdiff_t>(num_instructions_), messages_.end()));
  }
  std::vector<std::string> unknown;
  for (const auto& [key, value] : body_) {
    const std::string_view name(key);
    if (std::ranges::find(kResponsesFields, name) != kResponsesFields.end()) continue;
    if (std::ranges::find(kNotOfResponses, name) != kNotOfResponses.end()) {
      unknown.emplace_back(name);
      continue;
    }
    chat_[key] = value;
  }
  chat_["messages"] = std::move(messages_);

  GenerationScope scope = scope_;
  scope.answer_id = "resp_" + make_request_id("");
  auto parsed = parse_generation(Api::kChat, chat_, scope);
  if (!parsed) return tl::unexpected(map_.told(std::move(parsed.error())));
  parsed->answer.api = Api::kResponses;
  parsed->answer.told_fields = told_fields(parsed->prompts.front().request.params());
  std::ranges::move(unknown, std::back_inserter(parsed->ignored_fields));
  if (is_stored_ && store_ != nullptr) {
    parsed->answer.turn = std::make_shared<const ResponseTurn>(
        ResponseTurn{store_, scope.tenant, std::move(conversation), is_background_});
  }
  return parsed;
}

}  // namespace

tl::expected<GenerationRequest, ApiError> parse_responses(
    std::string_view body, const GenerationScope& scope,
    const std::shared_ptr<ResponseStore>& store) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return ResponsesTranslation(*object, scope, store).parse();
}

}  // namespace rudder::server
