#include "rudder/text/token_table.h"

#include <bit>
#include <cstring>

namespace rudder::text {

uint64_t hash_bytes(std::string_view text) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
  uint64_t hash = text.size() * kMultiplier;
  const char* data = text.data();
  size_t left = text.size();
  for (; left >= 8; left -= 8, data += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, 8);
    hash = std::rotl((hash ^ word) * kMultiplier, 29);
  }
  uint64_t word = 0;
  if (left > 0) std::memcpy(&word, data, left);
  hash = (hash ^ word) * kMultiplier;
  return hash ^ hash >> 32;
}

void StringIndex::reserve(size_t count) {
  slots_.assign(std::bit_ceil(count * 2 + 2), Slot{});
  count_ = 0;
}

bool StringIndex::insert(std::string_view key, int32_t id) {
  if (slots_.size() < count_ * 2 + 2) {
    std::vector<Slot> old = std::move(slots_);
    reserve(count_ * 2 + 2);
    for (const Slot& slot : old) {
      if (slot.id >= 0) insert(slot.key, slot.id);
    }
  }
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash_bytes(key) & mask;; i = (i + 1) & mask) {
    if (slots_[i].id < 0) {
      slots_[i] = {key, id};
      ++count_;
      return true;
    }
    if (slots_[i].key == key) return false;
  }
}

int32_t StringIndex::find(std::string_view key) const {
  if (slots_.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash_bytes(key) & mask;; i = (i + 1) & mask) {
    if (slots_[i].id < 0) return -1;
    if (slots_[i].key == key) return slots_[i].id;
  }
}

void TokenTable::set(int32_t id, std::string_view text) {
  if (static_cast<size_t>(id) >= spans_.size()) spans_.resize(static_cast<size_t>(id) + 1);
  spans_[id].begin = static_cast<uint32_t>(bytes_.size());
  spans_[id].size = static_cast<uint32_t>(text.size()) & 0x7FFFFFFF;
  spans_[id].present = 1;
  bytes_.insert(bytes_.end(), text.begin(), text.end());
}

}  // namespace rudder::text
