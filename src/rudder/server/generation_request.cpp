#include "rudder/server/generation_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <ctime>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/chat_messages.h"
#include "rudder/server/field_reader.h"
#include "rudder/server/sampling_fields.h"
#include "rudder/server/text_prompts.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr size_t kMaxNameBytes = 1024;

ApiError invalid(std::string message, std::string param, std::string code = "invalid_value") {
  ApiError error = http_error(400, std::move(message));
  error.param = std::move(param);
  error.code = std::move(code);
  return error;
}

// Chat: `logprobs` says whether, `top_logprobs` how many beside the sampled token's.
void read_chat_logprobs(FieldReader& reader, AnswerOptions* answer,
                        step::SamplingParams* sampling) {
  reader.boolean("logprobs", &answer->logprobs);
  std::optional<int64_t> top;
  reader.integer("top_logprobs", 0, INT32_MAX, &top);
  if (top && !answer->logprobs) {
    reader.error(ErrorCode::kInvalidArgument, "is only allowed when logprobs is true",
                 "top_logprobs");
  }
  answer->top_logprobs = static_cast<int32_t>(top.value_or(0));
  if (answer->logprobs) sampling->num_logprobs = answer->top_logprobs;
}

void read_completions_logprobs(FieldReader& reader, AnswerOptions* answer,
                               step::SamplingParams* sampling) {
  std::optional<int64_t> top;
  reader.integer("logprobs", 0, INT32_MAX, &top);
  if (!top) return;
  answer->logprobs = true;
  answer->top_logprobs = static_cast<int32_t>(*top);
  sampling->num_logprobs = answer->top_logprobs;
}

// The engine's names for fields, as this client spelled them.
ApiError translate(const Error& error, Api api, const json::object& body,
                   const std::string& prompt_path) {
  ApiError told = to_api_error(error);
  if (told.param == "max_tokens" && body.contains("max_completion_tokens")) {
    told.param = "max_completion_tokens";
  } else if (told.param == "logprobs" && api == Api::kChat) {
    told.param = "top_logprobs";
  } else if (told.param == "prompt" || told.param.starts_with("prompt[")) {
    told.param = prompt_path + told.param.substr(6);
  }
  return told;
}

Result<std::vector<PromptText>> read_prompts(FieldReader& reader, Api api,
                                             const GenerationScope& scope, bool with_roles) {
  if (api == Api::kCompletions) {
    return read_completion_prompts(reader, *scope.model.tokenizer, scope.max_prompts);
  }
  RUDDER_TRY(PromptText prompt, render_chat(reader, scope.model, with_roles));
  std::vector<PromptText> prompts;
  prompts.push_back(std::move(prompt));
  return prompts;
}

}  // namespace

ApiError model_not_found(std::string_view name) {
  ApiError error = http_error(404, fmt::format("the model '{}' is not served here", name));
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

tl::expected<std::string, ApiError> read_model(FieldReader& reader, const ServerModel& model) {
  std::string name;
  reader.string("model", kMaxNameBytes, &name);
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  if (name.empty()) return model.ids.front();
  if (std::find(model.ids.begin(), model.ids.end(), name) != model.ids.end()) return name;
  return tl::unexpected(model_not_found(name));
}

tl::expected<json::object, ApiError> parse_body(std::string_view body) {
  Result<json::value> value = parse_json(body, "the request body");
  if (!value) return tl::unexpected(invalid(value.error().message, "", "invalid_json"));
  if (!value->is_object()) {
    return tl::unexpected(invalid("the request body must be a JSON object", "", "invalid_json"));
  }
  return std::move(value->get_object());
}

tl::expected<GenerationRequest, ApiError> parse_generation(Api api, std::string_view body,
                                                           const GenerationScope& scope) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return parse_generation(api, *object, scope);
}

tl::expected<GenerationRequest, ApiError> parse_generation(Api api, const json::object& body,
                                                           const GenerationScope& scope) {
  FieldReader reader(body, "");
  GenerationRequest parsed;
  AnswerOptions& answer = parsed.answer;
  auto model = read_model(reader, scope.model);
  if (!model) return tl::unexpected(model.error());
  const bool chat = api == Api::kChat;
  answer.api = api;
  answer.model = std::move(*model);
  answer.id = (chat ? "chatcmpl-" : "cmpl-") + scope.request_id;
  answer.created = static_cast<int64_t>(std::time(nullptr));

  engine::RequestDraft draft = read_sampling_fields(reader, scope.model.defaults);
  read_answer_fields(reader, &answer);
  bool echo = false;
  if (chat) {
    read_chat_logprobs(reader, &answer, &draft.sampling);
  } else {
    read_completions_logprobs(reader, &answer, &draft.sampling);
  }
  reader.boolean("echo", &echo);
  if (echo && answer.logprobs) {
    reader.error(ErrorCode::kUnsupported, "together with logprobs is not supported yet", "echo");
  }
  refuse_unsupported_fields(reader, api, draft.n);
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));

  const Result<TapFields> taps = TapFields::read(reader, body, scope.taps);
  if (!taps) return tl::unexpected(to_api_error(taps.error()));
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));

  // The cheap checks are behind; now the text.
  const bool with_roles = chat && taps->needs_roles();
  auto prompts = read_prompts(reader, api, scope, with_roles);
  if (!prompts) return tl::unexpected(to_api_error(prompts.error()));
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  answer.n = draft.n;
  answer.num_choices = draft.n * static_cast<int32_t>(prompts->size());
  draft.client_id = answer.id;
  draft.capture_events = answer.stream;
  draft.cache_salt = scope.keys.cache_salt(scope.tenant, draft.cache_salt);
  for (PromptText& prompt : *prompts) {
    const auto length = static_cast<int64_t>(prompt.ids.size());
    if (length >= scope.limits.max_seq_len) {
      return tl::unexpected(invalid(
          fmt::format("the prompt has {} tokens; with at least one token of output that is more "
                      "than the model's context of {} tokens",
                      length, scope.limits.max_seq_len),
          prompt.path, "context_length_exceeded"));
    }
    std::vector<int32_t> told_ids;
    if (answer.return_token_ids) told_ids = prompt.ids;
    engine::RequestDraft one = draft;
    one.prompt = std::move(prompt.ids);
    if (prompts->size() > 1) one.client_id += fmt::format("-{}", parsed.prompts.size());
    if (const Result<void> applied = taps->apply(prompt, with_roles, &one); !applied) {
      return tl::unexpected(to_api_error(applied.error()));
    }
    Result<engine::Request> request = engine::validate_request(std::move(one), scope.limits);
    if (!request) {
      return tl::unexpected(translate(request.error(), api, body, prompt.path));
    }
    parsed.prompts.push_back(
        {std::move(*request), echo ? std::move(prompt.text) : std::string(), std::move(told_ids)});
  }
  parsed.ignored_fields = reader.ignored();
  return parsed;
}

}  // namespace rudder::server
