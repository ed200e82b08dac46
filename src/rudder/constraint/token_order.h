// TokenOrder: the tokens of a vocabulary in the order of their bytes, so that a walk over them
// processes a common prefix once. Made once at start; immutable, any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rudder::constraint {

struct OrderedToken {
  std::string_view bytes;
  int32_t id = 0;
  // Bytes in common with the one before.
  uint32_t common = 0;
};

class TokenOrder {
 public:
  static constexpr size_t kShort = 16;  // bytes; few tokens have more

  struct List {
    std::vector<OrderedToken> tokens;
    std::array<size_t, 257> first = {};  // by first byte: where its tokens begin
  };

  // Tokens with their ids, in the order of their bytes; they outlive this.
  explicit TokenOrder(const std::vector<std::pair<int32_t, std::string>>& sorted);

  const List& short_tokens() const { return short_; }
  const List& long_tokens() const { return long_; }
  // Tokens with a quote that is not their first byte.
  const std::vector<OrderedToken>& quoting() const { return quoting_; }
  // What stands behind the quotes of tokens, each once; `id` is the place. The empty one is first.
  const std::vector<OrderedToken>& after_quotes() const { return after_quotes_; }
  int32_t after_quote(std::string_view bytes) const { return after_index_.at(bytes); }

 private:
  List short_;
  List long_;
  std::vector<OrderedToken> quoting_;
  std::vector<OrderedToken> after_quotes_;
  std::unordered_map<std::string_view, int32_t> after_index_;
};

inline uint32_t bytes_in_common(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<uint32_t>(end - a.begin());
}

}  // namespace rudder::constraint
