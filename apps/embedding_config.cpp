#include "embedding_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/json.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;
using weights::Checkpoint;

// What a key may say beside nothing at all (null, "", [], {}). `only` is JSON; empty: anything, as
// the key is without effect here or is read elsewhere in this file.
struct KnownKey {
  std::string_view name;
  std::string_view only = {};
};

// The arguments of Transformer: how long the parts of a retrieval may be, and whether a batch is
// padded, changes no encode().
constexpr std::array<KnownKey, 13> kTransformerKeys = {
    {{"transformer_task", R"("feature-extraction")"},
     {"modality_config"},
     {"module_output_name", R"("token_embeddings")"},
     {"processing_kwargs"},
     {"unpad_inputs"},
     {"query_length"},
     {"document_length"},
     {"max_seq_length"},
     {"do_lower_case", "false"},
     {"model_args"},
     {"model_kwargs"},
     {"tokenizer_args"},
     {"processor_kwargs"}}};
constexpr std::array<KnownKey, 2> kTextModality = {
    {{"method", R"("forward")"}, {"method_output_name", R"("last_hidden_state")"}}};
// Of AutoModel.from_pretrained and AutoProcessor.from_pretrained.
constexpr std::array<KnownKey, 6> kModelArguments = {{{"torch_dtype"},
                                                      {"dtype"},
                                                      {"attn_implementation"},
                                                      {"low_cpu_mem_usage"},
                                                      {"use_safetensors"},
                                                      {"trust_remote_code"}}};
constexpr std::array<KnownKey, 4> kTokenizerArguments = {
    {{"model_max_length"}, {"padding_side"}, {"use_fast"}, {"trust_remote_code"}}};
// The similarity is for who compares embeddings; versions are of the packages.
constexpr std::array<KnownKey, 7> kModelKeys = {{{"__version__"},
                                                 {"requirements"},
                                                 {"model_type", R"("SentenceTransformer")"},
                                                 {"prompts"},
                                                 {"default_prompt_name"},
                                                 {"similarity_fn_name"},
                                                 {"truncate_dim"}}};
constexpr std::array<KnownKey, 10> kPoolingKeys = {{{"embedding_dimension"},
                                                    {"word_embedding_dimension"},
                                                    {"pooling_mode"},
                                                    {"include_prompt"},
                                                    {"pooling_mode_cls_token"},
                                                    {"pooling_mode_max_tokens"},
                                                    {"pooling_mode_mean_tokens"},
                                                    {"pooling_mode_mean_sqrt_len_tokens"},
                                                    {"pooling_mode_weightedmean_tokens"},
                                                    {"pooling_mode_lasttoken"}}};
constexpr std::array<KnownKey, 2> kNormalizeKeys = {
    {{"module_input_name", R"("sentence_embedding")"},
     {"module_output_name", R"("sentence_embedding")"}}};

bool is_blank(const json::value& value) {
  return value.is_null() || (value.is_string() && value.get_string().empty()) ||
         (value.is_array() && value.get_array().empty()) ||
         (value.is_object() && value.get_object().empty());
}

tl::unexpected<Error> not_served(const json::value& value, std::string where) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("{} is not served", json::serialize(value).substr(0, 200)),
              std::move(where));
}

// kUnsupported names the key that is not known, or says what is not served.
Result<void> check_keys(const json::object& object, std::span<const KnownKey> known,
                        std::string_view path) {
  for (const auto& [name, value] : object) {
    if (is_blank(value)) continue;
    const auto at = std::ranges::find(known, std::string_view(name), &KnownKey::name);
    const bool is_served =
        at != known.end() && (at->only.empty() || json::serialize(value) == at->only);
    if (!is_served) return not_served(value, fmt::format("{}{}", path, std::string_view(name)));
  }
  return {};
}

Result<json::object> read_module_file(const Checkpoint& checkpoint, const std::string& file) {
  RUDDER_TRY(const std::string text, checkpoint.read_text(file));
  RUDDER_TRY(const json::value value, parse_json(text, file));
  if (!value.is_object()) return fail(ErrorCode::kCorruptFile, "is not a JSON object", file);
  return value.get_object();
}

std::string text_of(const json::object& object, std::string_view key) {
  const json::value* const field = object.if_contains(key);
  return field != nullptr && field->is_string() ? std::string(field->get_string()) : std::string();
}

// Absent: INT32_MAX, which is no limit. Files have 1e30 for none.
Result<int32_t> read_limit(const json::object& object, std::string_view key,
                           const std::string& file) {
  const json::value* const field = object.if_contains(key);
  if (field == nullptr || field->is_null()) return INT32_MAX;
  boost::system::error_code not_a_number;
  const double limit = field->to_number<double>(not_a_number);
  if (not_a_number || !(limit >= 1)) return not_served(*field, fmt::format("{}: {}", file, key));
  return static_cast<int32_t>(std::floor(std::min(limit, double{INT32_MAX})));
}

struct PoolingConfig {
  std::string mode;  // "last" or "mean"
  bool counts_prompt = true;
};

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
  // Until its version 6 sentence-transformers has a mean beside what the file switches on, unless
  // the file has the word.
  if (!config.contains("pooling_mode_mean_tokens")) modes.emplace_back("mean_tokens");
  return modes;
}

Result<PoolingConfig> read_pooling(const Checkpoint& checkpoint, const std::string& folder) {
  const std::string file = folder + "/config.json";
  RUDDER_TRY(const json::object config, read_module_file(checkpoint, file));
  RUDDER_TRY_VOID(check_keys(config, kPoolingKeys, file + ": "));
  PoolingConfig out;
  const json::value* const counts_prompt = config.if_contains("include_prompt");
  out.counts_prompt = counts_prompt == nullptr || *counts_prompt != json::value(false);
  const std::vector<std::string> modes = modes_of(config);
  const bool is_mean = modes.size() == 1 && (modes[0] == "mean" || modes[0] == "mean_tokens");
  if (modes == std::vector<std::string>{"lasttoken"}) {
    out.mode = "last";
  } else if (is_mean) {
    out.mode = "mean";
  } else {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the pooling '{}' is not served: lasttoken and mean are",
                            fmt::join(modes, ", ")),
                file);
  }
  return out;
}

// What the file of the module that runs the model says; `limit` is lowered to what it allows.
Result<void> read_transformer(const Checkpoint& checkpoint, int32_t* limit) {
  // The first that is there counts.
  constexpr std::array<const char*, 7> kFiles = {
      "sentence_bert_config.json",       "sentence_roberta_config.json",
      "sentence_distilbert_config.json", "sentence_camembert_config.json",
      "sentence_albert_config.json",     "sentence_xlm-roberta_config.json",
      "sentence_xlnet_config.json"};
  const auto* const file =
      std::ranges::find_if(kFiles, [&](const char* name) { return checkpoint.has_file(name); });
  const std::string name = file == kFiles.end() ? "" : *file;
  json::object config;
  if (!name.empty()) {
    RUDDER_TRY(config, read_module_file(checkpoint, name));
  }
  RUDDER_TRY_VOID(check_keys(config, kTransformerKeys, name + ": "));
  const auto part = [&](std::string_view key) {
    const json::value* const field = config.if_contains(key);
    return field != nullptr && field->is_object() ? field->get_object() : json::object();
  };
  const auto path = [&](std::string_view key) { return fmt::format("{}: {}.", name, key); };
  const json::object modalities = part("modality_config");
  if (const json::value* const text = modalities.if_contains("text"); text && text->is_object()) {
    RUDDER_TRY_VOID(check_keys(text->get_object(), kTextModality, path("modality_config.text")));
  } else if (!modalities.empty()) {
    return not_served(modalities, name + ": modality_config");
  }
  // Templates are the server's own for chats; lengths and the like are not.
  constexpr std::array<KnownKey, 1> kProcessing = {{{"chat_template"}}};
  RUDDER_TRY_VOID(check_keys(part("processing_kwargs"), kProcessing, path("processing_kwargs")));
  for (const char* key : {"model_args", "model_kwargs"}) {
    RUDDER_TRY_VOID(check_keys(part(key), kModelArguments, path(key)));
  }
  // The tokenizer's own length counts where neither of these says one.
  RUDDER_TRY(int32_t said, read_limit(config, "max_seq_length", name));
  for (const char* key : {"tokenizer_args", "processor_kwargs"}) {
    const json::object arguments = part(key);
    RUDDER_TRY_VOID(check_keys(arguments, kTokenizerArguments, path(key)));
    if (!arguments.contains("model_max_length")) continue;
    RUDDER_TRY(said, read_limit(arguments, "model_max_length", path(key)));
  }
  constexpr const char* kTokenizer = "tokenizer_config.json";
  if (said == INT32_MAX && checkpoint.has_file(kTokenizer)) {
    RUDDER_TRY(const json::object tokenizer, read_module_file(checkpoint, kTokenizer));
    RUDDER_TRY(said, read_limit(tokenizer, "model_max_length", kTokenizer));
  }
  *limit = std::min(*limit, said);
  return {};
}

// The file beside modules.json.
Result<void> read_model_config(const Checkpoint& checkpoint, server::EmbeddingDefaults& out) {
  const std::string file = "config_sentence_transformers.json";
  if (!checkpoint.has_file(file)) return {};
  RUDDER_TRY(const json::object config, read_module_file(checkpoint, file));
  RUDDER_TRY_VOID(check_keys(config, kModelKeys, file + ": "));
  RUDDER_TRY(out.max_dimensions, read_limit(config, "truncate_dim", file));
  const std::string name = text_of(config, "default_prompt_name");
  if (name.empty()) return {};
  const json::value* const prompts = config.if_contains("prompts");
  if (prompts == nullptr || !prompts->is_object() || !prompts->get_object().contains(name)) {
    return fail(ErrorCode::kCorruptFile, fmt::format("there is no prompt '{}'", name),
                file + ": default_prompt_name");
  }
  out.prompt = text_of(prompts->get_object(), name);
  return {};
}

// Goes through the modules in their order.
class ModuleReader {
 public:
  ModuleReader(const Checkpoint& checkpoint, server::EmbeddingDefaults& out)
      : checkpoint_(checkpoint), out_(out) {}

  Result<void> take(const json::value& module, const std::string& where) {
    const json::object fields = module.is_object() ? module.get_object() : json::object();
    const std::string type = text_of(fields, "type");
    const std::string kind = type.substr(type.rfind('.') + 1);
    const std::string folder = text_of(fields, "path");
    const auto refuse = [&](std::string_view why) {
      return fail(ErrorCode::kUnsupported, fmt::format("'{}' is not served{}", type, why),
                  where + ".type");
    };
    const bool is_known = kind == "Transformer" || kind == "Pooling" || kind == "Normalize";
    if (!type.starts_with("sentence_transformers.") || !is_known) return refuse("");
    if (kind != kNext[stage_]) return refuse(" in this place");
    if ((kind == "Transformer") != folder.empty()) {
      return not_served(json::value(folder), where + ".path");
    }
    if (kind == "Transformer") {
      stage_ = kRows;
      return {};
    }
    stage_ = kPooled;
    if (kind == "Pooling") {
      RUDDER_TRY(const PoolingConfig pooling, read_pooling(checkpoint_, folder));
      if (!pooling.counts_prompt && !out_.prompt.empty()) {
        return fail(ErrorCode::kUnsupported, "a default prompt that is not pooled is not served",
                    folder + "/config.json: include_prompt");
      }
      out_.pooling = pooling.mode;
      return {};
    }
    out_.normalised = true;
    const std::string file = folder + "/config.json";
    if (!checkpoint_.has_file(file)) return {};
    RUDDER_TRY(const json::object config, read_module_file(checkpoint_, file));
    return check_keys(config, kNormalizeKeys, file + ": ");
  }

  Result<void> finish(const std::string& file) const {
    if (stage_ == kPooled) return {};
    return fail(ErrorCode::kUnsupported, "modules without a Pooling are not served", file);
  }

 private:
  enum Stage { kBegin, kRows, kPooled };
  // What may come next.
  static constexpr std::array<std::string_view, 3> kNext = {"Transformer", "Pooling", "Normalize"};

  const Checkpoint& checkpoint_;
  server::EmbeddingDefaults& out_;
  Stage stage_ = kBegin;
};

}  // namespace

Result<server::EmbeddingDefaults> read_embedding_config(const Checkpoint& checkpoint) {
  const std::string file = "modules.json";
  server::EmbeddingDefaults out;
  if (!checkpoint.has_file(file)) return out;
  RUDDER_TRY(const std::string text, checkpoint.read_text(file));
  RUDDER_TRY(const json::value modules, parse_json(text, file));
  if (!modules.is_array()) return fail(ErrorCode::kCorruptFile, "is not a list", file);
  RUDDER_TRY_VOID(read_model_config(checkpoint, out));
  RUDDER_TRY_VOID(read_transformer(checkpoint, &out.max_tokens));
  out.normalised = false;
  ModuleReader reader(checkpoint, out);
  for (size_t i = 0; i < modules.get_array().size(); ++i) {
    RUDDER_TRY_VOID(reader.take(modules.get_array()[i], fmt::format("{}: [{}]", file, i)));
  }
  RUDDER_TRY_VOID(reader.finish(file));
  return out;
}

}  // namespace rudder::apps
