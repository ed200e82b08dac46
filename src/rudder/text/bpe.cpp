#include "rudder/text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "rudder/base/utf8.h"
#include "rudder/text/unicode.h"

namespace rudder::text {
namespace {

constexpr size_t kFewSymbols = 40;  // below this a scan for the best pair beats a heap

// Ids of short pieces seen before, direct-mapped. One for each thread, so that encode takes no
// lock.
struct PieceCache {
  static constexpr size_t kSlots = size_t{1} << 14;
  static constexpr size_t kMaxBytes = 22;
  static constexpr size_t kMaxIds = 8;
  struct Slot {
    uint64_t serial = 0;
    uint8_t bytes = 0;
    uint8_t ids = 0;
    char text[kMaxBytes];
    int32_t id[kMaxIds];
  };
  std::vector<Slot> slots{kSlots};

  Slot& slot(uint64_t serial, std::string_view text) {
    return slots[(hash_bytes(text) ^ serial) % kSlots];
  }
};

PieceCache& piece_cache() {
  thread_local PieceCache cache;
  return cache;
}

uint64_t mix(uint64_t key) {
  key *= 0x9E3779B97F4A7C15;
  return key ^ key >> 29;
}

uint64_t joint_key(char32_t left, char32_t right) {
  return static_cast<uint64_t>(left) << 32 | right;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

int32_t Bpe::char_id(char32_t c, std::string_view spelled) const {
  return c < char_ids_.size() ? char_ids_[c] : index_.find(spelled);
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t i = mix(key) & mask;; i = (i + 1) & mask) {
    if (merges_[i].pair == key) return &merges_[i];
    if (merges_[i].pair == UINT64_MAX) return nullptr;
  }
}

void Bpe::index_merge(uint64_t pair, uint32_t rank, int32_t id) {
  const size_t mask = merges_.size() - 1;
  size_t i = mix(pair) & mask;
  while (merges_[i].pair != UINT64_MAX && merges_[i].pair != pair) i = (i + 1) & mask;
  merges_[i] = {pair, rank, id};  // a repeated pair keeps its last rank, as in the reference
}

// Two neighbouring characters can end up in one token only if they are neighbours in the spelling
// of some merge's result. Anywhere else a piece may be cut before merging without changing the
// result, which turns an unsplit text (SentencePiece style) into short pieces that the cache knows.
void Bpe::index_joints(const std::vector<std::pair<std::string_view, std::string_view>>& merges) {
  std::vector<uint64_t> keys;
  for (const auto& [left, right] : merges) {
    const std::string spelled = std::string(left).append(right);
    if (spelled.empty()) continue;
    size_t pos = 0;
    char32_t previous = next_char(spelled, pos);
    while (pos < spelled.size()) {
      const char32_t c = next_char(spelled, pos);
      keys.push_back(joint_key(previous, c));
      previous = c;
    }
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  joints_.assign(std::bit_ceil(keys.size() * 2 + 2), UINT64_MAX);
  const size_t mask = joints_.size() - 1;
  for (const uint64_t key : keys) {
    size_t i = mix(key) & mask;
    while (joints_[i] != UINT64_MAX) i = (i + 1) & mask;
    joints_[i] = key;
  }
}

bool Bpe::may_join(char32_t left, char32_t right) const {
  const uint64_t key = joint_key(left, right);
  const size_t mask = joints_.size() - 1;
  for (size_t i = mix(key) & mask;; i = (i + 1) & mask) {
    if (joints_[i] == key) return true;
    if (joints_[i] == UINT64_MAX) return false;
  }
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out, size_t max_ids) const {
  if (piece.empty()) return;
  if (pieces_are_bytes_) {
    encode_chunk(piece, out, max_ids);
    return;
  }
  if (ignore_merges_) {
    if (const int32_t id = index_.find(piece); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  size_t begin = 0, pos = 0;
  char32_t previous = next_char(piece, pos);
  bool previous_known = char_id(previous, piece.substr(0, pos)) >= 0;
  while (pos < piece.size()) {
    const size_t start = pos;
    const char32_t c = next_char(piece, pos);
    const bool known = char_id(c, piece.substr(start, pos - start)) >= 0;
    // Unknown characters are never cut from their neighbours: runs of them may fuse.
    if (known && previous_known && !may_join(previous, c)) {
      encode_chunk(piece.substr(begin, start - begin), out, max_ids);
      if (out.size() >= max_ids) return;
      begin = start;
    }
    previous = c;
    previous_known = known;
  }
  encode_chunk(piece.substr(begin), out, max_ids);
}

void Bpe::encode_chunk(std::string_view chunk, std::vector<int32_t>& out, size_t max_ids) const {
  if (chunk.size() > PieceCache::kMaxBytes) {
    merge_chunk(chunk, out, max_ids);
    return;
  }
  PieceCache::Slot& slot = piece_cache().slot(serial_, chunk);
  if (slot.serial == serial_ && slot.bytes == chunk.size() &&
      std::memcmp(slot.text, chunk.data(), chunk.size()) == 0) {
    out.insert(out.end(), slot.id, slot.id + slot.ids);
    return;
  }
  const size_t before = out.size();
  merge_chunk(chunk, out, SIZE_MAX);  // whole, for the cache
  const size_t count = out.size() - before;
  if (count > PieceCache::kMaxIds) return;
  slot.serial = serial_;
  slot.bytes = static_cast<uint8_t>(chunk.size());
  slot.ids = static_cast<uint8_t>(count);
  std::memcpy(slot.text, chunk.data(), chunk.size());
  std::copy(out.begin() + static_cast<ptrdiff_t>(before), out.end(), slot.id);
}

void Bpe::merge_chunk(std::string_view chunk, std::vector<int32_t>& out, size_t max_ids) const {
  if (pieces_are_bytes_ && ignore_merges_) {
    if (const int32_t id = byte_index_.find(chunk); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  split_symbols(chunk, symbols);
  // Each symbol is a character of some token: so many of them are more than enough tokens, however
  // they merge.
  const size_t room = max_ids - std::min(max_ids, out.size());
  if (room < symbols.size() / max_token_chars_) symbols.resize((room + 1) * max_token_chars_);
  if (symbols.size() <= kFewSymbols) {
    merge_few(symbols, out);
  } else {
    merge_many(symbols, out);
  }
  if (symbols.capacity() > (size_t{1} << 20)) symbols = {};
}

void Bpe::split_symbols(std::string_view chunk, std::vector<int32_t>& symbols) const {
  bool unknown_pending = false;
  std::string spelled;
  for (size_t pos = 0; pos < chunk.size();) {
    std::string_view text;
    int32_t id = -1;
    if (pieces_are_bytes_) {
      const char32_t c = byte_char(static_cast<uint8_t>(chunk[pos++]));
      id = char_ids_[c];
      if (id < 0) {
        spelled.clear();
        append_utf8(spelled, c);
        text = spelled;
      }
    } else {
      const size_t start = pos;
      const char32_t c = next_char(chunk, pos);
      text = chunk.substr(start, pos - start);
      id = char_id(c, text);
    }
    if (id >= 0) {
      if (unknown_pending) symbols.push_back(unk_id_);
      unknown_pending = false;
      symbols.push_back(id);
      continue;
    }
    const auto has_fallback = [this](char b) {
      return fallback_ids_[static_cast<uint8_t>(b)] >= 0;
    };
    if (byte_fallback_ && std::all_of(text.begin(), text.end(), has_fallback)) {
      for (const char b : text) symbols.push_back(fallback_ids_[static_cast<uint8_t>(b)]);
      continue;  // an unknown run stays pending across it, as in the reference
    }
    if (unk_id_ < 0) continue;
    if (unknown_pending && !fuse_unk_) symbols.push_back(unk_id_);
    unknown_pending = true;
  }
  if (unknown_pending) symbols.push_back(unk_id_);
}

void Bpe::merge_few(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) const {
  struct Part {
    int32_t id;
    uint32_t rank;   // of the merge with the next part; UINT32_MAX if there is none
    int32_t merged;  // its result
  };
  Part parts[kFewSymbols];
  size_t count = symbols.size();
  if (count == 0) return;
  const auto rate = [&](size_t i) {
    parts[i].rank = UINT32_MAX;
    if (i + 1 >= count) return;
    if (const Merge* merge = find_merge(parts[i].id, parts[i + 1].id); merge != nullptr) {
      parts[i].rank = merge->rank;
      parts[i].merged = merge->id;
    }
  };
  for (size_t i = 0; i < count; ++i) parts[i].id = symbols[i];
  for (size_t i = 0; i < count; ++i) rate(i);
  for (;;) {
    size_t best = 0;
    for (size_t i = 1; i < count; ++i) {
      if (parts[i].rank < parts[best].rank) best = i;
    }
    if (parts[best].rank == UINT32_MAX) break;
    parts[best].id = parts[best].merged;
    --count;
    std::copy(parts + best + 2, parts + count + 1, parts + best + 1);
    rate(best);
    if (best > 0) rate(best - 1);
  }
  for (size_t i = 0; i < count; ++i) out.push_back(parts[i].id);
}

// The same with a heap of (rank, position): O(n log n). An entry is stale when its position's pair
// no longer has that rank.
void Bpe::merge_many(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) const {
  struct Part {
    int32_t id;
    uint32_t previous, next;  // kNone at the ends
    uint32_t rank;
    int32_t merged;
  };
  constexpr uint32_t kNone = UINT32_MAX;
  const auto count = static_cast<uint32_t>(symbols.size());
  std::vector<Part> parts(count);
  std::vector<uint64_t> heap;
  heap.reserve(count);
  const auto rate = [&](uint32_t i) {
    Part& part = parts[i];
    part.rank = kNone;
    if (part.next == kNone) return false;
    const Merge* merge = find_merge(part.id, parts[part.next].id);
    if (merge == nullptr) return false;
    part.rank = merge->rank;
    part.merged = merge->id;
    heap.push_back(static_cast<uint64_t>(part.rank) << 32 | i);
    return true;
  };
  for (uint32_t i = 0; i < count; ++i) {
    parts[i] = {symbols[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1, kNone, -1};
  }
  for (uint32_t i = 0; i < count; ++i) rate(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    const auto at = static_cast<uint32_t>(heap.back());
    heap.pop_back();
    Part& part = parts[at];
    if (part.id < 0 || part.rank != rank) continue;
    Part& right = parts[part.next];
    part.id = part.merged;
    part.next = right.next;
    right.id = -1;
    if (part.next != kNone) parts[part.next].previous = at;
    if (rate(at)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    if (part.previous != kNone && rate(part.previous)) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }
  for (const Part& part : parts) {
    if (part.id >= 0) out.push_back(part.id);
  }
}

}  // namespace rudder::text
