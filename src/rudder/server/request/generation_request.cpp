#include "rudder/server/request/generation_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "rudder/base/exact_json.h"
#include "rudder/server/http/request_id.h"
#include "rudder/server/request/chat_messages.h"
#include "rudder/server/request/field_ranges.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/generation_ask.h"
#include "rudder/server/request/sampling_fields.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

tl::unexpected<ApiError> bad_json(std::string message) {
  ApiError error = http_error(400, std::move(message));
  error.code = "invalid_json";
  return tl::unexpected(std::move(error));
}

// Chat: `logprobs` says whether, `top_logprobs` how many beside the sampled token's.
void read_chat_logprobs(FieldReader& reader, AnswerOptions* answer,
                        step::SamplingParams* sampling) {
  reader.boolean("logprobs", &answer->logprobs);
  std::optional<int64_t> top;
  read_integer(reader, "top_logprobs", &top);
  if (top.value_or(0) > 0 && !answer->logprobs) {
    reader.error(ErrorCode::kInvalidArgument, "is only allowed when logprobs is true",
                 "top_logprobs");
  }
  answer->top_logprobs = static_cast<int32_t>(top.value_or(0));
  if (answer->logprobs) sampling->num_logprobs = answer->top_logprobs;
}

void read_completions_logprobs(FieldReader& reader, AnswerOptions* answer,
                               step::SamplingParams* sampling) {
  std::optional<int64_t> top;
  read_integer(reader, "logprobs", &top);
  if (!top) return;
  answer->logprobs = true;
  answer->top_logprobs = static_cast<int32_t>(*top);
  sampling->num_logprobs = answer->top_logprobs;
}

// `prompt_logprobs`, and `logprobs` where the prompt is echoed.
void read_prompt_logprobs(FieldReader& reader, bool echo, AnswerOptions* answer,
                          step::SamplingParams* sampling) {
  std::optional<int64_t> top;
  read_integer(reader, "prompt_logprobs", &top);
  if (top.value_or(0) > 0 && answer->stream) {
    reader.error(ErrorCode::kInvalidArgument, "is not told in a stream", "prompt_logprobs");
  }
  if (top && !answer->stream) {
    answer->prompt_logprobs = static_cast<int32_t>(*top);
    sampling->num_prompt_logprobs = *answer->prompt_logprobs;
  }
  answer->echo_logprobs = echo && answer->logprobs && answer->api == Api::kCompletions;
  if (!answer->echo_logprobs) return;
  sampling->num_prompt_logprobs = std::max(sampling->num_prompt_logprobs, answer->top_logprobs);
}

// What chat has by itself, beside its messages.
void read_chat_fields(FieldReader& reader, const GenerationScope& scope, GenerationAsk& ask) {
  ask.names.logprobs = "top_logprobs";
  reader.boolean("return_prompt_text", &ask.answer.return_prompt_text);
  read_chat_logprobs(reader, &ask.answer, &ask.params.sampling);
  read_prompt_logprobs(reader, ask.echo, &ask.answer, &ask.params.sampling);
  ask.tools = read_tool_fields(reader, scope.model.dialect);
  read_thinking_budget(reader, ask.tools.parser.reasoning, &ask.thinking_budget);
  refuse_fields_of_chat(reader);
  reader.refuse("thinking", "is not supported; use chat_template_kwargs");
}

void read_completions_fields(FieldReader& reader, const GenerationScope& scope,
                             GenerationAsk& ask) {
  read_completions_logprobs(reader, &ask.answer, &ask.params.sampling);
  ask.answer.prompt_only = ask.echo && ask.params.max_tokens == 0;
  if (ask.answer.prompt_only) {
    ask.params.max_tokens = 1;
    ask.params.counts_output = false;
  }
  read_prompt_logprobs(reader, ask.echo, &ask.answer, &ask.params.sampling);
  read_thinking_budget(reader, scope.model.dialect.reasoning, &ask.thinking_budget);
  refuse_fields_of_completions(reader, ask.params.n);
}

}  // namespace

void read_request_id(FieldReader& reader, bool is_named, std::string* id) {
  std::string name;
  reader.string("request_id", size_limit("request_id"), &name);
  if (name.empty() || !reader.ok()) return;
  if (!is_request_id(name)) {
    reader.error(ErrorCode::kInvalidArgument, "must be visible ASCII without quotes", "request_id");
  } else if (!is_named) {
    *id = std::move(name);
  }
}

ApiError model_not_found(std::string_view name) {
  ApiError error = http_error(404, fmt::format("the model '{}' is not served here", name));
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

tl::expected<NamedModel, ApiError> read_model(FieldReader& reader, const ServerModel& model) {
  std::string name;
  reader.string("model", kMaxNameBytes, &name);
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  if (name.empty()) return NamedModel{model.ids.front(), nullptr};
  if (std::find(model.ids.begin(), model.ids.end(), name) != model.ids.end()) {
    return NamedModel{std::move(name), nullptr};
  }
  if (model.adapters != nullptr) {
    if (auto adapter = model.adapters->find(name)) {
      return NamedModel{std::move(name), std::move(adapter)};
    }
  }
  return tl::unexpected(model_not_found(name));
}

tl::expected<json::object, ApiError> parse_body(std::string_view body) {
  // Where schemas are, no digit of a number is lost.
  constexpr std::string_view kWithSchemas[] = {
      "json_schema",    "output_config",      "output_format", "response_format",
      "structural_tag", "structured_outputs", "text",          "tools"};
  Result<json::value> value = parse_json_exactly_in(kWithSchemas, body, "the request body");
  if (!value) return bad_json(value.error().message);
  if (!value->is_object()) {
    return bad_json("the request body must be a JSON object");
  }
  return std::move(value->get_object());
}

tl::expected<std::vector<std::string>, ApiError> unread_fields(std::string_view body) {
  if (body.empty()) return {};
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return FieldReader(*object, "").ignored();
}

tl::expected<GenerationRequest, ApiError> parse_generation(Api api, std::string_view body,
                                                           const GenerationScope& scope) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return parse_generation(api, *object, scope);
}

tl::expected<GenerationRequest, ApiError> parse_generation(Api api, const json::object& body,
                                                           const GenerationScope& scope) {
  const bool chat = api == Api::kChat;
  FieldReader reader(body, "");
  reader.show_limits(&scope.limits);
  auto begun = begin_ask(reader, api, chat ? "chatcmpl-" : "cmpl-", scope);
  if (!begun) return tl::unexpected(std::move(begun.error()));
  GenerationAsk& ask = *begun;
  constexpr std::string_view kNewerName = "max_completion_tokens";
  if (body.contains(kNewerName)) ask.names.max_tokens = kNewerName;
  read_choice_fields(reader, &ask.answer, &ask.params);
  read_max_tokens(reader, chat, &ask.params.max_tokens);
  read_stop(reader, "stop", &ask.params.stop);
  reader.boolean("echo", &ask.echo);
  if (chat) {
    read_chat_fields(reader, scope, ask);
  } else {
    read_completions_fields(reader, scope, ask);
  }
  ask.structured = read_structured_output(reader);
  if (auto read = read_common_fields(reader, body, scope, &ask); !read) {
    return tl::unexpected(std::move(read.error()));
  }
  // The cheap checks are behind; now the text.
  if (chat) {
    Result<Conversation> conversation = read_chat_conversation(reader);
    if (!conversation) return tl::unexpected(to_api_error(conversation.error()));
    if (ask.echo) ask.echoed = echoed_message(body);
    return make_generation(reader, std::move(ask), std::move(*conversation), scope);
  }
  auto prompts =
      read_text_prompts(reader, *scope.model.tokenizer,
                        {.max_prompts = scope.max_prompts,
                         .max_tokens = ask.truncation.max_tokens(scope.limits.max_seq_len - 1),
                         .lookup = {scope.tokens, scope.tenant}});
  if (!prompts) return tl::unexpected(to_api_error(prompts.error()));
  return make_generation(reader, std::move(ask), std::move(*prompts), scope);
}

}  // namespace rudder::server
