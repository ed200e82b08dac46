#include "rudder/constraint/token_trie.h"

#include <algorithm>

namespace rudder::constraint {
namespace {

constexpr size_t kMaxTextBytes = UINT16_MAX;

}  // namespace

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
      path.push_back(nodes_.size());
      nodes_.push_back(
          {.depth = static_cast<uint16_t>(depth), .byte = static_cast<uint8_t>(bytes[depth])});
    }
    nodes_[path.back()].id = id;
    before = bytes;
  }
  leave(0);
}

}  // namespace rudder::constraint
