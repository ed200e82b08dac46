// Reading tokenizer.json and tokenizer_config.json into a Tokenizer.
#include <algorithm>
#include <boost/json.hpp>
#include <unordered_set>

#include "rudder/base/json.h"
#include "rudder/text/config_tokens.h"
#include "rudder/text/files.h"
#include "rudder/text/json_fields.h"
#include "rudder/text/tokenizer_impl.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

Result<json::value> parse_file(std::string_view text, std::string_view name) {
  auto value = parse_json(text, name);
  if (!value && value.error().code == ErrorCode::kInvalidArgument) {
    return fail(ErrorCode::kCorruptFile, value.error().message, std::string(name));
  }
  return value;
}

const json::value& field_or_null(const json::object& object, std::string_view key) {
  static const json::value null;
  const auto* field = object.if_contains(key);
  return field == nullptr ? null : *field;
}

// What a post-processor puts before and after a single text.
struct Around {
  std::vector<int32_t> prefix, suffix;
  bool is_template = false;
};

Result<void> read_special_ids(const json::object& processor, std::string_view token,
                              const std::string& path, std::vector<int32_t>& out) {
  const auto* tokens = processor.if_contains("special_tokens");
  const json::value* entry =
      tokens != nullptr && tokens->is_object() ? tokens->get_object().if_contains(token) : nullptr;
  const json::value* ids =
      entry != nullptr && entry->is_object() ? entry->get_object().if_contains("ids") : nullptr;
  if (ids == nullptr || !ids->is_array()) {
    return fail(ErrorCode::kCorruptFile, fmt::format("has no ids for \"{}\"", token),
                path + ".special_tokens");
  }
  for (const auto& id : ids->get_array()) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > kMaxTokenId) {
      return fail(ErrorCode::kCorruptFile, fmt::format("a bad id for \"{}\"", token),
                  path + ".special_tokens");
    }
    out.push_back(static_cast<int32_t>(id.get_int64()));
  }
  return {};
}

Result<void> read_template(const json::object& processor, const std::string& path, Around& around) {
  const auto* single = processor.if_contains("single");
  if (single == nullptr || !single->is_array()) {
    return fail(ErrorCode::kCorruptFile, "must be a list", path + ".single");
  }
  bool seen_text = false;
  for (const auto& piece : single->get_array()) {
    const auto* object = piece.if_object();
    const auto* sequence = object != nullptr ? object->if_contains("Sequence") : nullptr;
    const auto* special = object != nullptr ? object->if_contains("SpecialToken") : nullptr;
    if (sequence != nullptr && sequence->is_object()) {
      RUDDER_TRY(const std::string id, string_field(sequence->get_object(), "id", path));
      if (id != "A" || seen_text) {
        return fail(ErrorCode::kUnsupported, "a template must use sequence A once",
                    path + ".single");
      }
      seen_text = true;
    } else if (special != nullptr && special->is_object()) {
      RUDDER_TRY(const std::string token, string_field(special->get_object(), "id", path));
      RUDDER_TRY_VOID(
          read_special_ids(processor, token, path, seen_text ? around.suffix : around.prefix));
    } else {
      return fail(ErrorCode::kCorruptFile, "must be Sequence or SpecialToken", path + ".single");
    }
  }
  if (!seen_text) {
    return fail(ErrorCode::kUnsupported, "a template must use sequence A once", path + ".single");
  }
  return {};
}

// BertProcessing and RobertaProcessing: "cls" and "sep" are [token, id].
Result<int32_t> read_token_pair(const json::object& processor, std::string_view key,
                                const std::string& path) {
  const auto* pair = processor.if_contains(key);
  if (pair == nullptr || !pair->is_array() || pair->get_array().size() != 2 ||
      !pair->get_array()[1].is_int64() || pair->get_array()[1].get_int64() < 0 ||
      pair->get_array()[1].get_int64() > kMaxTokenId) {
    return fail(ErrorCode::kCorruptFile, "must be [token, id]", join_path(path, key));
  }
  return static_cast<int32_t>(pair->get_array()[1].get_int64());
}

Result<void> read_post_processor(const json::value& node, const std::string& path, int depth,
                                 Around& around) {
  if (node.is_null()) return {};
  RUDDER_TRY(const auto* object, as_object(node, path));
  RUDDER_TRY(const std::string type, string_field(*object, "type", path));
  if (type == "ByteLevel") return {};  // it moves offsets only
  if (type == "Sequence") {
    const auto* list = object->if_contains("processors");
    if (list == nullptr || !list->is_array() || depth > 8) {
      return fail(ErrorCode::kCorruptFile, "must be a list", path + ".processors");
    }
    size_t index = 0;
    for (const auto& item : list->get_array()) {
      RUDDER_TRY_VOID(read_post_processor(item, fmt::format("{}.processors[{}]", path, index++),
                                          depth + 1, around));
    }
    return {};
  }
  if (around.is_template) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("post-processor \"{}\" after another is not supported", type), path);
  }
  around.is_template = true;
  if (type == "TemplateProcessing") return read_template(*object, path, around);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    RUDDER_TRY(const int32_t cls, read_token_pair(*object, "cls", path));
    RUDDER_TRY(const int32_t sep, read_token_pair(*object, "sep", path));
    around.prefix = {cls};
    around.suffix = {sep};
    return {};
  }
  return unsupported_component("post-processor", type, path);
}

// The model has no row for an id that the vocabulary lacks.
Result<void> check_known(const Around& around, const TokenTable& tokens) {
  for (const std::vector<int32_t>* ids : {&around.prefix, &around.suffix}) {
    const auto unknown =
        std::ranges::find_if(*ids, [&](int32_t id) { return !tokens.contains(id); });
    if (unknown != ids->end()) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("adds the token id {}, which the vocabulary lacks", *unknown),
                  "post_processor");
    }
  }
  return {};
}

Result<void> read_added_tokens(const json::object& file, AddedTokens& tokens) {
  const json::value& list = field_or_null(file, "added_tokens");
  if (list.is_null()) return {};
  if (!list.is_array()) return fail(ErrorCode::kCorruptFile, "must be a list", "added_tokens");
  size_t index = 0;
  for (const auto& item : list.get_array()) {
    const std::string path = fmt::format("added_tokens[{}]", index++);
    RUDDER_TRY(const auto* object, as_object(item, path));
    RUDDER_TRY(const int64_t id, int_field(*object, "id", 0, kMaxTokenId, path));
    RUDDER_TRY(AddedToken token, read_token_flags(item, path));
    if (token.content.empty()) continue;
    // The reference numbers tokens itself and only warns where the file disagrees; a model fed with
    // other ids than it was trained on is worse than a refusal.
    const int32_t expected = tokens.id_of(token.content);
    if (id != expected || tokens.find(token.content) != nullptr) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("\"{}\" has id {}, but the vocabulary gives it {}", token.content, id,
                              expected),
                  path);
    }
    tokens.put(std::move(token));
  }
  return {};
}

// What is searched for each, when all are there.
Result<void> set_patterns(const Normalizer& normalizer, std::vector<AddedToken>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    AddedToken& token = tokens[i];
    token.pattern = token.content;
    if (!token.normalized) continue;
    bool at_origin = true;
    RUDDER_TRY_VOID(normalizer.apply(token.pattern, at_origin));
    if (token.pattern.empty()) {
      return fail(ErrorCode::kCorruptFile, "is nothing once normalised",
                  fmt::format("added_tokens[{}]", i));
    }
  }
  return {};
}

// "bos_token": "<s>" or {"content": "<s>", ...}.
std::optional<int32_t> config_token(const json::object& config, std::string_view key,
                                    const StringIndex& index) {
  const json::value* field = &field_or_null(config, key);
  if (field->is_object()) field = &field_or_null(field->get_object(), "content");
  if (!field->is_string()) return std::nullopt;
  const int32_t id = index.find(field->get_string());
  if (id < 0) return std::nullopt;
  return id;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(
    std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  return from_files(tokenizer_json, {.config = std::string(tokenizer_config_json)});
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_files(std::string_view tokenizer_json,
                                                               const TokenFiles& files) {
  RUDDER_TRY(const json::value document, parse_file(tokenizer_json, "tokenizer.json"));
  RUDDER_TRY(const auto* file, as_object(document, "tokenizer.json"));
  RUDDER_TRY(PreTokenizer pre_tokenizer,
             PreTokenizer::parse(field_or_null(*file, "pre_tokenizer")));
  RUDDER_TRY(Normalizer normalizer, Normalizer::parse(field_or_null(*file, "normalizer")));
  RUDDER_TRY(TokenModel model,
             TokenModel::parse(field_or_null(*file, "model"), pre_tokenizer.ends_in_bytes()));
  AddedTokens all_added(model);
  RUDDER_TRY_VOID(read_added_tokens(*file, all_added));
  std::string decoder_path;
  RUDDER_TRY(const json::object names,
             merge_token_files(files, field_or_null(*file, "added_tokens"), &decoder_path));
  RUDDER_TRY_VOID(add_config_tokens(names, decoder_path, all_added));
  std::vector<AddedToken>& added = all_added.list();
  RUDDER_TRY_VOID(set_patterns(normalizer, added));
  Around around;
  RUDDER_TRY_VOID(
      read_post_processor(field_or_null(*file, "post_processor"), "post_processor", 0, around));

  TokenTable tokens = model.tokens();
  TokenSearch raw, normalized;
  std::unordered_set<std::string_view> specials;
  for (const AddedToken& token : added) {
    (token.normalized ? normalized : raw).add(token);
    if (!tokens.contains(token.id)) tokens.set(token.id, token.content);
    if (token.special) specials.insert(token.content);
  }
  RUDDER_TRY_VOID(check_known(around, tokens));
  // Decoding sees an added token as its normalised form, so that the decoder can undo that.
  std::vector<const AddedToken*> added_by_id(static_cast<size_t>(tokens.size()), nullptr);
  for (const AddedToken& token : added) added_by_id[token.id] = &token;
  const auto spelling = [&](int32_t id) -> std::string_view {
    const AddedToken* token = added_by_id[id];
    return token != nullptr ? std::string_view(token->pattern) : tokens.get(id);
  };
  RUDDER_TRY(DecodePipeline decode,
             DecodePipeline::parse(field_or_null(*file, "decoder"), tokens.size(), spelling));
  std::vector<bool> special(static_cast<size_t>(tokens.size()));
  for (int32_t id = 0; id < tokens.size(); ++id) special[id] = specials.contains(spelling(id));

  auto impl = std::unique_ptr<Impl>(new Impl{std::move(normalizer),
                                             std::move(pre_tokenizer),
                                             std::move(model),
                                             std::move(raw),
                                             std::move(normalized),
                                             std::move(decode),
                                             std::move(around.prefix),
                                             std::move(around.suffix),
                                             std::move(tokens),
                                             {},
                                             std::move(special),
                                             {},
                                             {}});
  impl->index.reserve(static_cast<size_t>(impl->tokens.size()));
  for (int32_t id = impl->tokens.size() - 1; id >= 0; --id) {  // of two alike the last one
    if (impl->tokens.contains(id)) impl->index.insert(impl->tokens.get(id), id);
  }
  impl->bos = config_token(names, "bos_token", impl->index);
  impl->eos = config_token(names, "eos_token", impl->index);
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_directory(
    const std::filesystem::path& directory) {
  RUDDER_TRY(const std::string tokenizer, read_text_file(directory / "tokenizer.json"));
  RUDDER_TRY(const TokenFiles files, read_token_files(directory));
  return from_files(tokenizer, files);
}

}  // namespace rudder::text
