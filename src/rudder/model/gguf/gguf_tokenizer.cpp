#include "rudder/model/gguf/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "rudder/base/utf8.h"
#include "rudder/model/gguf/gguf_pieces.h"

namespace rudder::model {
namespace {

namespace json = boost::json;
using weights::GgufFile;

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr size_t kMaxTokenBytes = 4096;                  // every cut of a token is looked up
constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

// Of a token ("tokenizer.ggml.token_type").
constexpr int kNormal = 1;
constexpr int kUnknown = 2;
constexpr int kControl = 3;
constexpr int kUserDefined = 4;
constexpr int kByte = 6;  // 5: unused

struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<double> types;
  std::unordered_map<std::string_view, int32_t> ids;

  int type(size_t id) const { return types.empty() ? kNormal : static_cast<int>(types[id]); }
};

json::value isolated(std::string_view pattern) {
  return json::object{{"type", "Split"},
                      {"pattern", json::object{{"Regex", json::string(pattern)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
}

json::value byte_level(bool use_regex) {
  return json::object{{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", use_regex}};
}

json::value replacing(std::string_view from, std::string_view to) {
  return json::object{{"type", "Replace"},
                      {"pattern", json::object{{"String", json::string(from)}}},
                      {"content", json::string(to)}};
}

class GgufTokenizer {
 public:
  explicit GgufTokenizer(const GgufFile& gguf) : gguf_(gguf) {}

  Result<GgufTokenizerFiles> make() {
    constexpr std::string_view kModel = "tokenizer.ggml.model";
    RUDDER_TRY(const std::string_view model, gguf_.text(kModel));
    RUDDER_TRY_VOID(read_vocabulary());
    bool adds_bos = true;
    if (model == "gpt2") {
      RUDDER_TRY(adds_bos, add_byte_level());
    } else if (model == "llama") {
      RUDDER_TRY_VOID(add_sentencepiece());
    } else {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("the tokenizer '{}' is not served; gpt2 and llama are", model),
                  gguf_.where(kModel));
    }
    add_added_tokens();
    RUDDER_TRY_VOID(add_ends(adds_bos));
    GgufTokenizerFiles files;
    files.tokenizer = json::serialize(out_);
    RUDDER_TRY(files.config, config());
    RUDDER_TRY(files.generation_config, generation_config());
    RUDDER_TRY(const std::string_view tools, gguf_.text_or("tokenizer.chat_template.tool_use", ""));
    files.tools_template = tools;
    return files;
  }

 private:
  tl::unexpected<Error> corrupt(std::string message, std::string_view key) const {
    return fail(ErrorCode::kCorruptFile, std::move(message), gguf_.where(key));
  }

  Result<void> read_vocabulary() {
    constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
    RUDDER_TRY(vocabulary_.tokens, gguf_.texts(kTokens));
    const size_t count = vocabulary_.tokens.size();
    if (count == 0 || count > INT32_MAX) return corrupt("it lists no tokens, or too many", kTokens);
    if (gguf_.has(kTypes)) {
      RUDDER_TRY(vocabulary_.types, gguf_.numbers(kTypes));
      if (vocabulary_.types.size() != count) {
        return corrupt(
            fmt::format("it has {} types for {} tokens", vocabulary_.types.size(), count), kTypes);
      }
    }
    vocabulary_.ids.reserve(count);
    for (size_t id = 0; id < count; ++id) {
      const std::string_view token = vocabulary_.tokens[id];
      const double type = vocabulary_.types.empty() ? 1.0 : vocabulary_.types[id];
      if (type < kNormal || type > kByte || type != std::floor(type)) {
        return corrupt(fmt::format("token {} has the type {}", id, type), kTypes);
      }
      if (token.size() > kMaxTokenBytes) {
        return corrupt(fmt::format("token {} has {} bytes", id, token.size()), kTokens);
      }
      if (find_invalid_utf8(token))
        return corrupt(fmt::format("token {} is no UTF-8", id), kTokens);
      if (!vocabulary_.ids.emplace(token, static_cast<int32_t>(id)).second) {
        return corrupt(fmt::format("token {}, '{}', is there twice", id, token), kTokens);
      }
    }
    return {};
  }

  json::object vocabulary_object() const {
    json::object out;
    out.reserve(vocabulary_.tokens.size());
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      out.emplace(vocabulary_.tokens[id], static_cast<int64_t>(id));
    }
    return out;
  }

  // Whether it begins texts with the first token where the file does not say.
  Result<bool> add_byte_level() {
    constexpr std::string_view kPre = "tokenizer.ggml.pre";
    constexpr std::string_view kMerges = "tokenizer.ggml.merges";
    RUDDER_TRY(const std::string_view pre, gguf_.text(kPre));
    const auto found = std::ranges::find_if(gguf_pieces(), [&](const GgufPieces& pattern) {
      return std::ranges::find(pattern.names, pre) != pattern.names.end();
    });
    if (found == gguf_pieces().end()) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("how the pre-tokenizer '{}' cuts a text is not known", pre),
                  gguf_.where(kPre));
    }
    json::array steps;
    for (const std::string_view pattern : found->patterns) steps.push_back(isolated(pattern));
    steps.push_back(byte_level(found->is_gpt2));
    out_["normalizer"] = found->composes ? json::value{{"type", "NFC"}} : json::value();
    out_["pre_tokenizer"] = json::object{{"type", "Sequence"}, {"pretokenizers", steps}};
    out_["decoder"] = byte_level(true);
    RUDDER_TRY(const std::vector<std::string_view> merges, gguf_.texts(kMerges));
    json::array pairs;
    pairs.reserve(merges.size());
    for (const std::string_view merge : merges) {
      const size_t space = merge.find(' ', 1);  // a token may begin with a space, none is empty
      if (space == std::string_view::npos || space + 1 == merge.size() ||
          find_invalid_utf8(merge)) {
        return corrupt(fmt::format("merge {} is no pair of tokens", pairs.size()), kMerges);
      }
      pairs.push_back(
          json::array{json::string(merge.substr(0, space)), json::string(merge.substr(space + 1))});
    }
    out_["model"] = json::object{{"type", "BPE"},
                                 {"unk_token", nullptr},
                                 {"fuse_unk", false},
                                 {"byte_fallback", false},
                                 {"ignore_merges", found->ignores_merges},
                                 {"vocab", vocabulary_object()},
                                 {"merges", std::move(pairs)}};
    return found->adds_bos;
  }

  // SentencePiece merges the pair whose token scores most, so a token's score is the rank of every
  // pair that makes it; of one token's pairs the longest first part goes first, as in the files
  // that transformers makes of SentencePiece's.
  Result<json::array> merges_by_score() const {
    constexpr std::string_view kScores = "tokenizer.ggml.scores";
    RUDDER_TRY(const std::vector<double> scores, gguf_.numbers(kScores));
    if (scores.size() != vocabulary_.tokens.size()) {
      return corrupt(
          fmt::format("it has {} scores for {} tokens", scores.size(), vocabulary_.tokens.size()),
          kScores);
    }
    const auto is_plain = [&](std::string_view text) {
      const auto at = vocabulary_.ids.find(text);
      return at != vocabulary_.ids.end() &&
             vocabulary_.type(static_cast<size_t>(at->second)) == kNormal;
    };
    std::vector<std::tuple<double, int64_t, size_t>> order;  // less is earlier: -score, -cut, id
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      const std::string_view token = vocabulary_.tokens[id];
      if (vocabulary_.type(id) != kNormal) continue;
      for (size_t cut = 1; cut < token.size(); ++cut) {
        const bool is_inside = (static_cast<unsigned char>(token[cut]) & 0xC0) == 0x80;
        if (is_inside || !is_plain(token.substr(0, cut)) || !is_plain(token.substr(cut))) continue;
        order.emplace_back(-scores[id], -static_cast<int64_t>(cut), id);
      }
    }
    std::ranges::sort(order);
    json::array out;
    out.reserve(order.size());
    for (const auto& [score, cut, id] : order) {
      const auto at = static_cast<size_t>(-cut);
      const std::string_view token = vocabulary_.tokens[id];
      out.push_back(json::array{json::string(token.substr(0, at)), json::string(token.substr(at))});
    }
    return out;
  }

  Result<void> add_sentencepiece() {
    RUDDER_TRY(const bool has_prefix, gguf_.boolean_or("tokenizer.ggml.add_space_prefix", true));
    RUDDER_TRY(json::array merges, merges_by_score());
    json::array normalizers = {replacing(" ", kMetaspace)};
    json::array decoders = {replacing(kMetaspace, " "), json::object{{"type", "ByteFallback"}},
                            json::object{{"type", "Fuse"}}};
    if (has_prefix) {
      normalizers.insert(normalizers.begin(),
                         json::object{{"type", "Prepend"}, {"prepend", json::string(kMetaspace)}});
      decoders.push_back(
          json::object{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    out_["normalizer"] =
        json::object{{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
    out_["pre_tokenizer"] = nullptr;
    out_["decoder"] = json::object{{"type", "Sequence"}, {"decoders", std::move(decoders)}};
    RUDDER_TRY(const std::optional<int32_t> unknown, id_of("unknown"));
    json::value unknown_token;
    if (unknown) unknown_token = json::string(token(*unknown));
    out_["model"] = json::object{{"type", "BPE"},
                                 {"unk_token", unknown_token},
                                 {"fuse_unk", true},
                                 {"byte_fallback", true},
                                 {"ignore_merges", false},
                                 {"vocab", vocabulary_object()},
                                 {"merges", std::move(merges)}};
    return {};
  }

  // Control tokens, the unknown one, and tokens that are found in a text before anything else.
  void add_added_tokens() {
    json::array added;
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      const int type = vocabulary_.type(id);
      if (type != kControl && type != kUnknown && type != kUserDefined) continue;
      added.push_back(json::object{{"id", static_cast<int64_t>(id)},
                                   {"content", json::string(vocabulary_.tokens[id])},
                                   {"single_word", false},
                                   {"lstrip", false},
                                   {"rstrip", false},
                                   {"normalized", false},
                                   {"special", type != kUserDefined}});
    }
    out_["added_tokens"] = std::move(added);
  }

  std::string_view token(int32_t id) const { return vocabulary_.tokens[static_cast<size_t>(id)]; }

  Result<std::optional<int32_t>> id_of(std::string_view name) const {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    if (!gguf_.has(key)) return std::optional<int32_t>();
    RUDDER_TRY(const int64_t id, gguf_.integer(key, 0, std::ssize(vocabulary_.tokens) - 1));
    return std::optional<int32_t>(static_cast<int32_t>(id));
  }

  Result<void> add_ends(bool adds_bos) {
    json::object specials;
    const auto piece = [&](int32_t id) {
      const json::string text(token(id));
      specials[text] =
          json::object{{"id", text}, {"ids", json::array{id}}, {"tokens", json::array{text}}};
      return json::object{{"SpecialToken", json::object{{"id", text}, {"type_id", 0}}}};
    };
    json::array single;
    RUDDER_TRY(adds_bos, gguf_.boolean_or("tokenizer.ggml.add_bos_token", adds_bos));
    RUDDER_TRY(const bool adds_eos, gguf_.boolean_or("tokenizer.ggml.add_eos_token", false));
    RUDDER_TRY(const std::optional<int32_t> bos, id_of("bos"));
    RUDDER_TRY(const std::optional<int32_t> eos, id_of("eos"));
    if (adds_bos && bos) single.push_back(piece(*bos));
    single.push_back(json::object{{"Sequence", json::object{{"id", "A"}, {"type_id", 0}}}});
    if (adds_eos && eos) single.push_back(piece(*eos));
    out_["post_processor"] = json::object{
        {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", specials}};
    return {};
  }

  Result<std::string> config() const {
    json::object out;
    for (const auto& [name, target] :
         {std::pair("bos", "bos_token"), std::pair("eos", "eos_token"),
          std::pair("unknown", "unk_token"), std::pair("padding", "pad_token")}) {
      RUDDER_TRY(const std::optional<int32_t> id, id_of(name));
      if (id) out[target] = json::string(token(*id));
    }
    constexpr std::string_view kTemplate = "tokenizer.chat_template";
    if (gguf_.has(kTemplate)) {
      RUDDER_TRY(const std::string_view text, gguf_.text(kTemplate));
      if (find_invalid_utf8(text)) return corrupt("it is no UTF-8", kTemplate);
      out["chat_template"] = json::string(text);
    }
    return json::serialize(out);
  }

  // The end of a text, of a turn, and of a message to a tool.
  Result<std::string> generation_config() const {
    json::array ends;
    for (const char* const name : {"eos", "eot", "eom"}) {
      RUDDER_TRY(const std::optional<int32_t> id, id_of(name));
      if (id) ends.push_back(*id);
    }
    return json::serialize(json::object{{"eos_token_id", std::move(ends)}});
  }

  const GgufFile& gguf_;
  Vocabulary vocabulary_;
  json::object out_ = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
};

}  // namespace

Result<GgufTokenizerFiles> gguf_tokenizer(const GgufFile& metadata) {
  return GgufTokenizer(metadata).make();
}

}  // namespace rudder::model
