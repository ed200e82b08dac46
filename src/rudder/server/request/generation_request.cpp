#include "rudder/server/request/generation_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <ctime>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/http/request_id.h"
#include "rudder/server/request/answer_grammar.h"
#include "rudder/server/request/chat_messages.h"
#include "rudder/server/request/field_ranges.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/prompt_truncation.h"
#include "rudder/server/request/sampling_fields.h"
#include "rudder/server/request/structured_output.h"
#include "rudder/server/request/text_prompts.h"
#include "rudder/server/request/token_list_fields.h"
#include "rudder/server/request/tool_fields.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr int64_t kMaxChoices = 16'384;    // of all prompts of a request
constexpr int64_t kCompletionTokens = 16;  // where a completion does not say: OpenAI's number

ApiError bad_request(std::string message, std::string param, std::string code = "invalid_value") {
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

// Reads echo and the log-probability fields. Returns whether the prompt is echoed.
bool read_echo_and_logprobs(FieldReader& reader, AnswerOptions* answer,
                            engine::RequestParams* params) {
  bool echo = false;
  reader.boolean("echo", &echo);
  if (answer->api == Api::kChat) {
    reader.boolean("return_prompt_text", &answer->return_prompt_text);
    read_chat_logprobs(reader, answer, &params->sampling);
  } else {
    read_completions_logprobs(reader, answer, &params->sampling);
    answer->prompt_only = echo && params->max_tokens == 0;
    if (answer->prompt_only) params->max_tokens = 1;
  }
  read_prompt_logprobs(reader, echo, answer, &params->sampling);
  return echo;
}

// `thinking_token_budget`; nothing where it is absent or -1. `reasoning`: the dialect's marks of
// thoughts; null: thoughts are not separated.
std::optional<int32_t> read_thinking_budget(FieldReader& reader,
                                            const dialect::ReasoningDialect* reasoning) {
  const char* const name = "thinking_token_budget";
  int32_t budget = -1;
  read_integer(reader, name, &budget);
  if (budget < 0) return std::nullopt;
  if (reasoning == nullptr) {
    reader.error(ErrorCode::kUnsupported,
                 "needs a model whose thoughts can be told apart (--reasoning-parser)", name);
  }
  return budget;
}

// Holds an answer behind `prompt` to the budget. One behind closed thoughts has none.
Result<void> limit_thoughts(const dialect::ReasoningDialect& reasoning, std::string_view prompt,
                            const text::Tokenizer& tokenizer, int32_t budget,
                            engine::RequestParams* params) {
  const dialect::PromptEnd end_of_prompt = dialect::reasoning_after(reasoning, prompt);
  if (end_of_prompt == dialect::PromptEnd::kClosed) return {};
  const text::EncodeOptions as_marks = {.add_special_tokens = false, .parse_special = true};
  RUDDER_TRY(const std::vector<int32_t> begin, tokenizer.encode(reasoning.begin, as_marks));
  RUDDER_TRY(const std::vector<int32_t> end, tokenizer.encode(reasoning.end, as_marks));
  const bool begun = end_of_prompt == dialect::PromptEnd::kOpen || reasoning.always;
  params->constraints.emplace_back(constraint::ThinkingLimit{begin, end, budget, begun});
  return {};
}

// How an answer behind `prompt` shows its thoughts, one token a mark; none where it has no thoughts
// that can be told. kUnsupported where a mark is several tokens: which program a token runs is
// decided token by token.
Result<std::optional<steer::ThoughtMarks>> thought_marks(const dialect::ReasoningDialect* reasoning,
                                                         std::string_view prompt,
                                                         const text::Tokenizer& tokenizer) {
  if (reasoning == nullptr) return std::optional<steer::ThoughtMarks>();
  const dialect::PromptEnd end_of_prompt = dialect::reasoning_after(*reasoning, prompt);
  if (end_of_prompt == dialect::PromptEnd::kClosed) return std::optional<steer::ThoughtMarks>();
  const auto token_of = [&](std::string_view mark) -> Result<int32_t> {
    RUDDER_TRY(const std::vector<int32_t> ids,
               tokenizer.encode(mark, {.add_special_tokens = false, .parse_special = true}));
    if (ids.size() == 1) return ids.front();
    return fail(ErrorCode::kUnsupported,
                fmt::format("roles that tell thoughts from the rest of an answer need marks of one "
                            "token; '{}' of --reasoning-parser {} is {} of this model's",
                            mark, reasoning->name, ids.size()),
                "steering");
  };
  steer::ThoughtMarks marks;
  RUDDER_TRY(marks.begin_token, token_of(reasoning->begin));
  RUDDER_TRY(marks.end_token, token_of(reasoning->end));
  marks.open = end_of_prompt == dialect::PromptEnd::kOpen || reasoning->always;
  return marks;
}

tl::expected<void, ApiError> check_choices(size_t num_prompts, int32_t n) {
  if (static_cast<int64_t>(num_prompts) * n <= kMaxChoices) return {};
  return tl::unexpected(
      bad_request(fmt::format("{} prompts with {} choices each are more than {} choices",
                              num_prompts, n, kMaxChoices),
                  "n"));
}

// Clients look for the first sentence and for the code.
tl::expected<void, ApiError> check_length(const PromptText& prompt,
                                          std::optional<int32_t> max_tokens,
                                          const engine::RequestLimits& limits) {
  const int64_t room = limits.max_seq_len - std::ssize(prompt.ids);
  const int32_t wanted = max_tokens.value_or(1);
  if (room >= 1 && wanted <= room) return {};
  const std::string prompt_has = fmt::format(
      "This model's maximum context length is {} tokens. However, the prompt has {}{} tokens",
      limits.max_seq_len, prompt.is_cut ? "at least " : "", prompt.ids.size());
  if (room < 1) {
    return tl::unexpected(bad_request(prompt_has + ", which leaves no room for output.",
                                      prompt.path, "context_length_exceeded"));
  }
  return tl::unexpected(
      bad_request(fmt::format("{}, and max_tokens asks for {} more.", prompt_has, wanted),
                  "max_tokens", "context_length_exceeded"));
}

// With the client's name for max_tokens.
ApiError spelled(ApiError error, const json::object& body) {
  constexpr std::string_view kName = "max_tokens";
  constexpr std::string_view kOtherName = "max_completion_tokens";
  if (error.param != kName || !body.contains(kOtherName)) return error;
  error.param = kOtherName;
  if (const size_t at = error.message.find(kName); at != std::string::npos) {
    error.message.replace(at, kName.size(), kOtherName);
  }
  return error;
}

// The engine's names for fields, as this client spelled them.
ApiError translate(const Error& error, Api api, const json::object& body,
                   const std::string& prompt_path) {
  ApiError told = spelled(to_api_error(error), body);
  if (told.param == "logprobs" && api == Api::kChat) {
    told.param = "top_logprobs";
  } else if (told.param == "prompt" || told.param.starts_with("prompt[")) {
    told.param = prompt_path + told.param.substr(6);
  }
  return told;
}

Result<std::vector<PromptText>> read_prompts(FieldReader& reader, Api api,
                                             const GenerationScope& scope, const ToolFields& tools,
                                             const Truncation& truncation, bool with_roles) {
  const size_t max_tokens = truncation.max_tokens(scope.limits.max_seq_len - 1);
  const TokenLookup lookup = {scope.tokens, scope.tenant};
  if (api == Api::kCompletions) {
    return read_completion_prompts(
        reader, *scope.model.tokenizer,
        {.max_prompts = scope.max_prompts, .max_tokens = max_tokens, .lookup = lookup});
  }
  RUDDER_TRY(PromptText prompt,
             render_chat(reader, scope.model, tools, max_tokens, with_roles, lookup));
  std::vector<PromptText> prompts;
  prompts.push_back(std::move(prompt));
  return prompts;
}

// What the answer needs of the prompt, beside the request that the engine gets.
Prompt make_prompt(engine::Request request, TapsLease lease, std::string echoed,
                   const AnswerOptions& answer, PromptText text) {
  Prompt prompt = {std::move(request), std::move(lease), std::move(echoed), {}, {}, {},
                   text.ids.size()};
  if (prompt.request.params().sampling.num_prompt_logprobs >= 0) {
    prompt.scored.push_back({.token = text.ids.front(), .top = {}});
  }
  if (answer.return_token_ids) prompt.told_ids = std::move(text.ids);
  if (answer.return_prompt_text) prompt.told_text = std::move(text.text);
  return prompt;
}

// Makes the requests of a body's prompts: one a prompt, of a pair one for each half.
struct RequestMaker {
  Api api;
  const json::object& body;
  const GenerationScope& scope;
  bool with_roles = false;
  std::vector<TapFields> halves = {};  // of a pair the plain one, then the steered one; else one
  bool has_several = false;            // requests: they are numbered

  tl::expected<void, ApiError> add(const engine::RequestParams& like, const PromptText& prompt,
                                   const std::optional<steer::ThoughtMarks>& thoughts,
                                   const std::string& echoed, GenerationRequest& parsed) const {
    for (const TapFields& half : halves) {
      engine::RequestParams params = like;
      if (has_several) params.client_id += fmt::format("-{}", parsed.prompts.size());
      Result<TapsLease> lease =
          half.apply(prompt, *scope.model.tokenizer, with_roles, thoughts, &params);
      if (!lease) return tl::unexpected(to_api_error(lease.error()));
      Result<engine::Request> request = engine::validate_request(std::move(params), scope.limits);
      if (!request) return tl::unexpected(translate(request.error(), api, body, prompt.path));
      parsed.prompts.push_back(
          make_prompt(std::move(*request), std::move(*lease), echoed, parsed.answer, prompt));
    }
    return {};
  }
};

// Adds to `params` the grammar that holds the answer to its form and its calls, if there is one.
tl::expected<void, ApiError> constrain_answer(const StructuredOutput& structured,
                                              const ToolFields& tools, const GenerationScope& scope,
                                              GenerationRequest& parsed,
                                              engine::RequestParams& params) {
  const auto setup = parsed.parser.value_or(dialect::ParserSetup());
  auto grammar = answer_grammar(structured, tools, setup, *scope.model.tokenizer);
  if (!grammar) return tl::unexpected(to_api_error(grammar.error()));
  if (!*grammar) return {};
  if (params.ignore_eos) {
    return tl::unexpected(
        bad_request("ignore_eos excludes an answer that ends with its calls", "ignore_eos"));
  }
  if (scope.grammar_error) {
    return tl::unexpected(to_api_error(blame_grammar(structured, tools, *scope.grammar_error)));
  }
  params.constraints.emplace_back(**grammar);
  parsed.grammar = std::move(*grammar);
  return {};
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
  if (!value) return tl::unexpected(bad_request(value.error().message, "", "invalid_json"));
  if (!value->is_object()) {
    return tl::unexpected(
        bad_request("the request body must be a JSON object", "", "invalid_json"));
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
  answer.fingerprint = fmt::format("rudder-{}", scope.version);

  engine::RequestParams params = read_sampling_fields(reader, scope.model.defaults);
  read_answer_fields(reader, &answer);
  const bool echo = read_echo_and_logprobs(reader, &answer, &params);
  ToolFields tools;
  if (chat) tools = read_tool_fields(reader, scope.model.dialect);
  const dialect::ReasoningDialect* const reasoning =
      chat ? tools.parser.reasoning : scope.model.dialect.reasoning;
  const std::optional<int32_t> thinking_budget = read_thinking_budget(reader, reasoning);
  const StructuredOutput structured = read_structured_output(reader);
  check_form(reader, params.ignore_eos, tools, structured);
  refuse_unsupported_fields(reader, api, params.n);
  const auto truncation =
      read_truncation(reader, scope.limits.max_seq_len - params.max_tokens.value_or(1));
  if (!truncation) return tl::unexpected(to_api_error(truncation.error()));

  const Result<TapFields> taps = TapFields::read(reader, body, scope.taps);
  if (!taps) return tl::unexpected(to_api_error(taps.error()));
  if (taps->is_pair() && params.n != 1) {
    reader.error(ErrorCode::kInvalidArgument, "needs n to be 1", "steering_pair");
  }
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));

  // The cheap checks are behind; now the text.
  read_token_lists(reader, *scope.model.tokenizer, scope.limits, &params.constraints);
  const bool with_roles = chat && taps->needs_roles();
  auto prompts = read_prompts(reader, api, scope, tools, *truncation, with_roles);
  if (!prompts) return tl::unexpected(to_api_error(prompts.error()));
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  const int32_t answers_each = taps->is_pair() ? 2 : params.n;
  if (auto fits = check_choices(prompts->size(), answers_each); !fits) {
    return tl::unexpected(std::move(fits.error()));
  }
  answer.n = params.n;
  answer.is_pair = taps->is_pair();
  answer.num_choices = answers_each * static_cast<int32_t>(prompts->size());
  parsed.parser = tools.parser_after(prompts->front().text);
  answer.include_reasoning = tools.include_reasoning;
  if (parsed.parser) {
    params.shown_special_ids = scope.model.dialect.special_marks;
  }
  if (auto done = constrain_answer(structured, tools, scope, parsed, params); !done) {
    return tl::unexpected(std::move(done.error()));
  }
  params.client_id = answer.id;
  params.capture_events = answer.stream;
  params.tenant = scope.tenant;
  params.cache_salt = scope.keys.cache_salt(scope.tenant, params.cache_salt);
  // Both halves of a pair draw the same numbers: what differs is the steering's doing.
  if (taps->is_pair() && !params.seed) params.seed = random_bits();
  RequestMaker maker = {.api = api, .body = body, .scope = scope, .with_roles = with_roles};
  if (taps->is_pair()) maker.halves.push_back(taps->plain());
  maker.halves.push_back(*taps);
  maker.has_several = prompts->size() * maker.halves.size() > 1;
  for (PromptText& prompt : *prompts) {
    truncate(*scope.model.tokenizer, *truncation, prompt);
    if (auto fits = check_length(prompt, params.max_tokens, scope.limits); !fits) {
      return tl::unexpected(spelled(std::move(fits.error()), body));
    }
    engine::RequestParams one = params;
    one.prompt = prompt.ids;
    if (!chat && !one.max_tokens) {
      const int64_t room = scope.limits.max_seq_len - std::ssize(prompt.ids);
      const int64_t wanted = std::max<int64_t>(kCompletionTokens, one.sampling.min_tokens);
      one.max_tokens = static_cast<int32_t>(std::min(wanted, room));
    }
    if (thinking_budget) {
      const Result<void> limited =
          limit_thoughts(*reasoning, prompt.text, *scope.model.tokenizer, *thinking_budget, &one);
      if (!limited) return tl::unexpected(to_api_error(limited.error()));
    }
    Result<std::optional<steer::ThoughtMarks>> thoughts = std::optional<steer::ThoughtMarks>();
    if (chat && taps->tells_thoughts()) {
      thoughts = thought_marks(scope.model.dialect.reasoning, prompt.text, *scope.model.tokenizer);
    }
    if (!thoughts) return tl::unexpected(to_api_error(thoughts.error()));
    std::string echoed;
    if (echo) echoed = chat ? echoed_message(body) : prompt.text;
    if (auto added = maker.add(one, prompt, *thoughts, echoed, parsed); !added) {
      return tl::unexpected(std::move(added.error()));
    }
  }
  parsed.ignored_fields = reader.ignored();
  return parsed;
}

}  // namespace rudder::server
