// TokenOrder: a vocabulary's tokens in the order of their bytes, so that a walk over them does the
// work of common beginnings once. Made once at start, immutable, any thread.
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
  // Tokens with their ids, in the order of their bytes; they outlive this.
  explicit TokenOrder(const std::vector<std::pair<int32_t, std::string>>& sorted);

  const std::vector<OrderedToken>& tokens() const { return tokens_; }
  // Those that begin with `byte`.
  std::pair<size_t, size_t> beginning_with(uint8_t byte) const {
    return {first_[byte], first_[byte + size_t{1}]};
  }
  // Tokens with a quote that is not their first byte.
  const std::vector<OrderedToken>& quoting() const { return quoting_; }
  // What stands behind the quotes of tokens, each once; `id` is the place. The empty one is first.
  const std::vector<OrderedToken>& after_quotes() const { return after_quotes_; }
  int32_t after_quote(std::string_view bytes) const { return after_index_.at(bytes); }

 private:
  std::vector<OrderedToken> tokens_;
  std::array<size_t, 257> first_ = {};
  std::vector<OrderedToken> quoting_;
  std::vector<OrderedToken> after_quotes_;
  std::unordered_map<std::string_view, int32_t> after_index_;
};

inline uint32_t bytes_in_common(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<uint32_t>(end - a.begin());
}

}  // namespace rudder::constraint
