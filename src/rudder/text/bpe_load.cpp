// Reading the "model" of a tokenizer.json into a Bpe.
#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/json.hpp>

#include "rudder/base/utf8.h"
#include "rudder/text/bpe.h"
#include "rudder/text/json_fields.h"
#include "rudder/text/unicode.h"

namespace rudder::text {
namespace {

std::string_view view(const boost::json::string& text) {
  return {text.data(), text.size()};
}

using MergeList = std::vector<std::pair<std::string_view, std::string_view>>;

// A merge is "left right" or ["left", "right"].
Result<MergeList> read_merges(const boost::json::object& model) {
  const auto* field = model.if_contains("merges");
  if (field == nullptr || !field->is_array()) {
    return fail(ErrorCode::kCorruptFile, "must be a list", "model.merges");
  }
  MergeList merges;
  merges.reserve(field->get_array().size());
  for (const auto& item : field->get_array()) {
    if (item.is_string()) {
      const std::string_view line = view(item.get_string());
      if (line.starts_with("#version")) continue;
      const size_t space = line.find(' ');
      if (space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos) {
        merges.emplace_back(line.substr(0, space), line.substr(space + 1));
        continue;
      }
    } else if (item.is_array() && item.get_array().size() == 2 && item.get_array()[0].is_string() &&
               item.get_array()[1].is_string()) {
      merges.emplace_back(view(item.get_array()[0].get_string()),
                          view(item.get_array()[1].get_string()));
      continue;
    }
    return fail(ErrorCode::kCorruptFile, "a merge must be two tokens",
                fmt::format("model.merges[{}]", merges.size()));
  }
  return merges;
}

Result<void> refuse_affix(const boost::json::object& model, std::string_view key) {
  const auto* field = model.if_contains(key);
  if (field == nullptr || field->is_null()) return {};
  if (field->is_string() && field->get_string().empty()) return {};
  return fail(ErrorCode::kUnsupported, fmt::format("BPE with a {} is not supported", key),
              join_path("model", key));
}

}  // namespace

Result<Bpe> Bpe::parse(const boost::json::value& model, bool pieces_are_bytes) {
  static std::atomic<uint64_t> next_serial{1};
  RUDDER_TRY(const auto* object, as_object(model, "model"));
  if (object->if_contains("type") != nullptr) {  // files of 2020 and before have none
    RUDDER_TRY(const std::string type, string_field(*object, "type", "model"));
    if (type != "BPE") return unsupported_component("model", type, "model.type");
  }
  RUDDER_TRY_VOID(refuse_affix(*object, "continuing_subword_prefix"));
  RUDDER_TRY_VOID(refuse_affix(*object, "end_of_word_suffix"));
  if (const auto* dropout = object->if_contains("dropout");
      dropout != nullptr && !dropout->is_null() &&
      !(dropout->is_number() && dropout->to_number<double>() == 0.0)) {
    return fail(ErrorCode::kUnsupported, "BPE with dropout is not supported", "model.dropout");
  }
  Bpe bpe;
  bpe.serial_ = next_serial.fetch_add(1) * 0x9E3779B97F4A7C15;
  bpe.pieces_are_bytes_ = pieces_are_bytes;
  RUDDER_TRY(bpe.byte_fallback_, bool_field(*object, "byte_fallback", false, "model"));
  RUDDER_TRY(bpe.fuse_unk_, bool_field(*object, "fuse_unk", false, "model"));
  RUDDER_TRY(bpe.ignore_merges_, bool_field(*object, "ignore_merges", false, "model"));
  RUDDER_TRY_VOID(bpe.parse_vocab(*object));
  if (const auto* unk = object->if_contains("unk_token"); unk != nullptr && !unk->is_null()) {
    RUDDER_TRY(const std::string token, string_field(*object, "unk_token", "model"));
    bpe.unk_id_ = bpe.find(token);
    if (bpe.unk_id_ < 0) {
      return fail(ErrorCode::kCorruptFile, fmt::format("\"{}\" is not in the vocabulary", token),
                  "model.unk_token");
    }
  }
  RUDDER_TRY_VOID(bpe.parse_merges(*object));
  return bpe;
}

Result<void> Bpe::parse_vocab(const boost::json::object& model) {
  const auto* field = model.if_contains("vocab");
  if (field == nullptr || !field->is_object()) {
    return fail(ErrorCode::kCorruptFile, "must be an object", "model.vocab");
  }
  const auto& vocab = field->get_object();
  for (const auto& [token, id] : vocab) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > kMaxTokenId) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("the id of \"{}\" is not an integer in [0, {}]",
                              std::string_view(token), kMaxTokenId),
                  "model.vocab");
    }
    const auto value = static_cast<int32_t>(id.get_int64());
    if (tokens_.contains(value)) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("id {} is given to \"{}\" and to \"{}\"", value, tokens_.get(value),
                              std::string_view(token)),
                  "model.vocab");
    }
    tokens_.set(value, token);
  }
  count_ = static_cast<int32_t>(vocab.size());
  index_.reserve(vocab.size());
  for (int32_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_.contains(id)) continue;
    const std::string_view token = tokens_.get(id);
    index_.insert(token, id);
    const auto is_first = [](char byte) {
      return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
    };
    const auto chars = static_cast<size_t>(std::count_if(token.begin(), token.end(), is_first));
    max_token_chars_ = std::max(max_token_chars_, chars);
  }
  char_ids_.assign(0x10000, -1);
  for (int32_t id = 0; id < tokens_.size(); ++id) {
    const std::string_view token = tokens_.get(id);
    if (token.empty() || utf8_length(static_cast<unsigned char>(token[0])) != token.size())
      continue;
    size_t pos = 0;
    const char32_t c = next_char(token, pos);
    if (c < char_ids_.size()) char_ids_[c] = id;
  }
  for (size_t byte = 0; byte < fallback_ids_.size(); ++byte) {
    fallback_ids_[byte] = find(fmt::format("<0x{:02X}>", byte));
  }
  if (pieces_are_bytes_ && ignore_merges_) index_pieces();
  return {};
}

// The tokens that a byte piece can spell, by their bytes.
void Bpe::index_pieces() {
  std::string bytes;
  for (int32_t id = 0; id < tokens_.size(); ++id) {
    const std::string_view token = tokens_.get(id);
    bytes.clear();
    bool spellable = !token.empty();
    for (size_t pos = 0; pos < token.size() && spellable;) {
      const auto byte = char_byte(next_char(token, pos));
      spellable = byte.has_value();
      if (byte) bytes.push_back(static_cast<char>(*byte));
    }
    if (spellable) byte_tokens_.set(id, bytes);
  }
  byte_index_.reserve(static_cast<size_t>(count_));
  for (int32_t id = 0; id < byte_tokens_.size(); ++id) {
    if (byte_tokens_.contains(id)) byte_index_.insert(byte_tokens_.get(id), id);
  }
}

Result<void> Bpe::parse_merges(const boost::json::object& model) {
  RUDDER_TRY(const MergeList list, read_merges(model));
  merges_.assign(std::bit_ceil(list.size() * 2 + 2), Merge{});
  std::string joined;
  for (size_t rank = 0; rank < list.size(); ++rank) {
    const auto& [left, right] = list[rank];
    const auto lookup = [&](std::string_view token) -> Result<int32_t> {
      const int32_t id = find(token);
      if (id >= 0) return id;
      return fail(ErrorCode::kCorruptFile, fmt::format("\"{}\" is not in the vocabulary", token),
                  fmt::format("model.merges[{}]", rank));
    };
    joined.assign(left).append(right);
    RUDDER_TRY(const int32_t left_id, lookup(left));
    RUDDER_TRY(const int32_t right_id, lookup(right));
    RUDDER_TRY(const int32_t id, lookup(joined));
    index_merge(static_cast<uint64_t>(left_id) << 32 | static_cast<uint32_t>(right_id),
                static_cast<uint32_t>(rank), id);
  }
  if (!pieces_are_bytes_) index_joints(list);
  return {};
}

}  // namespace rudder::text
