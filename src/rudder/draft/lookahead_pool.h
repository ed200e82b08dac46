// LookaheadPool: n-grams of one sequence by their first token, for each first token the last ones
// that were added. One thread.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <span>
#include <vector>

namespace rudder::draft {

class LookaheadPool {
 public:
  // N-grams of `n` tokens, at least 2; of one first token at most `most`.
  LookaheadPool(int32_t n, int32_t most) : tail_(static_cast<size_t>(n - 1)), most_(most) {}

  // Puts it before the others of its first token; the last of these goes where they are too many.
  // Without `may_grow` it takes the place of another one, or is not added.
  void add(std::span<const int32_t> ngram, bool may_grow);

  // What followed the token, n - 1 tokens each, one behind another, the last added first.
  std::span<const int32_t> find(int32_t first) const;

  int64_t bytes() const;
  // What bytes() may be at most once one more is added.
  int64_t bytes_after() const;

 private:
  using Tails = std::vector<int32_t>;
  static constexpr int64_t kEntryBytes = sizeof(std::pair<const int32_t, Tails>) + 1;

  size_t tail_;
  int32_t most_;
  boost::unordered_flat_map<int32_t, Tails> tails_;
  int64_t tail_bytes_ = 0;
};

}  // namespace rudder::draft
