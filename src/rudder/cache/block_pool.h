// BlockPool: the state of every KV block: in use (referenced), cached (unreferenced, but holding a
// prefix; on the eviction list, oldest first) or free. It knows nothing about tokens. One thread;
// no allocation after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::cache {

using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;
// Of the pool of states, which has the same life: free, in use, or cached as a checkpoint.
using StateId = int32_t;
inline constexpr StateId kNoState = -1;

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(nodes_.size()); }
  int32_t num_free() const { return num_free_; }
  int32_t num_cached() const { return num_cached_; }
  int32_t num_in_use() const { return num_blocks() - num_free_ - num_cached_; }
  int32_t refs(BlockId block) const { return nodes_[index(block)].refs; }
  bool is_cached(BlockId block) const { return nodes_[index(block)].state == State::kCached; }

  // A free block, now referenced once; kNoBlock when none is free.
  BlockId take_free();
  // The block that was least recently released to the eviction list, or kNoBlock.
  BlockId oldest_cached() const { return cached_.head; }

  void add_ref(BlockId block);  // of a block in use or cached
  // Drops one reference; the last one puts the block on the eviction list or the free list.
  void release(BlockId block, bool keep_cached);
  void uncache(BlockId block);  // from the eviction list to the free list

  // Lists, counts and states agree, and refs(b) == expected_refs[b] for every block.
  Result<void> check(const std::vector<int32_t>& expected_refs) const;

 private:
  enum class State : uint8_t { kFree, kCached, kInUse };
  struct Node {
    BlockId prev = kNoBlock;
    BlockId next = kNoBlock;
    int32_t refs = 0;
    State state = State::kFree;
  };
  struct List {
    BlockId head = kNoBlock;
    BlockId tail = kNoBlock;
  };

  size_t index(BlockId block) const;
  void push_back(List& list, BlockId block);
  void unlink(List& list, BlockId block);
  int32_t length(const List& list, State state) const;  // -1 when the list is broken

  std::vector<Node> nodes_;
  List free_;
  List cached_;
  int32_t num_free_ = 0;
  int32_t num_cached_ = 0;
};

}  // namespace rudder::cache
