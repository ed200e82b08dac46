#include "rudder/constraint/mask_memo.h"

#include <iterator>
#include <utility>

namespace rudder::constraint {

size_t MaskMemo::Entry::bytes() const {
  constexpr size_t kNodes = 192;  // of the list and of the index, about
  return key.size() + words->size() * sizeof(Word) + kNodes;
}

std::optional<size_t> MaskMemo::add_to(std::span<uint32_t> mask, std::string_view key) {
  std::shared_ptr<const Words> words;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.lookups;
    const auto found = index_.find(key);
    if (found == index_.end()) return std::nullopt;
    ++stats_.hits;
    entries_.splice(entries_.begin(), entries_, found->second);
    words = found->second->words;
  }
  for (const Word& word : *words) mask[word.at] |= word.bits;
  return words->size();
}

void MaskMemo::keep(std::span<const uint32_t> mask, std::string_view key) {
  Words words;
  for (size_t at = 0; at < mask.size(); ++at) {
    if (mask[at] != 0) words.push_back({.at = static_cast<uint32_t>(at), .bits = mask[at]});
  }
  words.shrink_to_fit();
  std::list<Entry> made;
  made.push_front({.key = std::string(key), .words = std::make_shared<Words>(std::move(words))});
  const size_t bytes = made.front().bytes();
  const std::lock_guard lock(mutex_);
  // Another thread may have come to an equal state meanwhile.
  if (bytes > max_bytes_ || index_.contains(key)) return;
  entries_.splice(entries_.begin(), made);
  index_.emplace(entries_.front().key, entries_.begin());
  stats_.bytes += bytes;
  while (stats_.bytes > max_bytes_) {
    const auto oldest = std::prev(entries_.end());
    stats_.bytes -= oldest->bytes();
    index_.erase(oldest->key);
    entries_.erase(oldest);
  }
}

MaskMemo::Stats MaskMemo::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace rudder::constraint
