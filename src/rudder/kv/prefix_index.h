// PrefixIndex: which block holds which prefix. A forest: a node is one full block of tokens, its
// parent the block before it, its root a tenant's salt. Found by key, then compared by content
// (salt or parent node, tokens and runs), so that a key collision is harmless. One thread; no
// allocation after construction but for salts and runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/kv/block_key.h"
#include "rudder/kv/block_pool.h"

namespace rudder::kv {

// Names a node for good: the serial tells a block's present content from what it held before.
struct NodeRef {
  BlockId block = kNoBlock;  // kNoBlock: above the first block
  uint64_t serial = 0;
  bool operator==(const NodeRef&) const = default;
};

class PrefixIndex {
 public:
  PrefixIndex(int32_t num_blocks, int32_t block_size);

  int32_t size() const { return size_; }
  bool contains(BlockId block) const { return node(block).live; }
  bool contains(const NodeRef& node) const;
  NodeRef ref(BlockId block) const;
  const BlockKey& key(BlockId block) const { return node(block).key; }
  // Of a node without parent, else null.
  const std::string* salt(BlockId block) const { return node(block).salt.get(); }

  // The block that holds `wanted` after `parent`; kNoBlock when none does. `salt` is compared where
  // there is no parent.
  BlockId find(const BlockKey& key, const NodeRef& parent, const std::string& salt,
               const BlockContent& wanted) const;
  // `block` holds `content` after `parent`, which is in the index (or none), and find() does not
  // find it yet.
  void insert(BlockId block, const BlockKey& key, const NodeRef& parent,
              const std::shared_ptr<const std::string>& salt, const BlockContent& content);
  // Forgets the block and everything that hangs on it; appends the forgotten blocks.
  void erase(BlockId block, std::vector<BlockId>* erased);

  // Every node is reachable by its key and hangs on a live parent.
  Result<void> check() const;

 private:
  struct Node {
    bool live = false;
    BlockKey key;
    uint64_t serial = 0;
    NodeRef parent;
    BlockId first_child = kNoBlock;
    BlockId prev_sibling = kNoBlock;
    BlockId next_sibling = kNoBlock;
    BlockId next_in_bucket = kNoBlock;
    std::shared_ptr<const std::string> salt;  // where there is no parent
    std::vector<ContentRun> runs;
  };

  Node& node(BlockId block) { return nodes_[static_cast<size_t>(block)]; }
  const Node& node(BlockId block) const { return nodes_[static_cast<size_t>(block)]; }
  std::span<const int32_t> tokens(BlockId block) const;
  BlockId& bucket(const BlockKey& key) { return buckets_[key.low & (buckets_.size() - 1)]; }
  BlockId bucket(const BlockKey& key) const { return buckets_[key.low & (buckets_.size() - 1)]; }
  void unlink_from_bucket(BlockId block);

  const int32_t block_size_;
  std::vector<Node> nodes_;       // by block
  std::vector<int32_t> tokens_;   // [num_blocks, block_size]
  std::vector<BlockId> buckets_;  // heads; a power of two
  uint64_t next_serial_ = 1;
  int32_t size_ = 0;
};

}  // namespace rudder::kv
