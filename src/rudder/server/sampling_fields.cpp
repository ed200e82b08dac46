#include "rudder/server/sampling_fields.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>
#include <limits>

namespace rudder::server {

namespace json = boost::json;

namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kInt32Min = std::numeric_limits<int32_t>::min();
constexpr size_t kMaxListItems = 4096;  // of any list here; validation has tighter limits
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxSaltBytes = 256;

void read_stop(FieldReader& reader, std::vector<std::string>* stop) {
  const json::value* value = reader.raw("stop");
  if (value == nullptr) return;
  if (value->is_string()) {
    if (!value->get_string().empty()) {
      stop->emplace_back(value->get_string());
    } else {
      reader.error(ErrorCode::kInvalidArgument, "is an empty string", "stop");
    }
    return;
  }
  if (!value->is_array()) {
    reader.error(
        ErrorCode::kInvalidArgument,
        fmt::format("must be a string or a list of strings, not {}", json_type_name(*value)),
        "stop");
    return;
  }
  if (value->get_array().size() > kMaxListItems) {
    reader.error(ErrorCode::kInvalidArgument, fmt::format("has more than {} items", kMaxListItems),
                 "stop");
    return;
  }
  for (const json::value& item : value->get_array()) {
    const std::string name = fmt::format("stop[{}]", stop->size());
    if (!item.is_string() || item.get_string().empty()) {
      return reader.error(ErrorCode::kInvalidArgument, "must be a string that is not empty", name);
    }
    if (item.get_string().size() > kMaxStopBytes) {
      return reader.error(ErrorCode::kInvalidArgument,
                          fmt::format("has more than {} bytes", kMaxStopBytes), name);
    }
    stop->emplace_back(item.get_string());
  }
}

void read_logit_bias(FieldReader& reader, std::vector<std::pair<int32_t, float>>* bias) {
  constexpr double kMaxBias = 100;
  const json::object* object = reader.object("logit_bias");
  if (object == nullptr) return;
  if (object->size() > kMaxListItems) {
    reader.error(ErrorCode::kInvalidArgument, fmt::format("has more than {} items", kMaxListItems),
                 "logit_bias");
    return;
  }
  for (const auto& field : *object) {
    const std::string_view key(field.key().data(), field.key().size());
    int32_t id = 0;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc() || end != key.data() + key.size() || id < 0) {
      return reader.error(ErrorCode::kInvalidArgument, "each key must be a token id", "logit_bias");
    }
    const json::value& value = field.value();
    const double number = value.is_number() ? value.to_number<double>() : kMaxBias + 1;
    if (!(number >= -kMaxBias && number <= kMaxBias)) {
      return reader.error(ErrorCode::kInvalidArgument, "must be a number between -100 and 100",
                          fmt::format("logit_bias.{}", id));
    }
    bias->emplace_back(id, static_cast<float>(number));
  }
}

void read_modalities(FieldReader& reader) {
  const json::array* modalities = reader.array("modalities");
  if (modalities == nullptr) return;
  for (const json::value& item : *modalities) {
    if (!item.is_string() || item.get_string() != "text") {
      return reader.error(ErrorCode::kUnsupported, "is not supported other than ['text']",
                          "modalities");
    }
  }
}

void read_max_tokens(FieldReader& reader, const SamplingDefaults& defaults,
                     std::optional<int32_t>* out) {
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> max_completion_tokens;
  reader.integer("max_tokens", 1, kInt32Max, &max_tokens);
  reader.integer("max_completion_tokens", 1, kInt32Max, &max_completion_tokens);
  const std::optional<int64_t> chosen = max_completion_tokens ? max_completion_tokens : max_tokens;
  if (chosen) {
    *out = static_cast<int32_t>(*chosen);
  } else if (defaults.max_tokens && *defaults.max_tokens > 0) {
    *out = static_cast<int32_t>(std::min(*defaults.max_tokens, kInt32Max));
  }
}

}  // namespace

engine::RequestDraft read_sampling_fields(FieldReader& reader, const SamplingDefaults& defaults) {
  engine::RequestDraft draft;
  step::SamplingParams& sampling = draft.sampling;
  sampling.temperature = static_cast<float>(defaults.temperature.value_or(1.0));
  sampling.top_p = static_cast<float>(defaults.top_p.value_or(1.0));
  sampling.min_p = static_cast<float>(defaults.min_p.value_or(0.0));
  sampling.top_k =
      static_cast<int32_t>(std::clamp(defaults.top_k.value_or(0), int64_t{0}, kInt32Max));
  sampling.repetition_penalty = static_cast<float>(defaults.repetition_penalty.value_or(1.0));

  reader.real("temperature", &sampling.temperature);
  reader.real("top_p", &sampling.top_p);
  reader.real("min_p", &sampling.min_p);
  reader.int32("top_k", -1, kInt32Max, &sampling.top_k);
  if (sampling.top_k == -1) sampling.top_k = 0;  // both spellings of "off"
  reader.real("repetition_penalty", &sampling.repetition_penalty);
  reader.real("presence_penalty", &sampling.presence_penalty);
  reader.real("frequency_penalty", &sampling.frequency_penalty);
  reader.int32("min_tokens", 0, kInt32Max, &sampling.min_tokens);
  reader.token_ids("stop_token_ids", kMaxListItems, &sampling.stop_ids);
  read_logit_bias(reader, &sampling.logit_bias);

  std::optional<int64_t> seed;
  reader.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                 &seed);
  if (seed) draft.seed = static_cast<uint64_t>(*seed);
  reader.boolean("ignore_eos", &draft.ignore_eos);
  read_max_tokens(reader, defaults, &draft.max_tokens);
  read_stop(reader, &draft.stop);
  reader.boolean("include_stop_str_in_output", &draft.include_stop);
  reader.boolean("skip_special_tokens", &draft.skip_special_tokens);
  reader.int32("priority", kInt32Min, kInt32Max, &draft.priority);
  reader.int32("n", 1, kInt32Max, &draft.n);

  std::optional<std::string> salt;
  reader.string("cache_salt", kMaxSaltBytes, &salt);
  if (salt && salt->empty()) {
    reader.error(ErrorCode::kInvalidArgument, "must be a string that is not empty", "cache_salt");
  }
  draft.cache_salt = salt.value_or("");
  return draft;
}

void read_answer_fields(FieldReader& reader, AnswerOptions* answer) {
  reader.boolean("stream", &answer->stream);
  reader.boolean("return_token_ids", &answer->return_token_ids);
  if (const json::object* object = reader.object("stream_options")) {
    if (!answer->stream) {
      reader.error(ErrorCode::kInvalidArgument, "is only allowed when stream is true",
                   "stream_options");
    }
    FieldReader options(*object, "stream_options");
    options.boolean("include_usage", &answer->include_usage);
    options.boolean("continuous_usage_stats", &answer->continuous_usage);
    if (!options.ok()) reader.adopt(options.error());
  }
}

void refuse_unsupported_fields(FieldReader& reader, Api api, int32_t n) {
  if (const json::value* format = reader.raw("response_format")) {
    const json::object* object = format->if_object();
    const json::value* type = object != nullptr ? object->if_contains("type") : nullptr;
    if (type == nullptr || !type->is_string()) {
      reader.error(ErrorCode::kInvalidArgument, "must be an object with a type", "response_format");
    } else if (type->get_string() != "text") {
      reader.error(ErrorCode::kUnsupported,
                   fmt::format("'{}' is not supported yet: only 'text' is",
                               std::string_view(type->get_string()).substr(0, 64)),
                   "response_format.type");
    }
  }
  for (const char* name : {"structured_outputs", "guided_json", "guided_regex", "guided_choice",
                           "guided_grammar", "guided_decoding_backend", "structural_tag"}) {
    reader.refuse(name, "is not supported yet: output cannot be constrained");
  }
  for (const char* name : {"prompt_logprobs", "prompt_embeds", "bad_words", "allowed_token_ids",
                           "logits_processors", "repetition_detection", "truncate_prompt_tokens",
                           "thinking_token_budget", "return_tokens_as_token_ids", "length_penalty",
                           "kv_transfer_params", "mm_processor_kwargs"}) {
    reader.refuse(name, "is not supported yet");
  }
  reader.refuse("use_beam_search", "is not supported");
  if (api == Api::kCompletions) {
    reader.refuse("suffix", "is not supported");
    int32_t best_of = n;
    reader.int32("best_of", 1, kInt32Max, &best_of);
    if (best_of != n) {
      reader.error(ErrorCode::kUnsupported, "is not supported other than equal to n", "best_of");
    }
  } else {
    reader.refuse("audio", "is not supported");
    reader.refuse("web_search_options", "is not supported");
    reader.refuse("thinking", "is not supported; use chat_template_kwargs");
    reader.refuse("reasoning_effort", "is not supported yet; use chat_template_kwargs");
    read_modalities(reader);
  }
  // Known, and without effect on what is generated here.
  for (const char* name :
       {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "request_id", "spaces_between_special_tokens", "vllm_xargs"}) {
    reader.skip(name);
  }
}

}  // namespace rudder::server
