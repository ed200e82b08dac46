// Bpe: the byte-pair-encoding model of a tokenizer.json: a piece of text in, token ids out, by
// merging the neighbouring pair of lowest rank (leftmost first) until none is left.
// Owned by the Tokenizer, called by encode. Immutable: safe from any thread (each thread keeps a
// bounded cache of short pieces, about 1 MB, shared by all tokenizers).
#pragma once

#include <array>
#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/text/token_table.h"

namespace rudder::text {

// Sanity bound on token ids in a file, so that a wrong one cannot ask for gigabytes.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 24) - 1;

class Bpe {
 public:
  // `model` is the file's "model". `pieces_are_bytes`: pieces come as raw bytes and the vocabulary
  // spells them in GPT-2's byte alphabet. kCorruptFile, kUnsupported (names the field).
  static Result<Bpe> parse(const boost::json::value& model, bool pieces_are_bytes);
  Bpe(Bpe&&) noexcept = default;
  Bpe& operator=(Bpe&&) noexcept = default;

  // Appends the ids of `piece` (valid UTF-8 before any byte mapping); past `max_ids` in `out` the
  // rest of it may be left out.
  void encode(std::string_view piece, std::vector<int32_t>& out, size_t max_ids = SIZE_MAX) const;

  const TokenTable& tokens() const { return tokens_; }
  int32_t find(std::string_view token) const { return index_.find(token); }
  int32_t count() const { return count_; }  // entries, not one past the largest id

 private:
  struct Merge {
    uint64_t pair = UINT64_MAX;  // left << 32 | right
    uint32_t rank = 0;
    int32_t id = -1;
  };
  Bpe() = default;

  Result<void> parse_vocab(const boost::json::object& model);
  Result<void> parse_merges(const boost::json::object& model);
  void index_pieces();
  void index_merge(uint64_t pair, uint32_t rank, int32_t id);
  void index_joints(const std::vector<std::pair<std::string_view, std::string_view>>& merges);

  const Merge* find_merge(int32_t left, int32_t right) const;
  // The token of one character, -1 if it has none.
  int32_t char_id(char32_t c, std::string_view spelled) const;
  bool may_join(char32_t left, char32_t right) const;
  void encode_chunk(std::string_view chunk, std::vector<int32_t>& out, size_t max_ids) const;
  void merge_chunk(std::string_view chunk, std::vector<int32_t>& out, size_t max_ids) const;
  void split_symbols(std::string_view chunk, std::vector<int32_t>& symbols) const;
  void merge_few(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) const;
  void merge_many(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) const;

  uint64_t serial_ = 0;  // marks this model's entries in the thread's cache
  TokenTable tokens_;
  StringIndex index_;
  TokenTable byte_tokens_;  // the tokens as bytes, where pieces are bytes
  StringIndex byte_index_;  // whole pieces for ignore_merges, where pieces are bytes
  int32_t count_ = 0;
  std::vector<Merge> merges_;      // open addressing
  std::vector<uint64_t> joints_;   // open addressing: neighbouring characters inside some merge
  std::vector<int32_t> char_ids_;  // by code point below 0x10000, -1 if no token
  std::array<int32_t, 256> fallback_ids_{};  // of "<0xAB>", -1 if there is none
  bool pieces_are_bytes_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  int32_t unk_id_ = -1;
  size_t max_token_chars_ = 1;  // of the longest token
};

}  // namespace rudder::text
