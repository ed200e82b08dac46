#include "rudder/model/gguf/gguf_tokenizer_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <optional>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/model/gguf/gguf_pieces.h"

namespace rudder::model {
namespace {

namespace json = boost::json;

constexpr const char* kTokenizerFile = "tokenizer.json";
// Of a token ("tokenizer.ggml.token_type").
enum : int32_t {
  kNormalType = 1,
  kUnknownType = 2,
  kControlType = 3,
  kUserDefinedType = 4,
  kUnusedType = 5,
  kByteType = 6
};

tl::unexpected<Error> not_said(std::string_view what, std::string_view field) {
  return fail(ErrorCode::kUnsupported, fmt::format("a GGUF file has no words for {}", what),
              fmt::format("{}: {}", kTokenizerFile, field));
}

const json::value* field_of(const json::object& object, std::string_view name) {
  const json::value* const found = object.if_contains(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}
bool is_set(const json::object& object, std::string_view name, bool otherwise = false) {
  const json::value* const found = field_of(object, name);
  return found != nullptr && found->is_bool() ? found->get_bool() : otherwise;
}
std::string_view string_of(const json::object& object, std::string_view name) {
  const json::value* const found = field_of(object, name);
  if (found == nullptr || !found->is_string()) return {};
  return {found->get_string().data(), found->get_string().size()};
}

// The steps of a part of the tokenizer: those of a Sequence, or the part itself.
std::vector<const json::object*> steps_of(const json::object& tokenizer, std::string_view part,
                                          std::string_view list) {
  std::vector<const json::object*> steps;
  const json::value* const found = field_of(tokenizer, part);
  if (found == nullptr || !found->is_object()) return steps;
  const json::object& whole = found->get_object();
  const json::value* const inner = field_of(whole, list);
  if (string_of(whole, "type") != "Sequence" || inner == nullptr || !inner->is_array()) {
    steps.push_back(&whole);
    return steps;
  }
  for (const json::value& step : inner->get_array()) {
    if (step.is_object()) steps.push_back(&step.get_object());
  }
  return steps;
}

class TokenizerWriter {
 public:
  TokenizerWriter(const weights::Checkpoint& checkpoint, weights::GgufWriter& out)
      : checkpoint_(checkpoint), out_(out) {}

  Result<void> write(int64_t vocab_size) {
    RUDDER_TRY_VOID(read());
    RUDDER_TRY_VOID(read_tokens(vocab_size));
    if (is_set(model(), "byte_fallback")) {
      RUDDER_TRY_VOID(add_sentencepiece());
    } else {
      RUDDER_TRY_VOID(add_byte_level());
    }
    out_.add("tokenizer.ggml.tokens", std::span<const std::string>(tokens_));
    out_.add("tokenizer.ggml.token_type", std::span<const int32_t>(types_));
    out_.add("tokenizer.ggml.add_bos_token", adds("bos_token", true));
    out_.add("tokenizer.ggml.add_eos_token", adds("eos_token", false));
    RUDDER_TRY_VOID(add_ids());
    return add_template();
  }

 private:
  Result<void> read() {
    RUDDER_TRY(const std::string text, checkpoint_.read_text(kTokenizerFile));
    RUDDER_TRY(tokenizer_, parse_json(text, kTokenizerFile));
    if (!tokenizer_.is_object() || field_of(tokenizer_.get_object(), "model") == nullptr ||
        !field_of(tokenizer_.get_object(), "model")->is_object()) {
      return fail(ErrorCode::kCorruptFile, "it has no model", kTokenizerFile);
    }
    if (string_of(model(), "type") != "BPE")
      return not_said("another model than BPE", "model.type");
    if (!checkpoint_.has_file("tokenizer_config.json")) return {};
    RUDDER_TRY(const std::string config, checkpoint_.read_text("tokenizer_config.json"));
    RUDDER_TRY(config_, parse_json(config, "tokenizer_config.json"));
    return {};
  }
  const json::object& whole() const { return tokenizer_.get_object(); }
  const json::object& model() const { return whole().at("model").get_object(); }

  Result<void> read_tokens(int64_t vocab_size) {
    tokens_.resize(static_cast<size_t>(vocab_size));
    types_.assign(tokens_.size(), kUnusedType);
    const auto put_token = [&](const json::value& id, std::string_view token,
                               int32_t type) -> Result<void> {
      if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= vocab_size) {
        return not_said(fmt::format("the token '{}', which the embedding has no row for", token),
                        "model.vocab");
      }
      tokens_[static_cast<size_t>(id.get_int64())] = token;
      types_[static_cast<size_t>(id.get_int64())] = type;
      return {};
    };
    const json::value* const vocabulary = field_of(model(), "vocab");
    if (vocabulary == nullptr || !vocabulary->is_object()) {
      return fail(ErrorCode::kCorruptFile, "it is no object", "tokenizer.json: model.vocab");
    }
    const bool has_bytes = is_set(model(), "byte_fallback");
    for (const auto& [token, id] : vocabulary->get_object()) {
      const bool is_byte = has_bytes && token.size() == 6 && token.starts_with("<0x");
      RUDDER_TRY_VOID(put_token(id, token, is_byte ? kByteType : kNormalType));
    }
    const json::value* const added = field_of(whole(), "added_tokens");
    if (added != nullptr && added->is_array()) {
      for (const json::value& one : added->get_array()) {
        const json::object& token = one.as_object();
        const std::string_view text = string_of(token, "content");
        const bool is_unknown = !text.empty() && text == string_of(model(), "unk_token");
        RUDDER_TRY_VOID(put_token(token.at("id"), text,
                                  is_unknown                 ? kUnknownType
                                  : is_set(token, "special") ? kControlType
                                                             : kUserDefinedType));
      }
    }
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] == kUnusedType) tokens_[id] = fmt::format("[PAD{}]", id);
    }
    return {};
  }

  // Pairs, as both spellings of tokenizer.json have them.
  Result<std::vector<std::pair<std::string, std::string>>> merges() const {
    std::vector<std::pair<std::string, std::string>> out;
    const json::value* const list = field_of(model(), "merges");
    if (list == nullptr || !list->is_array()) return not_said("BPE without merges", "model.merges");
    for (const json::value& merge : list->get_array()) {
      if (merge.is_array() && merge.get_array().size() == 2) {
        out.emplace_back(merge.get_array()[0].as_string(), merge.get_array()[1].as_string());
      } else {
        const std::string text(merge.as_string());
        const size_t space = text.find(' ', 1);
        out.emplace_back(text.substr(0, space), text.substr(std::min(text.size(), space + 1)));
      }
    }
    return out;
  }

  Result<void> add_byte_level() {
    std::vector<std::string_view> patterns;
    std::optional<bool> is_gpt2;
    for (const json::object* const step : steps_of(whole(), "pre_tokenizer", "pretokenizers")) {
      const std::string_view type = string_of(*step, "type");
      const json::value* const pattern = field_of(*step, "pattern");
      if (is_gpt2) return not_said("steps behind ByteLevel", "pre_tokenizer");
      if (type == "Digits" && is_set(*step, "individual_digits")) {
        patterns.push_back(kDigitPiece);
      } else if (type == "Split" && pattern != nullptr && pattern->is_object() &&
                 string_of(*step, "behavior") == "Isolated" && !is_set(*step, "invert")) {
        patterns.push_back(string_of(pattern->get_object(), "Regex"));
      } else if (type == "ByteLevel" && !is_set(*step, "add_prefix_space", true)) {
        is_gpt2 = is_set(*step, "use_regex", true);
      } else {
        return not_said(fmt::format("the step {}", type), "pre_tokenizer");
      }
    }
    const auto normalizers = steps_of(whole(), "normalizer", "normalizers");
    const bool composes = normalizers.size() == 1 && string_of(*normalizers[0], "type") == "NFC";
    if (!composes && !normalizers.empty()) return not_said("this normaliser", "normalizer");
    const auto found = std::ranges::find_if(gguf_pieces(), [&](const GgufPieces& pieces) {
      return std::ranges::equal(pieces.patterns, patterns) && pieces.is_gpt2 == is_gpt2 &&
             pieces.composes == composes &&
             pieces.ignores_merges == is_set(model(), "ignore_merges");
    });
    if (found == gguf_pieces().end()) return not_said("these pieces of a text", "pre_tokenizer");
    out_.add("tokenizer.ggml.model", std::string_view("gpt2"));
    out_.add("tokenizer.ggml.pre", *found->names.begin());
    RUDDER_TRY(const auto pairs, merges());
    std::vector<std::string> texts;
    texts.reserve(pairs.size());
    for (const auto& [first, second] : pairs) {
      texts.push_back(first);
      texts.back().append(" ").append(second);
    }
    out_.add("tokenizer.ggml.merges", std::span<const std::string>(texts));
    return {};
  }

  // A token's score is the negative rank of the first pair that makes it.
  Result<void> add_sentencepiece() {
    RUDDER_TRY(const auto pairs, merges());
    std::map<std::string_view, size_t> ids;
    for (size_t id = 0; id < tokens_.size(); ++id) ids.emplace(tokens_[id], id);
    std::vector<float> scores(tokens_.size(), -static_cast<float>(pairs.size()) - 1);
    for (size_t rank = pairs.size(); rank-- > 0;) {
      const auto made = ids.find(pairs[rank].first + pairs[rank].second);
      if (made == ids.end()) return not_said("a merge that makes no token", "model.merges");
      scores[made->second] = -static_cast<float>(rank);
    }
    const auto normalizers = steps_of(whole(), "normalizer", "normalizers");
    const bool has_prefix = std::ranges::any_of(normalizers, [](const json::object* step) {
      return string_of(*step, "type") == "Prepend";
    });
    out_.add("tokenizer.ggml.model", std::string_view("llama"));
    out_.add("tokenizer.ggml.scores", std::span<const float>(scores));
    out_.add("tokenizer.ggml.add_space_prefix", has_prefix);
    return {};
  }

  // A special token of the config.
  std::string_view special(std::string_view name) const {
    if (!config_.is_object()) return {};
    const json::value* const found = field_of(config_.get_object(), name);
    if (found == nullptr) return {};
    if (found->is_object()) return string_of(found->get_object(), "content");
    return string_of(config_.get_object(), name);
  }
  std::optional<uint32_t> id_of(std::string_view token) const {
    const auto found = std::ranges::find(tokens_, token);
    if (token.empty() || found == tokens_.end()) return std::nullopt;
    return static_cast<uint32_t>(found - tokens_.begin());
  }

  // Whether texts begin, or end, with a special token: as the post-processor says.
  bool adds(std::string_view name, bool at_begin) const {
    const std::string_view token = special(name);
    for (const json::object* const step : steps_of(whole(), "post_processor", "processors")) {
      const json::value* const single = field_of(*step, "single");
      if (single == nullptr || !single->is_array() || single->get_array().empty()) continue;
      const json::array& pieces = single->get_array();
      const json::value& piece = at_begin ? pieces.front() : pieces.back();
      const json::value* const own =
          piece.is_object() ? field_of(piece.get_object(), "SpecialToken") : nullptr;
      if (own != nullptr && own->is_object() && string_of(own->get_object(), "id") == token) {
        return true;
      }
    }
    return false;
  }

  Result<void> add_ids() {
    for (const auto& [name, key] :
         {std::pair("bos_token", "bos"), std::pair("eos_token", "eos"),
          std::pair("unk_token", "unknown"), std::pair("pad_token", "padding")}) {
      if (const std::optional<uint32_t> id = id_of(special(name))) {
        out_.add(fmt::format("tokenizer.ggml.{}_token_id", key), *id);
      }
    }
    if (!checkpoint_.has_file("generation_config.json")) return {};
    RUDDER_TRY(const std::string text, checkpoint_.read_text("generation_config.json"));
    RUDDER_TRY(const json::value config, parse_json(text, "generation_config.json"));
    const json::value* const ends =
        config.is_object() ? field_of(config.get_object(), "eos_token_id") : nullptr;
    if (ends == nullptr || !ends->is_array()) return {};
    std::vector<std::string_view> keys = {"eom", "eot"};  // the last one first
    for (const json::value& end : ends->get_array()) {
      if (!end.is_int64() || end.get_int64() == id_of(special("eos_token"))) continue;
      if (keys.empty()) {
        return fail(ErrorCode::kUnsupported, "a GGUF file has keys for three ends",
                    "generation_config.json: eos_token_id");
      }
      out_.add(fmt::format("tokenizer.ggml.{}_token_id", keys.back()),
               static_cast<uint32_t>(end.get_int64()));
      keys.pop_back();
    }
    return {};
  }

  Result<void> add_template() {
    constexpr std::string_view kKey = "tokenizer.chat_template";
    if (checkpoint_.has_file("chat_template.jinja")) {
      RUDDER_TRY(const std::string text, checkpoint_.read_text("chat_template.jinja"));
      out_.add(kKey, std::string_view(text));
    } else if (config_.is_object()) {
      const std::string_view text = string_of(config_.get_object(), "chat_template");
      if (!text.empty()) out_.add(kKey, text);
    }
    return {};
  }

  const weights::Checkpoint& checkpoint_;
  weights::GgufWriter& out_;
  json::value tokenizer_;
  json::value config_;
  std::vector<std::string> tokens_;
  std::vector<int32_t> types_;
};

// Merges as texts, whatever their spelling.
std::vector<std::string> merge_texts(const json::object& model) {
  std::vector<std::string> out;
  for (const json::value& merge : model.at("merges").as_array()) {
    if (merge.is_string()) {
      out.emplace_back(merge.get_string());
    } else {
      out.push_back(std::string(merge.as_array()[0].as_string()) + " " +
                    std::string(merge.as_array()[1].as_string()));
    }
  }
  return out;
}

}  // namespace

Result<void> add_tokenizer(const weights::Checkpoint& checkpoint, int64_t vocab_size,
                           weights::GgufWriter& out) {
  return TokenizerWriter(checkpoint, out).write(vocab_size);
}

Result<void> check_tokenizer_said(const std::string& original, const std::string& said) {
  RUDDER_TRY(const json::value ours, parse_json(original, kTokenizerFile));
  RUDDER_TRY(const json::value theirs, parse_json(said, kTokenizerFile));
  const json::object& model = ours.as_object().at("model").as_object();
  const json::object& its_model = theirs.as_object().at("model").as_object();
  if (merge_texts(model) != merge_texts(its_model)) {
    return not_said("merges that scores do not give", "model.merges");
  }
  const json::object& vocabulary = its_model.at("vocab").as_object();
  for (const auto& [token, id] : model.at("vocab").as_object()) {
    const json::value* const found = vocabulary.if_contains(token);
    if (found == nullptr || *found != id) {
      return not_said(fmt::format("the token '{}'", std::string_view(token)), "model.vocab");
    }
  }
  return {};
}

}  // namespace rudder::model
