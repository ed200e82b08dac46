#include "rudder/server/request/generation_ask.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <ctime>
#include <utility>

#include "rudder/server/http/request_id.h"
#include "rudder/server/request/answer_grammar.h"
#include "rudder/server/request/context_length.h"
#include "rudder/server/request/sampling_fields.h"
#include "rudder/server/request/token_list_fields.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr int64_t kMaxChoices = 16'384;    // of all prompts of a request
constexpr int64_t kCompletionTokens = 16;  // where a completion does not say: OpenAI's number

ApiError bad_request(std::string message, std::string param) {
  ApiError error = http_error(400, std::move(message));
  error.param = std::move(param);
  error.code = "invalid_value";
  return error;
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

// Where no stop string ends the answer.
std::optional<engine::ThoughtText> thoughts_of(const dialect::ParserSetup& setup) {
  if (setup.reasoning == nullptr) return std::nullopt;
  return engine::ThoughtText{.begin = std::string(setup.reasoning->begin),
                             .end = std::string(setup.reasoning->end),
                             .open = setup.in_reasoning || setup.reasoning->always};
}

tl::expected<void, ApiError> check_choices(size_t num_prompts, int32_t n) {
  if (static_cast<int64_t>(num_prompts) * n <= kMaxChoices) return {};
  return tl::unexpected(
      bad_request(fmt::format("{} prompts with {} choices each are more than {} choices",
                              num_prompts, n, kMaxChoices),
                  "n"));
}

// An error of the engine, as the client spells its fields.
ApiError spelled(ApiError error, const FieldNames& names) {
  const std::pair<std::string_view, std::string_view> all[] = {
      {"max_tokens", names.max_tokens}, {"logprobs", names.logprobs}, {"stop", names.stop}};
  for (const auto& [name, told] : all) {
    if (error.param != name && !error.param.starts_with(fmt::format("{}[", name))) continue;
    error.param.replace(0, name.size(), told);
    if (const size_t at = error.message.find(name); at != std::string::npos) {
      error.message.replace(at, name.size(), told);
    }
    break;
  }
  return error;
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
  if (parsed.parser) parsed.parser->is_held = true;
  return {};
}

// What one prompt has of its own.
tl::expected<engine::RequestParams, ApiError> params_of_prompt(const GenerationAsk& ask,
                                                               const PromptText& prompt,
                                                               const GenerationScope& scope) {
  engine::RequestParams params = ask.params;
  params.prompt = prompt.ids;
  if (ask.answer.api == Api::kCompletions && !params.max_tokens) {
    const int64_t room = scope.limits.max_seq_len - std::ssize(prompt.ids);
    const int64_t wanted = std::max<int64_t>(kCompletionTokens, params.sampling.min_tokens);
    params.max_tokens = static_cast<int32_t>(std::min(wanted, room));
  }
  if (!ask.thinking_budget) return params;
  const auto* reasoning = ask.answer.api == Api::kCompletions ? scope.model.dialect.reasoning
                                                              : ask.tools.parser.reasoning;
  const Result<void> limited = limit_thoughts(*reasoning, prompt.text, *scope.model.tokenizer,
                                              *ask.thinking_budget, &params);
  if (!limited) return tl::unexpected(to_api_error(limited.error()));
  return params;
}

// One request a prompt, of a pair one for each half.
tl::expected<void, ApiError> add_prompt(const GenerationAsk& ask, const PromptText& prompt,
                                        bool has_several, const GenerationScope& scope,
                                        GenerationRequest& parsed) {
  const bool chat = ask.answer.api != Api::kCompletions;
  auto like = params_of_prompt(ask, prompt, scope);
  if (!like) return tl::unexpected(std::move(like.error()));
  Result<std::optional<steer::ThoughtMarks>> thoughts = std::optional<steer::ThoughtMarks>();
  if (chat && ask.taps.tells_thoughts()) {
    thoughts = thought_marks(scope.model.dialect.reasoning, prompt.text, *scope.model.tokenizer);
  }
  if (!thoughts) return tl::unexpected(to_api_error(thoughts.error()));
  std::string echoed;
  if (ask.echo) echoed = chat ? ask.echoed : prompt.text;
  std::vector<TapFields> halves;
  if (ask.taps.is_pair()) halves.push_back(ask.taps.plain());
  halves.push_back(ask.taps);
  for (const TapFields& half : halves) {
    engine::RequestParams params = *like;
    if (has_several) params.client_id += fmt::format("-{}", parsed.prompts.size());
    Result<TapsLease> lease = half.apply(prompt, *scope.model.tokenizer,
                                         chat && ask.taps.needs_roles(), *thoughts, &params);
    if (!lease) return tl::unexpected(to_api_error(lease.error()));
    Result<engine::Request> request = engine::validate_request(std::move(params), scope.limits);
    if (!request) {
      return tl::unexpected(
          spelled(to_api_error(at_prompt(request.error(), prompt.path)), ask.names));
    }
    parsed.prompts.push_back(
        make_prompt(std::move(*request), std::move(*lease), echoed, parsed.answer, prompt));
  }
  return {};
}

}  // namespace

tl::expected<GenerationAsk, ApiError> begin_ask(FieldReader& reader, Api api,
                                                std::string_view id_prefix,
                                                const GenerationScope& scope) {
  GenerationAsk ask;
  AnswerOptions& answer = ask.answer;
  auto model = read_model(reader, scope.model);
  if (!model) return tl::unexpected(model.error());
  if (!scope.model.generates) {
    return tl::unexpected(to_api_error(
        {ErrorCode::kUnsupported,
         "the model has no head that would make tokens; it serves embeddings", "model"}));
  }
  answer.api = api;
  answer.model = std::move(model->name);
  std::string request_id = scope.request_id;
  read_request_id(reader, scope.is_named, &request_id);
  answer.id = std::string(id_prefix) + request_id;
  answer.created = static_cast<int64_t>(std::time(nullptr));
  answer.fingerprint = fmt::format("rudder-{}", scope.version);
  ask.params = read_sampling_fields(reader, scope.model.defaults);
  ask.params.adapter = std::move(model->adapter);
  read_stream_fields(reader, &answer);
  return ask;
}

void read_thinking_budget(FieldReader& reader, const dialect::ReasoningDialect* reasoning,
                          std::optional<int32_t>* budget) {
  const char* const name = "thinking_token_budget";
  int32_t given = -1;
  read_integer(reader, name, &given);
  if (given < 0) return;
  if (reasoning == nullptr) {
    reader.error(ErrorCode::kUnsupported,
                 "needs a model whose thoughts can be told apart (--reasoning-parser)", name);
  }
  if (!*budget) *budget = given;
}

tl::expected<void, ApiError> read_common_fields(FieldReader& reader, const json::object& body,
                                                const GenerationScope& scope, GenerationAsk* ask) {
  engine::RequestParams& params = ask->params;
  check_form(reader, params.ignore_eos, ask->tools, ask->structured);
  refuse_unsupported_fields(reader);
  const auto truncation =
      read_truncation(reader, scope.limits.max_seq_len - params.max_tokens.value_or(1));
  if (!truncation) return tl::unexpected(to_api_error(truncation.error()));
  ask->truncation = *truncation;
  Result<TapFields> taps = TapFields::read(reader, body, scope.taps);
  if (!taps) return tl::unexpected(to_api_error(taps.error()));
  ask->taps = std::move(*taps);
  if (ask->taps.is_pair() && params.n != 1) {
    reader.error(ErrorCode::kInvalidArgument, "needs n to be 1", "steering_pair");
  }
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  read_token_lists(reader, *scope.model.tokenizer, scope.limits, &params.constraints);
  return {};
}

tl::expected<GenerationRequest, ApiError> make_generation(FieldReader& reader, GenerationAsk ask,
                                                          std::vector<PromptText> prompts,
                                                          const GenerationScope& scope) {
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  const bool is_pair = ask.taps.is_pair();
  engine::RequestParams& params = ask.params;
  const int32_t answers_each = is_pair ? 2 : params.n;
  if (auto fits = check_choices(prompts.size(), answers_each); !fits) {
    return tl::unexpected(std::move(fits.error()));
  }
  AnswerOptions& answer = ask.answer;
  answer.n = params.n;
  answer.is_pair = is_pair;
  answer.num_choices = answers_each * static_cast<int32_t>(prompts.size());
  answer.include_reasoning = ask.tools.include_reasoning;
  GenerationRequest parsed;
  parsed.parser = ask.tools.parser_after(prompts.front().text);
  if (parsed.parser) {
    params.shown_special_ids = scope.model.dialect.special_marks;
    params.thoughts = thoughts_of(*parsed.parser);
  }
  if (auto done = constrain_answer(ask.structured, ask.tools, scope, parsed, params); !done) {
    return tl::unexpected(std::move(done.error()));
  }
  params.client_id = answer.id;
  params.capture_delivery.events = answer.stream;
  params.tenant = scope.tenant;
  params.cache_salt = scope.keys.cache_salt(scope.tenant, params.cache_salt);
  // Both halves of a pair draw the same numbers: what differs is the steering's doing.
  if (is_pair && !params.seed) params.seed = random_bits();
  parsed.answer = answer;
  const bool has_several = prompts.size() * (is_pair ? 2 : 1) > 1;
  for (PromptText& prompt : prompts) {
    truncate(*scope.model.tokenizer, ask.truncation, prompt);
    if (auto fits = check_length(prompt, params.max_tokens, scope.limits); !fits) {
      return tl::unexpected(spelled(std::move(fits.error()), ask.names));
    }
    if (auto added = add_prompt(ask, prompt, has_several, scope, parsed); !added) {
      return tl::unexpected(std::move(added.error()));
    }
  }
  parsed.ignored_fields = reader.ignored();
  return parsed;
}

tl::expected<GenerationRequest, ApiError> make_generation(FieldReader& reader, GenerationAsk ask,
                                                          Conversation conversation,
                                                          const GenerationScope& scope) {
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  Result<PromptText> prompt =
      render_conversation(std::move(conversation), scope.model, ask.tools, reader,
                          {.max_tokens = ask.truncation.max_tokens(scope.limits.max_seq_len - 1),
                           .with_roles = ask.taps.needs_roles(),
                           .lookup = {scope.tokens, scope.tenant}});
  if (!prompt) return tl::unexpected(to_api_error(prompt.error()));
  std::vector<PromptText> prompts;
  prompts.push_back(std::move(*prompt));
  return make_generation(reader, std::move(ask), std::move(prompts), scope);
}

}  // namespace rudder::server
