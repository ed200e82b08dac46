#include "rudder/server/openai/rerank_request.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <ctime>
#include <utility>

#include "rudder/constraint/constraint_spec.h"
#include "rudder/server/request/context_length.h"
#include "rudder/server/request/field_ranges.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/sampling_fields.h"
#include "rudder/server/request/text_prompts.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr size_t kMaxInstruction = size_t{256} << 20;

// Two lists of texts: pairs, or one text against each of the other list.
struct TextField {
  const char* name;
  std::vector<std::string> texts = {};
  bool is_missing = false;
  bool is_list = false;

  const std::string& at(size_t i) const { return texts[texts.size() == 1 ? 0 : i]; }
  std::string path_of(size_t i) const {
    return is_list ? fmt::format("{}[{}]", name, texts.size() == 1 ? 0 : i) : name;
  }
};  // namespace

// The names of the two in other servers' versions.
constexpr std::pair<const char*, const char*> kScoreNames[] = {
    {"text_1", "text_2"}, {"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}};

// A text, or an object that has it.
void read_text(FieldReader& reader, const json::value& item, const std::string& path,
               TextField* out) {
  const json::object* object = item.if_object();
  const json::value* text = object != nullptr ? object->if_contains("text") : &item;
  if (text != nullptr && text->is_string()) {
    out->texts.emplace_back(text->get_string());
  } else if (object != nullptr && text == nullptr) {
    reader.error(ErrorCode::kUnsupported, "must have a text: nothing else is read", path + ".text");
  } else {
    reader.error(ErrorCode::kInvalidArgument, "must be a text, or an object with one", path);
  }
}

TextField read_texts(FieldReader& reader, const char* name, int32_t max) {
  TextField field = {.name = name};
  const json::value* value = reader.raw(name);
  const json::array* list = value != nullptr ? value->if_array() : nullptr;
  field.is_list = list != nullptr;
  field.is_missing = value == nullptr;
  if (value == nullptr) return field;  // told behind what is wrong in the body
  if (list == nullptr) {
    read_text(reader, *value, name, &field);
  } else if (list->empty()) {
    reader.error(ErrorCode::kInvalidArgument, "is an empty list", name);
  } else if (std::cmp_greater(list->size(), max)) {
    reader.error(ErrorCode::kInvalidArgument, fmt::format("has more than {} texts", max), name);
  } else {
    for (size_t i = 0; i < list->size() && reader.ok(); ++i) {
      read_text(reader, (*list)[i], fmt::format("{}[{}]", name, i), &field);
    }
  }
  return field;
}

class RerankReader {
 public:
  RerankReader(const json::object& body, const GenerationScope& scope)
      : body_(body), scope_(scope), reader_(body, "") {
    reader_.show_limits(&scope.limits);
  }

  tl::expected<GenerationRequest, ApiError> parse(Api api);

 private:
  void read_fields();
  void read_rerank();
  void read_score();
  tl::expected<void, ApiError> add_pair(size_t i);
  Result<void> add_prompts(const PromptText& prompt);
  Result<std::vector<int32_t>> encode(std::string_view text) const;
  Result<PromptText> prompt_of(size_t i) const;

  const json::object& body_;
  const GenerationScope& scope_;
  FieldReader reader_;
  GenerationRequest parsed_;
  engine::RequestParams params_;
  TapFields taps_;
  std::string instruction_;
  std::optional<int64_t> max_tokens_;  // of a prompt
  TextField first_ = {};
  TextField second_ = {};
};

void RerankReader::read_rerank() {
  first_ = read_texts(reader_, "query", 1);
  if (reader_.ok() && first_.is_list) {
    reader_.error(ErrorCode::kInvalidArgument, "must be one text", "query");
  }
  second_ = read_texts(reader_, "documents", scope_.max_prompts);
  if (reader_.ok() && !second_.is_missing && !second_.is_list) {
    reader_.error(ErrorCode::kInvalidArgument, "must be a list", "documents");
  }
  RerankOptions& options = parsed_.answer.rerank;
  reader_.int32("top_n", 0, INT32_MAX, &options.top_n);
  bool returns = true;
  reader_.boolean("return_documents", &returns);
  if (returns) options.documents = second_.texts;
}

void RerankReader::read_score() {
  const auto* names = &kScoreNames[0];
  for (const auto& known : kScoreNames) {
    if (body_.contains(known.first) && body_.contains(known.second)) names = &known;
  }
  first_ = read_texts(reader_, names->first, scope_.max_prompts);
  second_ = read_texts(reader_, names->second, scope_.max_prompts);
  const size_t first = first_.texts.size();
  const bool has_both = !first_.is_missing && !second_.is_missing;
  if (reader_.ok() && has_both && first != 1 && first != second_.texts.size()) {
    reader_.error(ErrorCode::kInvalidArgument,
                  fmt::format("must be one text, or as many as {} has", names->second),
                  names->first);
  }
}

void RerankReader::read_fields() {
  instruction_ = scope_.model.reranker ? scope_.model.reranker->instruction : std::string();
  reader_.string("instruction", kMaxInstruction, &instruction_);
  read_integer(reader_, "priority", &params_.priority);
  read_integer(reader_, "truncate_prompt_tokens", &max_tokens_);
  if (max_tokens_ == 0) {
    reader_.error(ErrorCode::kInvalidArgument, "must be -1 or at least 1",
                  "truncate_prompt_tokens");
  }
  for (const char* name : {"mm_processor_kwargs", "stream"}) {
    reader_.refuse(name, "is not supported");
  }
  for (const char* name : {"use_activation", "activation", "softmax"}) {
    bool is_share = true;
    reader_.boolean(name, &is_share);
    if (!is_share) {
      reader_.error(ErrorCode::kUnsupported, "must be true: scores are shares of the two answers",
                    name);
    }
  }
  std::string user;
  reader_.string("user", size_limit("user"), &user);
  params_.client_id = parsed_.answer.id;
  params_.max_tokens = 1;
  params_.counts_output = false;
  params_.sampling.temperature = 0;
  params_.sampling.num_logprobs = 0;
  params_.ignore_eos = true;
  params_.disable_spec_decode = true;
  params_.tenant = scope_.tenant;
  params_.cache_salt = scope_.keys.cache_salt(scope_.tenant, read_cache_salt(reader_));
}

Result<std::vector<int32_t>> RerankReader::encode(std::string_view text) const {
  return scope_.model.tokenizer->encode(text, {.add_special_tokens = false, .parse_special = true});
}

// What is too long for the client's bound loses the end of its document, never the question behind.
Result<PromptText> RerankReader::prompt_of(size_t i) const {
  const Reranker& reranker = *scope_.model.reranker;
  const std::string pair = fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}", instruction_,
                                       first_.at(i), second_.at(i));
  RUDDER_TRY(std::vector<int32_t> prefix, encode(reranker.prefix));
  RUDDER_TRY(std::vector<int32_t> ids, encode(pair));
  RUDDER_TRY(const std::vector<int32_t> suffix, encode(reranker.suffix));
  const auto beside = std::ssize(prefix) + std::ssize(suffix);
  if (max_tokens_) {
    const int64_t most = *max_tokens_ == -1 ? scope_.limits.max_seq_len - 1 : *max_tokens_;
    if (most <= beside) {
      return invalid_field(fmt::format("must be more than {}, the tokens of the question", beside),
                           "truncate_prompt_tokens");
    }
    if (std::ssize(ids) > most - beside) ids.resize(static_cast<size_t>(most - beside));
  }
  PromptText prompt = {.ids = std::move(prefix), .text = {}, .path = second_.path_of(i)};
  prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
  prompt.ids.insert(prompt.ids.end(), suffix.begin(), suffix.end());
  return prompt;
}

tl::expected<void, ApiError> RerankReader::add_pair(size_t i) {
  const Result<PromptText> prompt = prompt_of(i);
  if (!prompt) return tl::unexpected(to_api_error(prompt.error()));
  if (auto fits = check_length(*prompt, std::nullopt, scope_.limits); !fits) return fits;
  const Result<void> added = add_prompts(*prompt);
  if (!added) return tl::unexpected(to_api_error(added.error()));
  return {};
}

// One for each answer.
Result<void> RerankReader::add_prompts(const PromptText& prompt) {
  for (const int32_t answer : {scope_.model.reranker->yes, scope_.model.reranker->no}) {
    engine::RequestParams params = params_;
    params.client_id += fmt::format("-{}", parsed_.prompts.size());
    params.prompt = prompt.ids;
    params.constraints.emplace_back(constraint::AllowedTokens{{answer}});
    RUDDER_TRY(TapsLease lease,
               taps_.apply(prompt, *scope_.model.tokenizer, false, std::nullopt, &params));
    RUDDER_TRY(engine::Request request, engine::validate_request(std::move(params), scope_.limits));
    Prompt& added =
        parsed_.prompts.emplace_back(Prompt{std::move(request), std::move(lease), {}, {}, {}, {}});
    added.waits_for_last = answer == scope_.model.reranker->no;
  }
  return {};
}

tl::expected<GenerationRequest, ApiError> RerankReader::parse(Api api) {
  auto model = read_model(reader_, scope_.model);
  if (!model) return tl::unexpected(model.error());
  AnswerOptions& answer = parsed_.answer;
  answer.api = api;
  answer.model = std::move(model->name);
  params_.adapter = std::move(model->adapter);
  std::string request_id = scope_.request_id;
  read_request_id(reader_, scope_.is_named, &request_id);
  answer.id = (api == Api::kScore ? "score-" : "rerank-") + request_id;
  answer.created = static_cast<int64_t>(std::time(nullptr));
  answer.logprobs = true;
  read_fields();
  if (api == Api::kScore) {
    read_score();
  } else {
    read_rerank();
  }
  Result<TapFields> taps = TapFields::read_around(reader_, body_, scope_.taps, nullptr);
  if (!taps) return tl::unexpected(to_api_error(taps.error()));
  taps_ = std::move(*taps);
  if (reader_.ok() && taps_.needs_roles()) {
    reader_.error(ErrorCode::kUnsupported, "by roles is not supported: a pair has none",
                  "steering");
  }
  for (const TextField* field : {&first_, &second_}) {
    if (reader_.ok() && field->is_missing) {
      reader_.error(ErrorCode::kInvalidArgument, "is required", field->name);
    }
  }
  if (!reader_.ok()) return tl::unexpected(to_api_error(reader_.error()));
  // Behind what is wrong in the body, which is wrong for every model.
  if (!scope_.model.reranker) {
    return tl::unexpected(to_api_error(
        {ErrorCode::kUnsupported,
         fmt::format("the model '{}' is no reranker that is known here (Qwen3-Reranker is; "
                     "--reranker qwen3 says that a model is one)",
                     answer.model),
         "model"}));
  }
  for (size_t i = 0; i < second_.texts.size(); ++i) {
    if (auto added = add_pair(i); !added) return tl::unexpected(std::move(added.error()));
  }
  answer.num_choices = static_cast<int32_t>(parsed_.prompts.size());
  parsed_.ignored_fields = reader_.ignored();
  return std::move(parsed_);
}

tl::expected<GenerationRequest, ApiError> parse_pairs(Api api, std::string_view body,
                                                      const GenerationScope& scope) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  return RerankReader(*object, scope).parse(api);
}

}  // namespace

tl::expected<GenerationRequest, ApiError> parse_rerank(std::string_view body,
                                                       const GenerationScope& scope) {
  return parse_pairs(Api::kRerank, body, scope);
}

tl::expected<GenerationRequest, ApiError> parse_score(std::string_view body,
                                                      const GenerationScope& scope) {
  return parse_pairs(Api::kScore, body, scope);
}

}  // namespace rudder::server
