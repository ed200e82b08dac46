// PrefixIndex: which prefixes are cached, and in which blocks. It is a forest: a node stands for
// one full block of tokens, its parent for the tokens before them, and the root of a tree for the
// salt of a tenant. A node has at most one block of each KV group, and at most one checkpoint: the
// state of a sequence behind the block's last token. A node is found by its key; then
// its content (salt or parent node, tokens and runs) is compared, so that two prefixes with one key
// do no harm. BlockCache owns it and calls it, on one thread. After construction it allocates
// memory for salts and runs only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/cache/block_key.h"
#include "rudder/cache/block_pool.h"
#include "rudder/cache/block_watcher.h"

namespace rudder::cache {

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

// Names a node for good: the serial tells it from nodes that had the same id before it.
struct NodeRef {
  NodeId node = kNoNode;  // kNoNode: above the first
  uint64_t serial = 0;
  bool operator==(const NodeRef&) const = default;
};

class PrefixIndex {
 public:
  // `watcher`: is told of every block that nodes get and lose; null: nobody is.
  PrefixIndex(int32_t num_nodes, int32_t num_blocks, int32_t block_size, int32_t num_groups,
              BlockWatcher* watcher = nullptr, int32_t num_states = 0);

  int32_t size() const { return static_cast<int32_t>(nodes_.size() - free_nodes_.size()); }
  bool is_full() const { return free_nodes_.empty(); }
  bool contains(const NodeRef& node) const;
  // Some node has the block.
  bool contains(BlockId block) const { return entry(block).node != kNoNode; }
  NodeRef node_of(BlockId block) const;
  int32_t group_of(BlockId block) const;
  // kNoBlock: the node has none of that group.
  BlockId block(const NodeRef& node, int32_t group) const;
  const BlockKey& key(const NodeRef& ref) const { return node(ref.node).key; }
  // Of a node without parent, else null.
  const std::string* salt(const NodeRef& ref) const { return node(ref.node).salt.get(); }

  // The node of `wanted` after `parent`; node kNoNode where there is none. `salt` is compared where
  // there is no parent.
  NodeRef find(const BlockKey& key, const NodeRef& parent, const std::string& salt,
               const BlockContent& wanted) const;
  // A node without blocks for `content` after `parent`, which is in the index (or none); find()
  // does not find it yet and the index is not full.
  NodeRef insert(const BlockKey& key, const NodeRef& parent,
                 const std::shared_ptr<const std::string>& salt, const BlockContent& content);
  // `block`, which no node has, holds the node's tokens for the group, of which it has none.
  void attach(const NodeRef& node, int32_t group, BlockId block);
  // Takes the block from its node, which goes if nothing is left of it.
  void detach(BlockId block);

  // The node's checkpoint; kNoState: it has none.
  StateId checkpoint(const NodeRef& ref) const { return node(ref.node).checkpoint; }
  bool is_checkpoint(StateId state) const { return checkpoints_[index_of(state)] != kNoNode; }
  // The state, which is no checkpoint, becomes the node's, which has none.
  void attach_checkpoint(const NodeRef& node, StateId state);
  void detach_checkpoint(StateId state);
  // Checkpoints of nodes that are forgotten since the last call.
  const std::vector<StateId>& lost_checkpoints() const { return lost_checkpoints_; }
  void clear_lost_checkpoints() { lost_checkpoints_.clear(); }
  // Forgets the node and everything that hangs on it; appends the blocks that they had.
  void erase(const NodeRef& node, std::vector<BlockId>* blocks);
  // Forgets the node if it has neither blocks nor children, then likewise its parents.
  void prune(const NodeRef& node);

  // What a watcher is told of the node's block of a group; the span is the index's.
  CachedBlock cached_block(NodeId id, int32_t group) const;
  // The blocks that a watcher was told of and that are still there; the spans are the index's.
  std::vector<CachedBlock> watched() const;

  // Every node can be found, hangs on a live parent, and has a block or a child.
  Result<void> check() const;

 private:
  struct Node {
    bool live = false;
    BlockKey key;
    uint64_t serial = 0;
    NodeRef parent;
    NodeId first_child = kNoNode;
    NodeId prev_sibling = kNoNode;
    NodeId next_sibling = kNoNode;
    NodeId next_in_bucket = kNoNode;
    int32_t num_blocks = 0;
    StateId checkpoint = kNoState;
    bool is_public = false;                   // no salt and no runs, nor those before it
    std::shared_ptr<const std::string> salt;  // where there is no parent
    std::vector<ContentRun> runs;
  };
  // The node and group that a cached block is of.
  struct Entry {
    NodeId node = kNoNode;
    int32_t group = 0;
  };

  Node& node(NodeId id) { return nodes_[static_cast<size_t>(id)]; }
  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  const Entry& entry(BlockId block) const { return entries_[static_cast<size_t>(block)]; }
  BlockId& block_of(NodeId id, int32_t group);
  static size_t index_of(StateId state) { return static_cast<size_t>(state); }
  std::span<const int32_t> tokens(NodeId id) const;
  NodeId& bucket(const BlockKey& key) { return buckets_[key.low & (buckets_.size() - 1)]; }
  NodeId bucket(const BlockKey& key) const { return buckets_[key.low & (buckets_.size() - 1)]; }
  void tell_stored(NodeId id, int32_t group);
  void tell_removed(NodeId id, int32_t group);
  void unlink_from_bucket(NodeId id);
  void unlink_from_parent(NodeId id);
  void remove(NodeId id);

  const int32_t block_size_;
  const int32_t num_groups_;
  BlockWatcher* const watcher_;
  std::vector<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  std::vector<int32_t> tokens_;      // [num_nodes, block_size]
  std::vector<BlockId> blocks_;      // [num_nodes, num_groups]
  std::vector<Entry> entries_;       // by block
  std::vector<NodeId> checkpoints_;  // by state: whose it is
  std::vector<StateId> lost_checkpoints_;
  std::vector<NodeId> buckets_;  // heads; a power of two
  std::vector<NodeId> doomed_;   // scratch of erase()
  uint64_t next_serial_ = 1;
};

}  // namespace rudder::cache
