// NgramIndex: where the n-grams of one text stand, for n from `min_n` to `max_n`. The text grows at
// its end; a token is indexed in O(max_n - min_n + 1), whatever the length of the text. The text
// itself is the caller's, and given with every call. One thread.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <span>
#include <vector>

namespace rudder::draft {

class NgramIndex {
 public:
  // 1 <= min_n <= max_n.
  NgramIndex(int32_t min_n, int32_t max_n) : min_n_(min_n), max_n_(max_n) {}

  // `tokens`: the text as it was, and what has come since. Indexes at most `most` tokens. True when
  // all of them are indexed.
  bool extend(std::span<const int32_t> tokens, int64_t most);

  // Appends to `draft` the `count` tokens that followed the last earlier occurrence of the longest
  // n-gram at the end of `tokens`, all of them indexed. An occurrence that reaches the end goes on
  // with what was appended, so that a text that repeats a pattern is drafted as far as is asked.
  // Appends nothing where no n-gram of the end occurs earlier.
  void append_guess(std::span<const int32_t> tokens, int32_t count,
                    std::vector<int32_t>* draft) const;

  int64_t bytes() const;
  // What bytes() may be at most once `num_tokens` more are indexed.
  int64_t bytes_after(int64_t num_tokens) const;

 private:
  // Where the text goes on behind the last occurrence, by hash of the n-gram and n. Two n-grams of
  // one hash hide each other; what is found is compared, so that nothing else comes of it.
  using Table = boost::unordered_flat_map<uint64_t, int32_t>;

  int32_t min_n_;
  int32_t max_n_;
  int64_t num_indexed_ = 0;
  Table follows_;
};

}  // namespace rudder::draft
