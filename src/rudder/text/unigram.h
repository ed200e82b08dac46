// Unigram: the model of a tokenizer.json in which every token has a score and a piece of text
// becomes the tokens whose scores have the largest sum (SentencePiece's unigram model; transformers
// writes SentencePiece vocabularies of GGUF files so). What no token spells becomes bytes, where
// the vocabulary has them, or the unknown token, one for a run. Owned by the Tokenizer, called by
// encode. Immutable: safe from any thread.
#pragma once

#include <array>
#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/text/token_table.h"

namespace rudder::text {

class Unigram {
 public:
  // `model` is the file's "model". kCorruptFile, kUnsupported (names the field).
  static Result<Unigram> parse(const boost::json::value& model);
  Unigram(Unigram&&) noexcept = default;
  Unigram& operator=(Unigram&&) noexcept = default;

  // Appends the ids of `piece` (valid UTF-8); past `max_ids` in `out` the rest may be left out.
  void encode(std::string_view piece, std::vector<int32_t>& out, size_t max_ids = SIZE_MAX) const;

  const TokenTable& tokens() const { return tokens_; }
  int32_t find(std::string_view token) const { return index_.find(token); }
  int32_t count() const { return tokens_.size(); }

 private:
  // How the best way to the end of a prefix ends.
  struct Step {
    double score = 0;
    int32_t id = -1;     // -1: no way yet
    uint32_t begin = 0;  // of the last token
  };
  struct Edge {
    uint32_t from = UINT32_MAX;  // node << 8 | byte
    uint32_t to = 0;
  };
  Unigram() = default;

  Result<void> parse_vocab(const boost::json::object& model);
  void add_to_trie(int32_t id);
  uint32_t child(uint32_t node, uint8_t byte) const;  // 0: none
  Edge& edge_of(uint32_t from);

  void find_steps(std::string_view piece, std::vector<Step>& steps) const;
  void append_unknown(std::string_view run, std::vector<int32_t>& out) const;

  TokenTable tokens_;
  StringIndex index_;
  std::vector<double> scores_;         // by id
  std::vector<Edge> edges_;            // of the trie of all tokens: open addressing
  std::vector<int32_t> ends_;          // by node: the token that ends there, or -1
  std::array<int32_t, 256> byte_ids_;  // of "<0xAB>", -1 if there is none
  double unknown_score_ = 0;
  int32_t unknown_id_ = 0;
  bool byte_fallback_ = false;
  size_t longest_ = 1;  // token, in bytes
};

}  // namespace rudder::text
