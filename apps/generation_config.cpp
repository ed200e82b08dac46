#include "generation_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <string_view>

#include "rudder/base/json.h"

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

Result<std::optional<double>> read_number(const json::object& object, std::string_view file,
                                          std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return std::optional<double>();
  if (!value->is_number()) return tl::unexpected<Error>(wrong_type(file, key, "a number"));
  return std::optional<double>(value->to_number<double>());
}

Result<std::optional<int64_t>> read_integer(const json::object& object, std::string_view file,
                                            std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return std::optional<int64_t>();
  if (!value->is_int64()) return tl::unexpected<Error>(wrong_type(file, key, "an integer"));
  return std::optional<int64_t>(value->get_int64());
}

// eos_token_id is an id, a list of ids, or null.
Result<void> collect_eos(const json::object& object, std::string_view file,
                         std::vector<int32_t>* ids) {
  constexpr std::string_view kKey = "eos_token_id";
  const json::value* value = object.if_contains(kKey);
  if (value == nullptr || value->is_null()) return {};
  const json::array one = {*value};
  const json::array& list = value->is_array() ? value->get_array() : one;
  for (const json::value& id : list) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > INT32_MAX) {
      return tl::unexpected<Error>(wrong_type(file, kKey, "a token id or a list of them"));
    }
    ids->push_back(static_cast<int32_t>(id.get_int64()));
  }
  return {};
}

}  // namespace

Result<GenerationConfig> read_generation_config(const weights::Checkpoint& checkpoint,
                                                const text::Tokenizer& tokenizer) {
  constexpr std::string_view kFile = "generation_config.json";
  RUDDER_TRY(const json::object generation, read_object(checkpoint, kFile));
  RUDDER_TRY(const json::object model, read_object(checkpoint, "config.json"));
  GenerationConfig config;
  RUDDER_TRY(config.defaults.temperature, read_number(generation, kFile, "temperature"));
  RUDDER_TRY(config.defaults.top_p, read_number(generation, kFile, "top_p"));
  RUDDER_TRY(config.defaults.min_p, read_number(generation, kFile, "min_p"));
  RUDDER_TRY(config.defaults.top_k, read_integer(generation, kFile, "top_k"));
  RUDDER_TRY(config.defaults.repetition_penalty,
             read_number(generation, kFile, "repetition_penalty"));
  RUDDER_TRY(config.defaults.max_tokens, read_integer(generation, kFile, "max_new_tokens"));

  RUDDER_TRY_VOID(collect_eos(generation, kFile, &config.eos_ids));
  RUDDER_TRY_VOID(collect_eos(model, "config.json", &config.eos_ids));
  if (tokenizer.eos_id()) config.eos_ids.push_back(*tokenizer.eos_id());
  std::sort(config.eos_ids.begin(), config.eos_ids.end());
  config.eos_ids.erase(std::unique(config.eos_ids.begin(), config.eos_ids.end()),
                       config.eos_ids.end());
  return config;
}

}  // namespace rudder::apps
