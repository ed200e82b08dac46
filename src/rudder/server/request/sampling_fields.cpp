#include "rudder/server/request/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <utility>

#include "rudder/server/request/field_ranges.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

void read_logit_bias(FieldReader& reader, std::vector<std::pair<int32_t, float>>* bias) {
  const RealField& range = real_field("logit_bias.*");
  const json::object* object = reader.object("logit_bias");
  if (object == nullptr) return;
  if (object->size() > size_limit("logit_bias")) {
    reader.error(ErrorCode::kInvalidArgument,
                 fmt::format("has more than {} items", size_limit("logit_bias")), "logit_bias");
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
    const double number = value.is_number() ? value.to_number<double>() : range.max + 1;
    if (!range.contains(number)) {
      return reader.error(ErrorCode::kInvalidArgument,
                          fmt::format("must be a number between {} and {}", range.min, range.max),
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

void read_repetition(FieldReader& reader, engine::RepetitionLimits* out) {
  const json::object* object = reader.object("repetition_detection");
  if (object == nullptr) return;
  FieldReader fields(*object, "repetition_detection");
  read_integer(fields, "max_pattern_size", &out->max_pattern);
  read_integer(fields, "min_pattern_size", &out->min_pattern);
  read_integer(fields, "min_count", &out->min_count);
  if (out->min_pattern > out->max_pattern) {
    fields.error(ErrorCode::kInvalidArgument, "must be at most max_pattern_size",
                 "min_pattern_size");
  } else if (out->max_pattern > 0 && out->min_count < 2) {
    fields.error(ErrorCode::kInvalidArgument, "must be at least 2 where a pattern is looked for",
                 "min_count");
  }
  reader.adopt(fields);
}

// What routers and clients of other servers send with each request at its default. The default is
// what is done here; any other value is not supported.
void read_routers_fields(FieldReader& reader) {
  for (const char* name :
       {"no_stop_trim", "return_hidden_states", "return_cached_tokens_details", "return_meta_info",
        "stop_regex", "lora_path", "session_params", "custom_logit_processor", "custom_params",
        "bootstrap_host", "bootstrap_port", "bootstrap_room", "input_ids"}) {
    reader.refuse(name, "is not supported");
  }
  bool streams_thoughts = true;
  reader.boolean("stream_reasoning", &streams_thoughts);
  if (!streams_thoughts) {
    reader.error(ErrorCode::kUnsupported, "is not supported other than true", "stream_reasoning");
  }
}

// Of completions: fields of chat at the values that change nothing there.
void read_chat_defaults(FieldReader& reader) {
  for (const char* name : {"include_reasoning", "separate_reasoning", "add_generation_prompt"}) {
    bool flag = true;
    reader.boolean(name, &flag);
  }
  reader.refuse("continue_final_message", "is not supported for a prompt of text");
}

// Known, without effect on what is generated here, and of the right type even
// so.
void pass_over_known_fields(FieldReader& reader) {
  std::string text;
  bool flag = false;
  float number = 0;
  for (const char* name : {"user", "service_tier", "safety_identifier", "prompt_cache_key",
                           "prompt_cache_retention"}) {
    reader.string(name, size_limit("user"), &text);
  }
  for (const char* name : {"store", "spaces_between_special_tokens"}) reader.boolean(name, &flag);
  reader.object("metadata");
  const boost::json::object* others = reader.object("vllm_xargs");  // for plugins of others
  if (others != nullptr && !others->empty()) reader.ignore("vllm_xargs");
  read_real(reader, "length_penalty", &number);
}

// The largest value that is taken here, and the largest that this server takes. What the context
// narrows is judged with the prompt's length, in words of its own.
std::pair<int64_t, int64_t> upper_bounds(const FieldReader& reader, const IntegerField& field) {
  if (reader.limits() == nullptr) return {field.max, field.max};
  const int64_t told = max_of(field, *reader.limits());
  return {field.limit == RangeLimit::kContext ? field.max : told, told};
}

}  // namespace

void read_integer(FieldReader& reader, std::string_view name, std::optional<int64_t>* out,
                  std::string_view range) {
  const IntegerField& field = integer_field(range.empty() ? reader.path_of(name) : range);
  const auto [max, told] = upper_bounds(reader, field);
  reader.integer(name, field.min, max, out, told);
}

void read_integer(FieldReader& reader, std::string_view name, int32_t* out) {
  const IntegerField& field = integer_field(reader.path_of(name));
  const auto [max, told] = upper_bounds(reader, field);
  reader.int32(name, field.min, max, out, told);
}

void read_real(FieldReader& reader, std::string_view name, float* out) {
  const RealField& field = real_field(reader.path_of(name));
  const json::value* value = reader.raw(name);
  if (value == nullptr) return;
  float number = 0;
  reader.real(name, &number);
  if (!reader.ok()) return;
  if (!field.contains(number)) {
    return reader.error(
        ErrorCode::kInvalidArgument,
        fmt::format("must be {} {} and at most {}", field.open_min ? "greater than" : "at least",
                    field.min, field.max),
        name);
  }
  *out = number;
}

engine::RequestParams read_sampling_fields(FieldReader& reader, const SamplingDefaults& defaults) {
  engine::RequestParams params;
  step::SamplingParams& sampling = params.sampling;
  sampling.temperature = static_cast<float>(defaults.temperature.value_or(1.0));
  sampling.top_p = static_cast<float>(defaults.top_p.value_or(1.0));
  sampling.min_p = static_cast<float>(defaults.min_p.value_or(0.0));
  sampling.top_k = static_cast<int32_t>(
      std::clamp(defaults.top_k.value_or(0), int64_t{0}, integer_field("top_k").max));
  sampling.repetition_penalty = static_cast<float>(defaults.repetition_penalty.value_or(1.0));

  read_real(reader, "temperature", &sampling.temperature);
  read_real(reader, "top_p", &sampling.top_p);
  read_real(reader, "min_p", &sampling.min_p);
  read_integer(reader, "top_k", &sampling.top_k);
  if (sampling.top_k == -1) sampling.top_k = 0;  // both spellings of "off"
  read_real(reader, "repetition_penalty", &sampling.repetition_penalty);
  read_real(reader, "presence_penalty", &sampling.presence_penalty);
  read_real(reader, "frequency_penalty", &sampling.frequency_penalty);
  read_integer(reader, "min_tokens", &sampling.min_tokens);
  reader.token_ids("stop_token_ids", size_limit("stop_token_ids"), &sampling.stop_ids);
  read_logit_bias(reader, &sampling.logit_bias);

  std::optional<int64_t> seed;
  read_integer(reader, "seed", &seed);
  if (seed) params.seed = static_cast<uint64_t>(*seed);
  reader.boolean("ignore_eos", &params.ignore_eos);
  reader.boolean("disable_spec_decode", &params.disable_spec_decode);
  if (defaults.max_tokens && *defaults.max_tokens > 0) {
    params.max_tokens =
        static_cast<int32_t>(std::min(*defaults.max_tokens, integer_field("max_tokens").max));
  }
  reader.boolean("include_stop_str_in_output", &params.include_stop);
  reader.boolean("skip_special_tokens", &params.skip_special_tokens);
  read_repetition(reader, &params.repetition);
  read_integer(reader, "priority", &params.priority);
  read_real(reader, "timeout", &params.timeout);
  params.cache_salt = read_cache_salt(reader);
  return params;
}

std::string read_cache_salt(FieldReader& reader) {
  std::optional<std::string> salt;
  reader.string("cache_salt", size_limit("cache_salt"), &salt);
  if (salt && salt->empty()) {
    reader.error(ErrorCode::kInvalidArgument, "must be a string that is not empty", "cache_salt");
  }
  return salt.value_or("");
}

void read_stop(FieldReader& reader, std::string_view name, std::vector<std::string>* stop) {
  const json::value* value = reader.raw(name);
  if (value == nullptr) return;
  if (value->is_string()) {
    if (!value->get_string().empty()) {
      stop->emplace_back(value->get_string());
    } else {
      reader.error(ErrorCode::kInvalidArgument, "is an empty string", name);
    }
    return;
  }
  if (!value->is_array()) {
    reader.error(
        ErrorCode::kInvalidArgument,
        fmt::format("must be a string or a list of strings, not {}", json_type_name(*value)), name);
    return;
  }
  if (value->get_array().size() > size_limit("stop")) {
    reader.error(ErrorCode::kInvalidArgument,
                 fmt::format("has more than {} items", size_limit("stop")), name);
    return;
  }
  for (const json::value& item : value->get_array()) {
    const std::string at = fmt::format("{}[{}]", name, stop->size());
    if (!item.is_string() || item.get_string().empty()) {
      return reader.error(ErrorCode::kInvalidArgument, "must be a string that is not empty", at);
    }
    if (item.get_string().size() > size_limit("stop[]")) {
      return reader.error(ErrorCode::kInvalidArgument,
                          fmt::format("has more than {} bytes", size_limit("stop[]")), at);
    }
    stop->emplace_back(item.get_string());
  }
}

void read_max_tokens(FieldReader& reader, bool chat, std::optional<int32_t>* out) {
  std::optional<int64_t> chosen;
  read_integer(reader, "max_tokens", &chosen, chat ? "max_completion_tokens" : "max_tokens");
  read_integer(reader, "max_completion_tokens", &chosen);
  if (chosen) *out = static_cast<int32_t>(*chosen);
}

void read_stream_fields(FieldReader& reader, AnswerOptions* answer) {
  reader.boolean("stream", &answer->stream);
  read_integer(reader, "sse_ping_interval", &answer->ping_seconds);
}

void read_choice_fields(FieldReader& reader, AnswerOptions* answer, engine::RequestParams* params) {
  read_integer(reader, "n", &params->n);
  reader.boolean("return_token_ids", &answer->return_token_ids);
  reader.boolean("return_steered_tokens", &answer->return_steered_tokens);
  reader.boolean("return_tokens_as_token_ids", &answer->tokens_as_ids);
  const json::object* object = reader.object("stream_options");
  if (object == nullptr) return;
  if (!answer->stream) {
    reader.error(ErrorCode::kInvalidArgument, "is only allowed when stream is true",
                 "stream_options");
  }
  FieldReader options(*object, "stream_options");
  options.boolean("continuous_usage_stats", &answer->continuous_usage);
  // Who asks for usage in each event wants it at the end too, unless told otherwise: then in none.
  answer->include_usage = answer->continuous_usage;
  options.boolean("include_usage", &answer->include_usage);
  answer->continuous_usage = answer->continuous_usage && answer->include_usage;
  reader.adopt(options);
}

void refuse_unsupported_fields(FieldReader& reader) {
  for (const char* name : {"prompt_embeds", "logits_processors", "kv_transfer_params",
                           "mm_processor_kwargs", "media_io_kwargs"}) {
    reader.refuse(name, "is not supported yet");
  }
  reader.refuse("use_beam_search", "is not supported");
  reader.refuse("logprob_token_ids", "is not supported; logprobs tells the likeliest tokens");
  read_routers_fields(reader);
  pass_over_known_fields(reader);
}

void refuse_fields_of_chat(FieldReader& reader) {
  reader.refuse("audio", "is not supported");
  reader.refuse("web_search_options", "is not supported");
  read_modalities(reader);
}

void refuse_fields_of_completions(FieldReader& reader, int32_t n) {
  reader.refuse("suffix", "is not supported");
  read_chat_defaults(reader);
  int32_t best_of = n;
  read_integer(reader, "best_of", &best_of);
  if (best_of != n) {
    reader.error(ErrorCode::kUnsupported, "is not supported other than equal to n", "best_of");
  }
}

}  // namespace rudder::server
