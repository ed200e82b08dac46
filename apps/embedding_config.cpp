#include "embedding_config.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/json.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

Result<json::value> read_json(const weights::Checkpoint& checkpoint, const std::string& file) {
  RUDDER_TRY(const std::string text, checkpoint.read_text(file));
  return parse_json(text, file);
}

std::string text_of(const json::value& object, std::string_view key) {
  const json::value* const field =
      object.is_object() ? object.get_object().if_contains(key) : nullptr;
  return field != nullptr && field->is_string() ? std::string(field->get_string()) : std::string();
}

// The modes that a pooling's file switches on, in either of its spellings.
std::vector<std::string> modes_of(const json::object& config) {
  std::vector<std::string> modes;
  if (const json::value* const mode = config.if_contains("pooling_mode")) {
    if (mode->is_string()) modes.emplace_back(mode->get_string());
    if (!mode->is_array()) return modes;
    for (const json::value& one : mode->get_array()) {
      if (one.is_string()) modes.emplace_back(one.get_string());
    }
    return modes;
  }
  constexpr std::string_view kPrefix = "pooling_mode_";
  for (const auto& [key, value] : config) {
    const std::string_view name = key;
    if (name.starts_with(kPrefix) && value.is_bool() && value.get_bool()) {
      modes.emplace_back(name.substr(kPrefix.size()));
    }
  }
  // sentence-transformers has a mean beside what the file switches on, unless the file has the
  // word.
  if (!config.contains("pooling_mode_mean_tokens")) modes.emplace_back("mean_tokens");
  return modes;
}

Result<std::string> read_pooling(const weights::Checkpoint& checkpoint, const std::string& folder) {
  const std::string file = folder + "/config.json";
  RUDDER_TRY(const json::value config, read_json(checkpoint, file));
  if (!config.is_object()) return fail(ErrorCode::kCorruptFile, "is not a JSON object", file);
  const std::vector<std::string> modes = modes_of(config.get_object());
  if (modes == std::vector<std::string>{"lasttoken"}) return std::string("last");
  const bool is_mean = modes.size() == 1 && (modes[0] == "mean" || modes[0] == "mean_tokens");
  if (is_mean) return std::string("mean");
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("the pooling '{}' is not served: lasttoken and mean are", fmt::join(modes, ", ")),
      file);
}

// The file of the module that runs the model, where there is one.
Result<void> check_transformer(const weights::Checkpoint& checkpoint) {
  constexpr const char* kFile = "sentence_bert_config.json";
  if (!checkpoint.has_file(kFile)) return {};
  RUDDER_TRY(const json::value config, read_json(checkpoint, kFile));
  if (!config.is_object()) return fail(ErrorCode::kCorruptFile, "is not a JSON object", kFile);
  const json::value* const lower = config.get_object().if_contains("do_lower_case");
  if (lower != nullptr && *lower != json::value(false)) {
    return fail(ErrorCode::kUnsupported, "texts in lower case are not served",
                fmt::format("{}: do_lower_case", kFile));
  }
  return {};
}

}  // namespace

Result<server::EmbeddingDefaults> read_embedding_config(const weights::Checkpoint& checkpoint) {
  constexpr const char* kFile = "modules.json";
  server::EmbeddingDefaults out;
  if (!checkpoint.has_file(kFile)) return out;
  RUDDER_TRY(const json::value modules, read_json(checkpoint, kFile));
  if (!modules.is_array()) return fail(ErrorCode::kCorruptFile, "is not a list", kFile);
  RUDDER_TRY_VOID(check_transformer(checkpoint));
  out.normalised = false;
  bool is_pooled = false;
  for (size_t i = 0; i < modules.get_array().size(); ++i) {
    const json::value& module = modules.get_array()[i];
    const std::string type = text_of(module, "type");
    const std::string kind = type.substr(type.rfind('.') + 1);
    const bool is_late = kind == "Pooling" && (is_pooled || out.normalised);
    if (is_late || (kind == "Normalize" && !is_pooled)) {
      return fail(ErrorCode::kUnsupported, fmt::format("'{}' is not served in this place", type),
                  fmt::format("{}: [{}].type", kFile, i));
    }
    if (kind == "Pooling") {
      is_pooled = true;
      RUDDER_TRY(out.pooling, read_pooling(checkpoint, text_of(module, "path")));
    } else if (kind == "Normalize") {
      out.normalised = true;
    } else if (kind != "Transformer") {
      return fail(ErrorCode::kUnsupported, fmt::format("the module '{}' is not served", type),
                  fmt::format("{}: [{}].type", kFile, i));
    }
  }
  return out;
}

}  // namespace rudder::apps
