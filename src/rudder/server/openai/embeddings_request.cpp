#include "rudder/server/openai/embeddings_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <ctime>
#include <utility>

#include "rudder/server/request/context_length.h"
#include "rudder/server/request/field_ranges.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/prompt_truncation.h"
#include "rudder/server/request/sampling_fields.h"
#include "rudder/server/request/text_prompts.h"
#include "rudder/server/request/tool_fields.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr size_t kMaxChoiceBytes = 256;  // of a field that is one of a few words

using steer::capture::CaptureSpec;

// A field that accepts only the values of `allowed`, of which the first is the default.
void check_only(FieldReader& reader, std::string_view name,
                std::array<std::string_view, 2> allowed) {
  std::string value(allowed[0]);
  reader.string(name, kMaxChoiceBytes, &value);
  if (std::ranges::find(allowed, value) != allowed.end()) return;
  reader.error(ErrorCode::kUnsupported, fmt::format("is not supported other than '{}'", allowed[0]),
               name);
}

void read_form(FieldReader& reader, int32_t hidden, const EmbeddingDefaults& defaults,
               EmbeddingOptions* options) {
  std::string encoding = "float";
  reader.string("encoding_format", kMaxChoiceBytes, &encoding);
  if (encoding != "float" && encoding != "base64") {
    reader.error(ErrorCode::kInvalidArgument, "must be 'float' or 'base64'", "encoding_format");
  }
  options->as_base64 = encoding == "base64";
  options->normalised = defaults.normalised;
  options->dimensions = std::min(hidden, defaults.max_dimensions);
  // Who asks for a length or a number of dimensions gets them of the row that is left.
  options->is_cut_last = options->dimensions < hidden;
  for (const char* name : {"dimensions", "use_activation", "normalize"}) {
    if (reader.raw(name) != nullptr) options->is_cut_last = false;
  }
  reader.int32("dimensions", 1, hidden, &options->dimensions);
  reader.boolean("use_activation", &options->normalised);
  reader.boolean("normalize", &options->normalised);
  check_only(reader, "embed_dtype", {"float32", "float32"});
  check_only(reader, "endianness", {"little", "native"});
  std::string user;
  reader.string("user", size_limit("user"), &user);
  reader.refuse("mm_processor_kwargs", "is not supported");
  reader.refuse("stream", "is not supported");
}

// The mean over the positions that count; of the last token that is its own row.
Result<std::shared_ptr<const CaptureSpec>> read_pooling(FieldReader& reader,
                                                        const engine::RequestLimits& limits,
                                                        steer::capture::Dispatcher* captures,
                                                        std::string_view otherwise) {
  std::string pooling(otherwise);
  reader.string("pooling", kMaxChoiceBytes, &pooling);
  if (pooling != "last" && pooling != "mean") {
    reader.error(ErrorCode::kInvalidArgument, "must be 'last' or 'mean'", "pooling");
  }
  RUDDER_TRY_VOID(reader.result());
  if (captures == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "embeddings need a server that was started with --embedding-memory-mb above 0",
                "input");
  }
  const json::value field = {
      {"response",
       {{"sites", {{"final_norm", json::array{limits.geometry.num_layers - 1}}}},
        {"positions", pooling == "last" ? "last_prompt" : "all_prompt"},
        {"point", "post"},
        {"values", json::array{"means"}}}}};
  return captures->spec(&field);
}

Result<std::vector<PromptText>> read_inputs(FieldReader& reader, const GenerationScope& scope,
                                            size_t max_tokens, bool with_roles) {
  if (reader.raw("messages") != nullptr) {
    RUDDER_TRY(PromptText prompt,
               render_chat(reader, scope.model, ToolFields(),
                           {.max_tokens = max_tokens, .with_roles = with_roles}));
    std::vector<PromptText> prompts;
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  return read_text_prompts(reader, *scope.model.tokenizer,
                           {.field = "input",
                            .max_prompts = scope.max_prompts,
                            .max_tokens = max_tokens,
                            .prefix = scope.model.embedding.prompt});
}

Result<Prompt> embedding_prompt(PromptText prompt, const engine::RequestParams& like,
                                const TapFields& taps, bool has_roles,
                                const GenerationScope& scope) {
  if (prompt.ids.empty()) {
    return fail(ErrorCode::kInvalidArgument, prompt.path + " has no tokens", prompt.path);
  }
  engine::RequestParams params = like;
  params.prompt = std::move(prompt.ids);
  RUDDER_TRY(TapsLease lease,
             taps.apply(prompt, *scope.model.tokenizer, has_roles, std::nullopt, &params));
  Result<engine::Request> request = engine::validate_request(std::move(params), scope.limits);
  if (!request) return tl::unexpected(at_prompt(request.error(), prompt.path));
  return Prompt{std::move(*request), std::move(lease), {}, {}, {}, {}};
}

}  // namespace

tl::expected<GenerationRequest, ApiError> parse_embeddings(std::string_view body,
                                                           const GenerationScope& scope,
                                                           steer::capture::Dispatcher* captures,
                                                           std::string_view pooling) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  FieldReader reader(*object, "");
  reader.show_limits(&scope.limits);
  auto model = read_model(reader, scope.model);
  if (!model) return tl::unexpected(model.error());
  GenerationRequest parsed;
  AnswerOptions& answer = parsed.answer;
  answer.api = Api::kEmbeddings;
  answer.model = std::move(model->name);
  std::string request_id = scope.request_id;
  read_request_id(reader, scope.is_named, &request_id);
  answer.id = "embd-" + request_id;
  answer.created = static_cast<int64_t>(std::time(nullptr));
  read_form(reader, scope.limits.geometry.hidden, scope.model.embedding, &answer.embedding);

  engine::RequestParams params;
  params.client_id = answer.id;
  params.adapter = std::move(model->adapter);
  params.max_tokens = 1;  // sampled at the prompt's end, and dropped
  params.counts_output = false;
  params.sampling.temperature = 0;
  read_integer(reader, "priority", &params.priority);
  params.tenant = scope.tenant;
  params.cache_salt = scope.keys.cache_salt(scope.tenant, read_cache_salt(reader));
  engine::RequestLimits limits = scope.limits;
  limits.max_seq_len = std::min(limits.max_seq_len - 1, scope.model.embedding.max_tokens) + 1;
  const auto truncation = read_truncation(reader, limits.max_seq_len - 1);
  if (!truncation) return tl::unexpected(to_api_error(truncation.error()));
  auto spec = read_pooling(reader, scope.limits, captures, pooling);
  if (!spec) return tl::unexpected(to_api_error(spec.error()));
  const auto taps = TapFields::read_around(reader, *object, scope.taps, std::move(*spec));
  if (!taps) return tl::unexpected(to_api_error(taps.error()));
  const bool has_roles = taps->needs_roles() && reader.raw("messages") != nullptr;

  auto prompts =
      read_inputs(reader, scope, truncation->max_tokens(limits.max_seq_len - 1), has_roles);
  if (!prompts) return tl::unexpected(to_api_error(prompts.error()));
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  answer.num_choices = static_cast<int32_t>(prompts->size());
  for (PromptText& prompt : *prompts) {
    truncate(*scope.model.tokenizer, *truncation, prompt);
    if (auto fits = check_length(prompt, std::nullopt, limits); !fits) {
      return tl::unexpected(std::move(fits.error()));
    }
    Result<Prompt> made = embedding_prompt(std::move(prompt), params, *taps, has_roles, scope);
    if (!made) return tl::unexpected(to_api_error(made.error()));
    parsed.prompts.push_back(std::move(*made));
  }
  parsed.ignored_fields = reader.ignored();
  return parsed;
}

}  // namespace rudder::server
