// TokenOrder: the tokens of a vocabulary in the order of their bytes, so that a walk over them
// processes a common prefix once. Made once at start; immutable, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rudder/constraint/token_trie.h"

namespace rudder::constraint {

class TokenOrder {
 public:
  static constexpr size_t kShort = 16;  // bytes; few tokens have more

  using Texts = std::vector<std::pair<std::string_view, int32_t>>;

  // Tokens that are text with their ids, in the order of their bytes, which outlive this.
  explicit TokenOrder(const Texts& sorted);

  const TokenTrie& trie() const { return trie_; }
  const TokenTrie& short_tokens() const { return short_; }
  const TokenTrie& long_tokens() const { return long_; }
  // What stands behind the quotes of tokens, each once; the id is the index. The empty one, which
  // the trie has not, is 0.
  const TokenTrie& after_quotes() const { return after_quotes_; }
  int32_t num_after_quotes() const { return static_cast<int32_t>(after_index_.size()); }
  int32_t after_quote(std::string_view bytes) const { return after_index_.at(bytes); }

 private:
  Texts texts_after_quotes(const Texts& sorted);

  TokenTrie trie_;
  TokenTrie short_;
  TokenTrie long_;
  std::unordered_map<std::string_view, int32_t> after_index_;
  TokenTrie after_quotes_;
};

}  // namespace rudder::constraint
