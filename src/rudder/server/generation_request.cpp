#include "rudder/server/generation_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <ctime>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/constraint/thinking_budget.h"
#include "rudder/server/chat_messages.h"
#include "rudder/server/field_ranges.h"
#include "rudder/server/field_reader.h"
#include "rudder/server/request_id.h"
#include "rudder/server/sampling_fields.h"
#include "rudder/server/structured_output.h"
#include "rudder/server/text_prompts.h"
#include "rudder/server/token_list_fields.h"
#include "rudder/server/tool_fields.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr size_t kMaxNameBytes = 1024;
constexpr int64_t kMaxChoices = 16'384;  // of all prompts of a request

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

// What is told of the prompt and how likely tokens were. True: the prompt is echoed.
bool read_echo_and_logprobs(FieldReader& reader, AnswerOptions* answer,
                            engine::RequestDraft* draft) {
  bool echo = false;
  reader.boolean("echo", &echo);
  if (answer->api == Api::kChat) {
    reader.boolean("return_prompt_text", &answer->return_prompt_text);
    read_chat_logprobs(reader, answer, &draft->sampling);
  } else {
    read_completions_logprobs(reader, answer, &draft->sampling);
    answer->prompt_only = echo && draft->max_tokens == 0;
    if (answer->prompt_only) draft->max_tokens = 1;
  }
  read_prompt_logprobs(reader, echo, answer, &draft->sampling);
  return echo;
}

// A name for logs and for the answer's id, where the header gave none.
void read_request_id(FieldReader& reader, bool is_named, std::string* id) {
  std::string name;
  reader.string("request_id", static_cast<size_t>(sized_field("request_id").max), &name);
  if (name.empty() || !reader.ok()) return;
  if (!is_request_id(name)) {
    reader.error(ErrorCode::kInvalidArgument, "must be visible ASCII without quotes", "request_id");
  } else if (!is_named) {
    *id = std::move(name);
  }
}

// `thinking_token_budget`; nothing where it is absent or -1.
std::optional<int32_t> read_thinking_budget(FieldReader& reader, const ToolFields& tools) {
  const char* const name = "thinking_token_budget";
  int32_t budget = -1;
  read_integer(reader, name, &budget);
  if (budget < 0) return std::nullopt;
  if (tools.parser.reasoning == nullptr) {
    reader.error(ErrorCode::kUnsupported,
                 "needs a model whose thoughts can be told apart (--reasoning-parser)", name);
  }
  return budget;
}

// The constraint that keeps to the budget.
Result<std::shared_ptr<const constraint::Constraint>> limit_thoughts(
    const dialect::ParserSetup& setup, const text::Tokenizer& tokenizer, int32_t budget) {
  const text::EncodeOptions as_marks = {.add_special_tokens = false, .parse_special = true};
  RUDDER_TRY(const std::vector<int32_t> begin, tokenizer.encode(setup.reasoning->begin, as_marks));
  RUDDER_TRY(const std::vector<int32_t> end, tokenizer.encode(setup.reasoning->end, as_marks));
  return constraint::limit_thinking(begin, end, budget,
                                    setup.in_reasoning || setup.reasoning->always);
}

// How many of a prompt's last tokens are kept; absent: all.
Result<std::optional<int64_t>> read_truncation(FieldReader& reader,
                                               const engine::RequestDraft& draft,
                                               const engine::RequestLimits& limits) {
  const char* const name = "truncate_prompt_tokens";
  std::optional<int64_t> kept;
  read_integer(reader, name, &kept);
  RUDDER_TRY_VOID(reader.result());
  if (!kept) return kept;
  const int64_t room = std::max<int64_t>(0, limits.max_seq_len - draft.max_tokens.value_or(1));
  // Without room max_tokens is at fault, and said to be.
  if (*kept == -1) return room > 0 ? std::optional<int64_t>(room) : std::nullopt;
  if (*kept > 0 && *kept <= room) return kept;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} must be -1 or between 1 and {}, what the context has beside the "
                          "output",
                          name, room),
              name);
}

// Only the last `kept` tokens stay.
void truncate(const text::Tokenizer& tokenizer, int64_t kept, PromptText& prompt) {
  const int64_t cut = std::ssize(prompt.ids) - kept;
  if (cut <= 0) return;
  prompt.ids.erase(prompt.ids.begin(), prompt.ids.begin() + cut);
  prompt.text = tokenizer.decode(prompt.ids, false);
  std::vector<steer::RoleSpan> roles;
  for (steer::RoleSpan span : prompt.roles) {
    span.tokens.begin = static_cast<int32_t>(std::max<int64_t>(0, span.tokens.begin - cut));
    span.tokens.end = static_cast<int32_t>(span.tokens.end - cut);
    if (span.tokens.end > span.tokens.begin) roles.push_back(span);
  }
  prompt.roles = std::move(roles);
}

tl::expected<void, ApiError> check_choices(size_t num_prompts, int32_t n) {
  if (static_cast<int64_t>(num_prompts) * n <= kMaxChoices) return {};
  return tl::unexpected(
      invalid(fmt::format("{} prompts with {} choices each are more than {} choices", num_prompts,
                          n, kMaxChoices),
              "n"));
}

tl::expected<void, ApiError> check_length(const PromptText& prompt,
                                          const engine::RequestLimits& limits) {
  if (std::cmp_less(prompt.ids.size(), limits.max_seq_len)) return {};
  return tl::unexpected(
      invalid(fmt::format("the prompt has {} tokens; with at least one token of output that is "
                          "more than the model's context of {} tokens",
                          prompt.ids.size(), limits.max_seq_len),
              prompt.path, "context_length_exceeded"));
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
                                             const GenerationScope& scope, const ToolFields& tools,
                                             bool with_roles) {
  if (api == Api::kCompletions) {
    return read_completion_prompts(reader, *scope.model.tokenizer, scope.max_prompts);
  }
  RUDDER_TRY(PromptText prompt, render_chat(reader, scope.model, tools, with_roles));
  std::vector<PromptText> prompts;
  prompts.push_back(std::move(prompt));
  return prompts;
}

// What the answer needs of the prompt, beside the request that the engine gets.
Prompt make_prompt(engine::Request request, std::string echoed, const AnswerOptions& answer,
                   PromptText text) {
  Prompt prompt = {std::move(request), std::move(echoed), {}, {}, {}, text.ids.size()};
  if (prompt.request.draft().sampling.num_prompt_logprobs >= 0) {
    prompt.scored.push_back({.token = text.ids.front(), .top = {}});
  }
  if (answer.return_token_ids) prompt.told_ids = std::move(text.ids);
  if (answer.return_prompt_text) prompt.told_text = std::move(text.text);
  return prompt;
}

// What an output with a form cannot be asked for beside it.
void check_structured(FieldReader& reader, const engine::RequestDraft& draft,
                      const ToolFields& tools) {
  if (draft.ignore_eos) {
    reader.error(ErrorCode::kInvalidArgument,
                 "is not allowed together with a form of the output, which ends it", "ignore_eos");
  }
  if (tools.choice != ToolChoice::kNone) {
    reader.error(ErrorCode::kInvalidArgument,
                 "must be none where the output's form is given: calls have a form of their own",
                 "tool_choice");
  }
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
  std::string request_id = scope.request_id;
  read_request_id(reader, scope.is_named, &request_id);
  answer.id = (chat ? "chatcmpl-" : "cmpl-") + request_id;
  if (!scope.answer_id.empty()) answer.id = scope.answer_id;
  answer.created = static_cast<int64_t>(std::time(nullptr));

  engine::RequestDraft draft = read_sampling_fields(reader, scope.model.defaults);
  read_answer_fields(reader, &answer);
  const bool echo = read_echo_and_logprobs(reader, &answer, &draft);
  ToolFields tools;
  if (chat) tools = read_tool_fields(reader, scope.model.dialect);
  std::optional<int32_t> thinking_budget;
  if (chat) thinking_budget = read_thinking_budget(reader, tools);
  const StructuredOutput structured = read_structured_output(reader);
  if (structured.spec) check_structured(reader, draft, tools);
  refuse_unsupported_fields(reader, api, draft.n);
  const auto kept = read_truncation(reader, draft, scope.limits);
  if (!kept) return tl::unexpected(to_api_error(kept.error()));

  const Result<TapFields> taps = TapFields::read(reader, body, scope.taps);
  if (!taps) return tl::unexpected(to_api_error(taps.error()));
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));

  // The cheap checks are behind; now the text.
  read_token_lists(reader, *scope.model.tokenizer, scope.limits, &draft.constraints);
  const bool with_roles = chat && taps->needs_roles();
  auto prompts = read_prompts(reader, api, scope, tools, with_roles);
  if (!prompts) return tl::unexpected(to_api_error(prompts.error()));
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  if (auto fits = check_choices(prompts->size(), draft.n); !fits) {
    return tl::unexpected(std::move(fits.error()));
  }
  answer.n = draft.n;
  answer.num_choices = draft.n * static_cast<int32_t>(prompts->size());
  parsed.parser = tools.parser_after(prompts->front().text);
  answer.include_reasoning = tools.include_reasoning;
  if (parsed.parser) {
    draft.shown_special_ids = scope.model.dialect.special_marks;
    parsed.uncompiled = tools.grammar(*parsed.parser, *scope.model.tokenizer);
  }
  if (parsed.uncompiled && draft.ignore_eos) {
    return tl::unexpected(
        invalid("ignore_eos excludes an answer that ends with its calls", "ignore_eos"));
  }
  if (thinking_budget && parsed.parser && parsed.parser->reasoning != nullptr) {
    auto limit = limit_thoughts(*parsed.parser, *scope.model.tokenizer, *thinking_budget);
    if (!limit) return tl::unexpected(to_api_error(limit.error()));
    draft.constraints.push_back(std::move(*limit));
  }
  if (structured.spec) {
    const auto setup = parsed.parser.value_or(dialect::ParserSetup());
    auto spec = structured.after_thoughts(setup, *scope.model.tokenizer);
    if (!spec) return tl::unexpected(to_api_error(structured.blame(spec.error())));
    parsed.uncompiled = std::move(*spec);
  }
  if (parsed.uncompiled && scope.find_grammar) {
    const auto found = scope.find_grammar(*parsed.uncompiled);
    if (!found) return parsed;
    if (!*found) {
      const Error& error = found->error();
      return tl::unexpected(
          to_api_error(structured.spec ? structured.blame(error) : tools.blame(error)));
    }
    draft.constraints.push_back(**found);
  }
  parsed.uncompiled.reset();
  draft.client_id = answer.id;
  draft.capture_events = answer.stream;
  draft.cache_salt = scope.keys.cache_salt(scope.tenant, draft.cache_salt);
  for (PromptText& prompt : *prompts) {
    if (*kept) truncate(*scope.model.tokenizer, **kept, prompt);
    if (auto fits = check_length(prompt, scope.limits); !fits) {
      return tl::unexpected(std::move(fits.error()));
    }
    engine::RequestDraft one = draft;
    one.prompt = prompt.ids;
    if (prompts->size() > 1) one.client_id += fmt::format("-{}", parsed.prompts.size());
    if (const Result<void> applied = taps->apply(prompt, with_roles, &one); !applied) {
      return tl::unexpected(to_api_error(applied.error()));
    }
    Result<engine::Request> request = engine::validate_request(std::move(one), scope.limits);
    if (!request) return tl::unexpected(translate(request.error(), api, body, prompt.path));
    std::string echoed;
    if (echo) echoed = chat ? echoed_message(body) : prompt.text;
    parsed.prompts.push_back(
        make_prompt(std::move(*request), std::move(echoed), answer, std::move(prompt)));
  }
  parsed.ignored_fields = reader.ignored();
  return parsed;
}

}  // namespace rudder::server
