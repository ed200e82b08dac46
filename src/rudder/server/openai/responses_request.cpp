#include "rudder/server/openai/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/http/request_id.h"
#include "rudder/server/openai/asking_items.h"
#include "rudder/server/openai/input_items.h"
#include "rudder/server/openai/item_references.h"
#include "rudder/server/openai/responses_input.h"
#include "rudder/server/openai/responses_tools.h"
#include "rudder/server/request/chat_messages.h"
#include "rudder/server/request/generation_ask.h"
#include "rudder/server/request/json_numbers.h"
#include "rudder/server/request/message_parts.h"
#include "rudder/server/request/sampling_fields.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr size_t kMaxText = size_t{256} << 20;

// What `include` may ask for of items that no answer has here; thoughts are told in plain text.
constexpr std::array<std::string_view, 7> kNothingToInclude = {
    "reasoning.encrypted_content",   "file_search_call.results",
    "web_search_call.results",       "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs"};

// What a model is asked whose conversation becomes too long.
constexpr std::string_view kSumUp =
    "Sum up this conversation for whoever carries it on: what is wanted, what has been done and "
    "found "
    "out, with names, paths and numbers as they are, and what is left to do. Write nothing else.";

// An object of the body, and where it stands.
struct Settings {
  const json::object* object = nullptr;
  std::string path = {};
};

class ResponsesReader {
 public:
  ResponsesReader(const json::object& body, const GenerationScope& scope,
                  std::shared_ptr<ResponseStore> store)
      : body_(body), scope_(scope), store_(std::move(store)), reader_(body, "") {
    reader_.show_limits(&scope.limits);
    conversation_.field = "input";
  }

  tl::expected<GenerationRequest, ApiError> parse();
  tl::expected<GenerationRequest, ApiError> parse_compaction();
  tl::expected<PromptCount, ApiError> count();

 private:
  tl::expected<GenerationAsk, ApiError> read(Api api);
  void read_own_fields(GenerationAsk* ask);
  Result<void> read_messages();
  Result<void> read_stored(const std::string& id);
  void read_limits(GenerationAsk* ask);
  void read_input();
  void find_remembered();
  void refuse_compaction();
  Settings settings(const char* name);
  FormatField text_format();
  void read_reasoning();
  void read_include(GenerationAsk* ask);
  void refuse_what_is_missing();
  std::string told_fields(const engine::RequestParams& params) const;

  const json::object& body_;
  const GenerationScope& scope_;
  const std::shared_ptr<ResponseStore> store_;
  FieldReader reader_;
  ToolForms forms_;
  std::optional<StoredResponse> previous_;
  json::value remembered_;  // the items of the conversation before that ask for something
  std::vector<AskingItem> asking_;
  std::optional<json::value> referred_;  // `input` with the items that it refers to
  json::array no_items_;
  const json::array* items_ = &no_items_;  // of `input`
  Conversation conversation_;
  size_t num_instructions_ = 0;  // messages in front that are not stored
  bool is_stored_ = true;
  bool is_background_ = false;
  bool is_cut_to_fit_ = false;
};

void ResponsesReader::refuse_what_is_missing() {
  reader_.refuse("conversation", "is not supported; use previous_response_id");
  reader_.refuse("prompt", "is not supported: no prompt templates are kept here");
  reader_.refuse("moderation", "is not supported");
  reader_.refuse("steering_pair", "gives two answers, and a response is one; use chat completions");
  for (const char* name : {"return_routed_experts", "return_steered_tokens"}) {
    reader_.refuse(name, "is not supported; use chat completions");
  }
  // It asks for less of the conversation than there is; all of it is right as well.
  if (reader_.raw("context_management") != nullptr)
    conversation_.history.tell("context_management");
  if (const json::object* metadata = reader_.object("metadata")) {
    for (const auto& [key, value] : *metadata) {
      if (!value.is_string())
        reader_.error(ErrorCode::kInvalidArgument, "must have strings only", "metadata");
    }
  }
  std::optional<int64_t> calls;
  reader_.integer("max_tool_calls", 1, INT32_MAX, &calls);  // of built-in tools: there are none
}

// What was said up to a response that is remembered, and in it.
Result<void> ResponsesReader::read_stored(const std::string& id) {
  const std::string path = "previous_response_id";
  if (!previous_ || previous_->conversation == nullptr) {
    return fail(ErrorCode::kNotFound,
                fmt::format("there is no finished response '{}' here, or no longer", id), path);
  }
  RUDDER_TRY(const json::value before, parse_json(*previous_->conversation, "conversation"));
  for (const json::value& item : before.as_array()) {
    RUDDER_TRY(json::object message, normalise_message(item, path, false, conversation_.history));
    conversation_.add(std::move(message), path);
  }
  return {};
}

Result<void> ResponsesReader::read_messages() {
  std::optional<std::string> instructions;
  std::optional<std::string> previous;
  reader_.string("instructions", kMaxText, &instructions);
  reader_.string("previous_response_id", kMaxNameBytes, &previous);
  RUDDER_TRY_VOID(reader_.result());
  if (instructions) {
    conversation_.add({{"role", "system"}, {"content", json::string(*instructions)}},
                      "instructions");
    num_instructions_ = 1;
  }
  if (previous) RUDDER_TRY_VOID(read_stored(*previous));
  const json::value* input = reader_.raw("input");
  if (input == nullptr) return field_error(ErrorCode::kInvalidArgument, "is required", "input");
  return read_input_items(referred_ ? *referred_ : *input, forms_, conversation_);
}

// What the conversation before it asked for holds; that there is none is told later.
void ResponsesReader::find_remembered() {
  std::optional<std::string> previous;
  reader_.string("previous_response_id", kMaxNameBytes, &previous);
  if (!previous || store_ == nullptr) return;
  previous_ = store_->find(*previous, scope_.tenant);
  if (!previous_ || previous_->asking == nullptr) return;
  auto items = parse_json(*previous_->asking, "conversation");
  if (!items) return reader_.adopt(items.error());
  remembered_ = std::move(*items);
  find_asking_items(remembered_.as_array(), "", &asking_);
  for (AskingItem& item : asking_) item.path = "previous_response_id";
}

void ResponsesReader::read_input() {
  const json::value* input = reader_.raw("input");
  if (input == nullptr) return;
  if (store_ != nullptr) referred_ = with_referred_items(*input, *store_, scope_.tenant);
  if (referred_) input = &*referred_;
  if (!input->is_array()) return;
  items_ = &input->get_array();
  find_asking_items(*items_, "input", &asking_);
}

// It has to be the last item: what it asks for has a path of its own.
void ResponsesReader::refuse_compaction() {
  const json::object* last = items_->empty() ? nullptr : items_->back().if_object();
  if (last == nullptr || string_in(*last, "type") != "compaction_trigger") return;
  reader_.error(ErrorCode::kUnsupported, "is not supported; use /v1/responses/compact",
                fmt::format("input[{}].type", items_->size() - 1));
}

// `text` or `reasoning`: of the last item that changes it, or else the request's own.
Settings ResponsesReader::settings(const char* name) {
  Settings out = {.object = reader_.object(name), .path = name};
  for (const AskingItem& item : asking_) {
    if (item.type != "configuration_update") continue;
    FieldReader update(*item.fields, item.path);
    const json::object* object = update.object(name);
    if (!update.ok()) reader_.adopt(update.error());
    if (object != nullptr) out = {.object = object, .path = fmt::format("{}.{}", item.path, name)};
  }
  return out;
}

void ResponsesReader::read_limits(GenerationAsk* ask) {
  std::optional<int64_t> limit;
  read_integer(reader_, "max_output_tokens", &limit, "max_completion_tokens");
  ask->names.max_tokens = "max_output_tokens";
  if (limit) ask->params.max_tokens = static_cast<int32_t>(*limit);
  read_stop(reader_, "stop", &ask->params.stop);
  std::string truncation = "disabled";
  reader_.string("truncation", kMaxNameBytes, &truncation);
  is_cut_to_fit_ = truncation == "auto";
  if (!is_cut_to_fit_ && truncation != "disabled") {
    reader_.error(ErrorCode::kInvalidArgument, "must be 'auto' or 'disabled'", "truncation");
  }
  reader_.boolean("store", &is_stored_);
  reader_.boolean("background", &is_background_);
  if (is_background_ && ask->answer.stream) {
    reader_.error(ErrorCode::kUnsupported, "together with stream is not supported", "background");
  } else if (is_background_ && !is_stored_) {
    reader_.error(ErrorCode::kInvalidArgument, "needs a response that is stored", "background");
  }
  if (const json::object* options = reader_.object("stream_options")) {
    FieldReader fields(*options, "stream_options");
    bool obfuscated = false;
    fields.boolean("include_obfuscation", &obfuscated);  // padding of events: there is none
    reader_.adopt(fields);
  }
}

FormatField ResponsesReader::text_format() {
  const Settings text = settings("text");
  if (text.object == nullptr) return {};
  FieldReader fields(*text.object, text.path);
  FormatField format = {.value = fields.raw("format"), .path = text.path + ".format"};
  reader_.adopt(fields);
  return format;
}

void ResponsesReader::read_reasoning() {
  const Settings reasoning = settings("reasoning");
  if (reasoning.object == nullptr) return;
  FieldReader fields(*reasoning.object, reasoning.path);
  read_reasoning_effort(fields, "effort", &conversation_);
  fields.skip("summary");  // what is thought is told whole
  fields.skip("generate_summary");
  reader_.adopt(fields);
}

void ResponsesReader::read_include(GenerationAsk* ask) {
  std::optional<int64_t> top;
  read_integer(reader_, "top_logprobs", &top);
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
  reader_.boolean("return_tokens_as_token_ids", &ask->answer.tokens_as_ids);
  if (!logprobs) return;
  ask->names.logprobs = "top_logprobs";
  ask->answer.logprobs = true;
  ask->answer.top_logprobs = static_cast<int32_t>(top.value_or(0));
  ask->params.sampling.num_logprobs = ask->answer.top_logprobs;
}

// What the answer repeats of the request, as members of a JSON object behind others.
std::string ResponsesReader::told_fields(const engine::RequestParams& params) const {
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

void ResponsesReader::read_own_fields(GenerationAsk* ask) {
  refuse_what_is_missing();
  read_limits(ask);
  ask->tools =
      read_response_tools(reader_, scope_.model.dialect, asking_, conversation_.history, forms_);
  read_thinking_budget(reader_, ask->tools.parser.reasoning, &ask->thinking_budget);
  ask->structured = read_structured_output(reader_, text_format());
  read_template_fields(reader_, &conversation_);
  read_reasoning();
  read_include(ask);
  refuse_fields_of_chat(reader_);
  reader_.refuse("thinking", "is not supported; use chat_template_kwargs");
}

// All of the body, and the conversation.
tl::expected<GenerationAsk, ApiError> ResponsesReader::read(Api api) {
  auto ask = begin_ask(reader_, api, "resp_", scope_);
  if (!ask) return ask;
  ask->answer.id = "resp_" + make_request_id("");
  find_remembered();
  read_input();
  if (api != Api::kCompaction) refuse_compaction();
  read_own_fields(&*ask);
  if (auto read = read_common_fields(reader_, body_, scope_, &*ask); !read) {
    return tl::unexpected(std::move(read.error()));
  }
  const int64_t room = scope_.limits.max_seq_len - ask->params.max_tokens.value_or(1);
  if (is_cut_to_fit_ && room > 0) ask->truncation.kept = room;
  if (const Result<void> read = read_messages(); !read) {
    return tl::unexpected(to_api_error(read.error()));
  }
  return ask;
}

tl::expected<GenerationRequest, ApiError> ResponsesReader::parse() {
  auto ask = read(Api::kResponses);
  if (!ask) return tl::unexpected(std::move(ask.error()));
  const bool is_kept = is_stored_ && store_ != nullptr;
  std::string conversation;
  SharedText asking;
  if (is_kept) {
    const json::array& messages = conversation_.messages;
    conversation = to_json_text(
        json::array(messages.begin() + static_cast<ptrdiff_t>(num_instructions_), messages.end()));
    if (!asking_.empty()) asking = store_->share(asking_text(asking_));
  }
  auto parsed = make_generation(reader_, std::move(*ask), std::move(conversation_), scope_);
  if (!parsed) return parsed;
  AnswerOptions& answer = parsed->answer;
  if (!forms_.by_function.empty()) {
    answer.response.tool_forms = std::make_shared<const ToolForms>(std::move(forms_));
  }
  answer.response.told_fields = told_fields(parsed->prompts.front().request.params());
  if (is_kept) {
    answer.response.turn = std::make_shared<const ResponseTurn>(ResponseTurn{
        store_, scope_.tenant, std::move(conversation),
        store_->share(
            to_json_text(listed_input(referred_ ? *referred_ : body_.at("input"), answer.id))),
        std::move(asking), is_background_});
  }
  return parsed;
}

tl::expected<GenerationRequest, ApiError> ResponsesReader::parse_compaction() {
  for (const char* name : {"stream", "background"}) {
    reader_.refuse(name, "is not supported: a conversation is summed up at once");
  }
  auto ask = read(Api::kCompaction);
  if (!ask) return tl::unexpected(std::move(ask.error()));
  // A summary calls nothing and has no form: what says so is checked, left out and named.
  for (const char* name : {"tools", "tool_choice", "text"}) {
    if (reader_.raw(name) != nullptr) reader_.ignore(name);
  }
  ask->tools = begin_tool_fields(reader_, scope_.model.dialect);
  ask->structured = StructuredOutput();
  conversation_.add({{"role", "user"}, {"content", kSumUp}}, "input");
  return make_generation(reader_, std::move(*ask), std::move(conversation_), scope_);
}

tl::expected<PromptCount, ApiError> ResponsesReader::count() {
  auto ask = read(Api::kResponses);
  if (!ask) return tl::unexpected(std::move(ask.error()));
  const Result<PromptText> prompt =
      render_conversation(std::move(conversation_), scope_.model, ask->tools, reader_);
  if (!prompt) return tl::unexpected(to_api_error(prompt.error()));
  if (!reader_.ok()) return tl::unexpected(to_api_error(reader_.error()));
  return PromptCount{std::ssize(prompt->ids), reader_.ignored()};
}

}  // namespace

tl::expected<GenerationRequest, ApiError> parse_responses(
    std::string_view body, const GenerationScope& scope,
    const std::shared_ptr<ResponseStore>& store) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return ResponsesReader(*object, scope, store).parse();
}

tl::expected<GenerationRequest, ApiError> parse_compaction(
    std::string_view body, const GenerationScope& scope,
    const std::shared_ptr<ResponseStore>& store) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return ResponsesReader(*object, scope, store).parse_compaction();
}

tl::expected<PromptCount, ApiError> count_response_tokens(
    std::string_view body, const GenerationScope& scope,
    const std::shared_ptr<ResponseStore>& store) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return ResponsesReader(*object, scope, store).count();
}

}  // namespace rudder::server
