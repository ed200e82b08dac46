// TokenTrie: texts as a tree of their bytes, in one array in the order of a walk, so that a walk
// over all of them looks at a common beginning once and passes over a subtree in one step. The
// texts are the tokens of a vocabulary, or what stands behind the quotes in them. Immutable, any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace rudder::constraint {

class TokenTrie {
 public:
  static constexpr int32_t kNone = -1;

  struct Node {
    uint32_t skip = 0;   // the next node that is not below this one
    int32_t id = kNone;  // of a text that ends here
    uint16_t depth = 0;  // bytes before this one
    uint8_t byte = 0;
  };

  // Texts with their ids, in the order of their bytes; empty ones are left out.
  explicit TokenTrie(const std::vector<std::pair<std::string_view, int32_t>>& sorted);

  const std::vector<Node>& nodes() const { return nodes_; }
  // Another id of the same text; kNone behind the last.
  int32_t next_same(int32_t id) const {
    return next_same_.empty() ? kNone : next_same_[static_cast<size_t>(id)];
  }
  size_t longest() const { return longest_; }  // bytes

  // Bytes in 64 groups: marks of punctuation have one each, letters share one with another or two,
  // bytes beyond ASCII by what they do in a character. As bits: those in the node and below it.
  static constexpr int kGroups = 64;
  static int group_of(uint8_t byte);
  uint64_t groups(size_t node) const { return groups_[node]; }
  static constexpr uint64_t kBeyondAscii = uint64_t{15} << 59;  // their groups
  // Whether what begins at the node is UTF-8, in each text that goes on there; its last character
  // may be cut.
  bool is_utf8(size_t node) const { return is_utf8_[node]; }
  // Of all texts that end at the node or below it.
  std::span<const int32_t> ids_below(size_t node) const {
    const uint32_t first = first_id_[node];
    return {ids_.data() + first, first_id_[nodes_[node].skip] - first};
  }

 private:
  std::vector<Node> nodes_;
  std::vector<uint64_t> groups_;    // by node
  std::vector<bool> is_utf8_;       // by node
  std::vector<int32_t> ids_;        // in the order of their nodes
  std::vector<uint32_t> first_id_;  // by node, and one more
  std::vector<int32_t> next_same_;  // by id; empty where no two texts are the same
  size_t longest_ = 0;
};

}  // namespace rudder::constraint
