#include "generation_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/request/field_ranges.h"
#include "rudder/weights/mapped_file.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

Result<json::object> read_object(const weights::Checkpoint& checkpoint, std::string_view file) {
  if (!checkpoint.has_file(file)) return json::object();
  RUDDER_TRY(const std::string text, checkpoint.read_text(file));
  RUDDER_TRY(json::value value, parse_json(text, file));
  if (!value.is_object()) {
    return fail(ErrorCode::kCorruptFile, "is not a JSON object", std::string(file));
  }
  return std::move(value.get_object());
}

Error wrong_type(std::string_view file, std::string_view key, std::string_view wanted) {
  return Error{ErrorCode::kCorruptFile, fmt::format("'{}' is not {}", key, wanted),
               fmt::format("{}:{}", file, key)};
}

// A number in the range that requests have for the key of the same name.
Result<std::optional<double>> read_number(const json::object& object, std::string_view file,
                                          std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return std::optional<double>();
  if (!value->is_number()) return tl::unexpected<Error>(wrong_type(file, key, "a number"));
  const auto number = value->to_number<double>();
  const server::RealField& field = server::real_field(key);
  if (field.contains(number)) return std::optional<double>(number);
  return fail(ErrorCode::kCorruptFile,
              fmt::format("'{}' is {}; requests take {} {} to {}", key, number,
                          field.open_min ? "more than" : "from", field.min, field.max),
              fmt::format("{}:{}", file, key));
}

Result<std::optional<int64_t>> read_integer(const json::object& object, std::string_view file,
                                            std::string_view key, std::string_view path) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return std::optional<int64_t>();
  if (!value->is_int64()) return tl::unexpected<Error>(wrong_type(file, key, "an integer"));
  const int64_t number = value->get_int64();
  const server::IntegerField& field = server::integer_field(path);
  if (number >= field.min && number <= field.max) return std::optional<int64_t>(number);
  return fail(
      ErrorCode::kCorruptFile,
      fmt::format("'{}' is {}; requests take from {} to {}", key, number, field.min, field.max),
      fmt::format("{}:{}", file, key));
}

Result<server::SamplingDefaults> read_defaults(const json::object& object, std::string_view file) {
  server::SamplingDefaults out;
  RUDDER_TRY(out.temperature, read_number(object, file, "temperature"));
  RUDDER_TRY(out.top_p, read_number(object, file, "top_p"));
  RUDDER_TRY(out.min_p, read_number(object, file, "min_p"));
  RUDDER_TRY(out.top_k, read_integer(object, file, "top_k", "top_k"));
  RUDDER_TRY(out.repetition_penalty, read_number(object, file, "repetition_penalty"));
  RUDDER_TRY(out.max_tokens, read_integer(object, file, "max_new_tokens", "max_completion_tokens"));
  return out;
}

// The object that defaults are read from, without the overrides.
Result<json::object> read_source(const json::object& model_file, const std::string& from) {
  if (from == "vllm") return json::object();
  if (from == "auto") return model_file;
  constexpr size_t kMaxBytes = size_t{1} << 20;
  const std::string path = fmt::format("{}/generation_config.json", from);
  auto text = weights::read_text_file(path, kMaxBytes);
  if (!text) {
    return fail(text.error().code,
                fmt::format("{}: it is 'auto', 'vllm' or a folder with a generation_config.json",
                            text.error().message),
                "generation-config");
  }
  RUDDER_TRY(json::value value, parse_json(*text, path));
  if (!value.is_object()) return fail(ErrorCode::kCorruptFile, "is not a JSON object", path);
  return std::move(value.get_object());
}

constexpr std::string_view kOverrides = "override-generation-config";
constexpr std::string_view kKeys[] = {"temperature",        "top_p",         "min_p", "top_k",
                                      "repetition_penalty", "max_new_tokens"};

Result<json::object> read_overrides(const std::string& text) {
  if (text.empty()) return json::object();
  const auto value = parse_json(text, kOverrides);
  if (!value || !value->is_object()) {
    return fail(ErrorCode::kInvalidArgument,
                value ? "must be a JSON object" : value.error().message, std::string(kOverrides));
  }
  for (const auto& [key, ignored] : value->get_object()) {
    if (std::ranges::find(kKeys, std::string_view(key)) != std::end(kKeys)) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("sets no default of requests; {} do", fmt::join(kKeys, ", ")),
                fmt::format("{}.{}", kOverrides, std::string_view(key)));
  }
  return value->get_object();
}

// What would change the tokens of every answer and is not done here, with the number that says
// nothing. Null, false, "" and empty lists say nothing in all of them. Keys that transformers has
// besides set no tokens: do_sample, whose place a request's temperature has; max_length, whose
// place the context has; caches, outputs, speculation, what only beams read.
struct UnservedKey {
  std::string_view name;
  double neutral = 0;
};
constexpr UnservedKey kUnserved[] = {{"min_length"},
                                     {"min_new_tokens"},
                                     {"stop_strings"},
                                     {"num_beams", 1},
                                     {"penalty_alpha"},
                                     {"dola_layers"},
                                     {"top_h"},
                                     {"typical_p", 1},
                                     {"epsilon_cutoff"},
                                     {"eta_cutoff"},
                                     {"encoder_repetition_penalty", 1},
                                     {"no_repeat_ngram_size"},
                                     {"encoder_no_repeat_ngram_size"},
                                     {"bad_words_ids"},
                                     {"force_words_ids"},
                                     {"constraints"},
                                     {"forced_bos_token_id"},
                                     {"forced_eos_token_id"},
                                     {"exponential_decay_length_penalty"},
                                     {"suppress_tokens"},
                                     {"begin_suppress_tokens"},
                                     {"sequence_bias"},
                                     {"token_healing"},
                                     {"guidance_scale", 1},
                                     {"watermarking_config"},
                                     {"num_return_sequences", 1}};

bool says_nothing(const json::value& value, const UnservedKey& key) {
  if (value.is_number()) {
    // An id of 0 is an id.
    return value.to_number<double>() == key.neutral && !key.name.starts_with("forced_");
  }
  return value.is_null() || value == json::value(false) || value == json::value("") ||
         (value.is_array() && value.get_array().empty()) ||
         (value.is_object() && value.get_object().empty());
}

Result<void> check_unserved(const json::object& object, std::string_view file) {
  for (const UnservedKey& key : kUnserved) {
    const json::value* value = object.if_contains(key.name);
    if (value == nullptr || says_nothing(*value, key)) continue;
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} is not served; --generation-config vllm passes over the file",
                            json::serialize(*value).substr(0, 100)),
                fmt::format("{}:{}", file, key.name));
  }
  return {};
}

// A key of config.json, or of its text's config where the former does not have it.
const json::value* find_in_model(const json::object& model, std::string_view key) {
  const json::value* value = model.if_contains(key);
  const json::value* inner = model.if_contains("text_config");
  if ((value != nullptr && !value->is_null()) || inner == nullptr || !inner->is_object()) {
    return value;
  }
  return inner->get_object().if_contains(key);
}

// Ids that there are: of the model's table, or of the tokenizer where it has more. Nothing where
// config.json does not say.
std::optional<int64_t> vocabulary_of(const json::object& model, const text::Tokenizer& tokenizer) {
  const json::value* size = find_in_model(model, "vocab_size");
  if (size == nullptr || !size->is_int64()) return std::nullopt;
  return std::max<int64_t>(size->get_int64(), tokenizer.vocab_size());
}

constexpr std::string_view kEosKey = "eos_token_id";

// An id, a list of ids, or null.
Result<void> collect_eos(const json::value* value, std::string_view file,
                         std::optional<int64_t> vocabulary, std::vector<int32_t>* ids) {
  if (value == nullptr || value->is_null()) return {};
  const json::array one = {*value};
  const json::array& list = value->is_array() ? value->get_array() : one;
  for (const json::value& id : list) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > INT32_MAX) {
      return tl::unexpected<Error>(wrong_type(file, kEosKey, "a token id or a list of them"));
    }
    if (vocabulary && id.get_int64() >= *vocabulary) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("'{}' has {}, which is none of {} tokens: no answer would end by it",
                              kEosKey, id.get_int64(), *vocabulary),
                  fmt::format("{}:{}", file, kEosKey));
    }
    ids->push_back(static_cast<int32_t>(id.get_int64()));
  }
  return {};
}

}  // namespace

Result<GenerationConfig> read_generation_config(const weights::Checkpoint& checkpoint,
                                                const text::Tokenizer& tokenizer,
                                                const GenerationSource& source) {
  constexpr std::string_view kFile = "generation_config.json";
  RUDDER_TRY(const json::object generation, read_object(checkpoint, kFile));
  RUDDER_TRY(const json::object model, read_object(checkpoint, "config.json"));
  GenerationConfig config;
  RUDDER_TRY(json::object chosen, read_source(generation, source.from));
  RUDDER_TRY_VOID(check_unserved(chosen, kFile));
  RUDDER_TRY(const json::object overrides, read_overrides(source.overrides));
  RUDDER_TRY_VOID(read_defaults(overrides, kOverrides));  // errors name the flag
  for (const auto& [key, value] : overrides) chosen[key] = value;
  RUDDER_TRY(config.defaults, read_defaults(chosen, kFile));

  const std::optional<int64_t> vocabulary = vocabulary_of(model, tokenizer);
  for (const json::object* file : {&generation, &std::as_const(chosen)}) {
    RUDDER_TRY_VOID(collect_eos(file->if_contains(kEosKey), kFile, vocabulary, &config.eos_ids));
  }
  RUDDER_TRY_VOID(
      collect_eos(find_in_model(model, kEosKey), "config.json", vocabulary, &config.eos_ids));
  if (tokenizer.eos_id()) config.eos_ids.push_back(*tokenizer.eos_id());
  std::sort(config.eos_ids.begin(), config.eos_ids.end());
  config.eos_ids.erase(std::unique(config.eos_ids.begin(), config.eos_ids.end()),
                       config.eos_ids.end());
  return config;
}

}  // namespace rudder::apps
