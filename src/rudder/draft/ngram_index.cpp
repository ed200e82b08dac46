#include "rudder/draft/ngram_index.h"

#include <algorithm>

namespace rudder::draft {
namespace {

// Hashes of the n-grams that end at `end`, n growing by one token a call.
class TailHash {
 public:
  explicit TailHash(std::span<const int32_t> tokens, int64_t end) : tokens_(tokens), at_(end) {}

  uint64_t grow() {
    hash_ ^= static_cast<uint32_t>(tokens_[static_cast<size_t>(--at_)]) + uint64_t{1};
    hash_ *= 0x9e37'79b9'7f4a'7c15;
    hash_ ^= hash_ >> 29;
    return hash_;
  }

 private:
  std::span<const int32_t> tokens_;
  int64_t at_;
  uint64_t hash_ = 0x243f'6a88'85a3'08d3;
};

constexpr int64_t kNgramBytes = sizeof(uint64_t) + sizeof(int64_t) + 1;  // of a table, aligned
constexpr int64_t kLeastEntries = 32;

}  // namespace

// The n-grams in front of a token are entered with the token: they have something that follows.
bool NgramIndex::extend(std::span<const int32_t> tokens, int64_t most) {
  const int64_t end = std::min(std::ssize(tokens), num_indexed_ + most);
  for (; num_indexed_ < end; ++num_indexed_) {
    TailHash hash(tokens, num_indexed_);
    const auto longest = static_cast<int32_t>(std::min<int64_t>(max_n_, num_indexed_));
    for (int32_t n = 1; n <= longest; ++n) {
      const uint64_t key = hash.grow();
      if (n >= min_n_) follows_[key] = static_cast<int32_t>(num_indexed_);
    }
  }
  return num_indexed_ == std::ssize(tokens);
}

void NgramIndex::append_guess(std::span<const int32_t> tokens, int32_t count,
                              std::vector<int32_t>* draft) const {
  const int64_t len = std::ssize(tokens);
  int64_t from = -1;
  TailHash hash(tokens, len);
  const auto longest = static_cast<int32_t>(std::min<int64_t>(max_n_, len - 1));
  for (int32_t n = 1; n <= longest; ++n) {
    const uint64_t key = hash.grow();
    if (n < min_n_) continue;
    const auto found = follows_.find(key);
    if (found == follows_.end()) break;  // then no longer one does either
    const auto size = static_cast<size_t>(n);
    const auto before = tokens.subspan(static_cast<size_t>(found->second) - size, size);
    if (std::ranges::equal(before, tokens.last(size))) from = found->second;
  }
  if (from < 0) return;
  const size_t begin = draft->size();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = from + i;
    draft->push_back(at < len ? tokens[static_cast<size_t>(at)]
                              : (*draft)[begin + static_cast<size_t>(at - len)]);
  }
}

int64_t NgramIndex::bytes() const {
  return static_cast<int64_t>(follows_.bucket_count()) * kNgramBytes;
}

// A table that is full doubles.
int64_t NgramIndex::bytes_after(int64_t num_tokens) const {
  const int64_t entries = std::ssize(follows_) + num_tokens * (max_n_ - min_n_ + 1);
  return std::max(bytes(), (entries + kLeastEntries) * 3 * kNgramBytes);
}

}  // namespace rudder::draft
