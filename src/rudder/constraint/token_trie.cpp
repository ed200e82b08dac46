#include "rudder/constraint/token_trie.h"

#include <algorithm>

#include "rudder/constraint/utf8_state.h"

namespace rudder::constraint {
namespace {

constexpr size_t kMaxTextBytes = UINT16_MAX;

// For each byte of a text, whether what begins there is UTF-8, its last character cut or not.
std::vector<bool> find_utf8(std::string_view bytes) {
  std::vector<bool> found(bytes.size() + 1, true);
  for (size_t begin = bytes.size(); begin-- > 0;) {
    Utf8State state;
    size_t at = begin;
    bool fits = true;
    do {
      fits = next_utf8(state, static_cast<uint8_t>(bytes[at++]));
    } while (fits && state.left > 0 && at < bytes.size());
    found[begin] = fits && (state.left > 0 || found[at]);
  }
  return found;
}

}  // namespace

int TokenTrie::group_of(uint8_t byte) {
  constexpr int kMarks = 3;      // ' ' to '@'
  constexpr int kBrackets = 36;  // '[' to '`'
  constexpr int kBraces = 42;    // '{' to '~'
  constexpr int kLetters = 46;   // two letters and their small ones each
  constexpr int kBeyond = 59;    // kBeyondAscii
  if (byte >= 0xF0) return kBeyond + 3;
  if (byte >= 0xE0) return kBeyond + 2;
  if (byte >= 0xC0) return kBeyond + 1;
  if (byte >= 0x80) return kBeyond;
  if (byte == '\n' || byte == '\t') return byte == '\n' ? 1 : 2;
  if (byte < ' ' || byte > '~') return 0;
  if (byte <= '@') return kMarks + byte - ' ';
  if (byte >= '{') return kBraces + byte - '{';
  if (byte >= '[' && byte <= '`') return kBrackets + byte - '[';
  return kLetters + ((byte | 0x20) - 'a') / 2;
}

TokenTrie::TokenTrie(const std::vector<std::pair<std::string_view, int32_t>>& sorted) {
  std::vector<size_t> path;  // nodes on the way to the last text
  std::string_view before;
  int32_t largest = 0;
  for (const auto& [bytes, id] : sorted) largest = std::max(largest, id);
  const auto leave = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      nodes_[path.back()].skip = static_cast<uint32_t>(nodes_.size());
    }
  };
  for (const auto& [bytes, id] : sorted) {
    if (bytes.empty() || bytes.size() > kMaxTextBytes) continue;
    longest_ = std::max(longest_, bytes.size());
    if (bytes == before) {
      if (next_same_.empty()) next_same_.resize(static_cast<size_t>(largest) + 1, kNone);
      next_same_[static_cast<size_t>(id)] = nodes_[path.back()].id;
      nodes_[path.back()].id = id;
      continue;
    }
    const auto [end, other] =
        std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end());
    leave(static_cast<size_t>(end - before.begin()));
    while (path.size() < bytes.size()) {
      const size_t depth = path.size();
      const auto group = uint64_t{1} << group_of(static_cast<uint8_t>(bytes[depth]));
      for (const size_t above : path) groups_[above] |= group;
      groups_.push_back(group);
      is_utf8_.push_back(true);
      path.push_back(nodes_.size());
      nodes_.push_back(
          {.depth = static_cast<uint16_t>(depth), .byte = static_cast<uint8_t>(bytes[depth])});
    }
    nodes_[path.back()].id = id;
    const std::vector<bool> utf8 = find_utf8(bytes);
    for (size_t i = 0; i < path.size(); ++i) {
      if (!utf8[i]) is_utf8_[path[i]] = false;
    }
    before = bytes;
  }
  leave(0);
  for (const Node& node : nodes_) {
    first_id_.push_back(static_cast<uint32_t>(ids_.size()));
    for (int32_t id = node.id; id != kNone; id = next_same(id)) ids_.push_back(id);
  }
  first_id_.push_back(static_cast<uint32_t>(ids_.size()));
}

}  // namespace rudder::constraint
