#include "rudder/draft/lookahead_pool.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::draft {

void LookaheadPool::add(std::span<const int32_t> ngram, bool may_grow) {
  RUDDER_CHECK(ngram.size() == tail_ + 1, "an n-gram of {} tokens", ngram.size());
  const std::span<const int32_t> tail = ngram.subspan(1);
  const auto found = tails_.find(ngram.front());
  if (found == tails_.end()) {
    if (!may_grow) return;
    Tails& tails = tails_[ngram.front()];
    tails.assign(tail.begin(), tail.end());
    tail_bytes_ += static_cast<int64_t>(tails.capacity() * sizeof(int32_t));
    return;
  }
  Tails& tails = found->second;
  auto at = tails.begin();
  const auto step = static_cast<ptrdiff_t>(tail_);
  while (at != tails.end() && !std::equal(tail.begin(), tail.end(), at)) at += step;
  if (at == tails.end()) {
    const bool is_full = std::ssize(tails) == most_ * step;
    if (!is_full && may_grow) {
      tail_bytes_ -= static_cast<int64_t>(tails.capacity() * sizeof(int32_t));
      tails.insert(tails.end(), tail.begin(), tail.end());
      tail_bytes_ += static_cast<int64_t>(tails.capacity() * sizeof(int32_t));
    }
    at = tails.end() - step;
    std::ranges::copy(tail, at);
  }
  std::rotate(tails.begin(), at, at + step);
}

std::span<const int32_t> LookaheadPool::find(int32_t first) const {
  const auto found = tails_.find(first);
  return found == tails_.end() ? std::span<const int32_t>() : found->second;
}

int64_t LookaheadPool::bytes() const {
  return static_cast<int64_t>(tails_.bucket_count()) * kEntryBytes + tail_bytes_;
}

// A table that is full doubles, and so does a list.
int64_t LookaheadPool::bytes_after() const {
  constexpr int64_t kLeastEntries = 32;
  const int64_t of_list = 2 * most_ * static_cast<int64_t>(tail_ * sizeof(int32_t));
  if (tails_.size() < tails_.max_load()) return bytes() + of_list;
  return bytes() + of_list + (std::ssize(tails_) + kLeastEntries) * 3 * kEntryBytes;
}

}  // namespace rudder::draft
