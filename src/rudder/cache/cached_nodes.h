// CachedNodes: the nodes of a BlockCache's prefix index, each with all that it has, as whoever
// copies cached prefixes elsewhere (tier_index.h) needs them. A view; engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/cache/block_cache.h"

namespace rudder::cache {

// What a node of the prefix index has.
struct NodeObjects {
  std::vector<BlockId> blocks = {};  // by group; kNoBlock: none
  StateId checkpoint = kNoState;

  bool empty() const {
    return std::ranges::all_of(blocks, [](BlockId block) { return block == kNoBlock; });
  }
};

class CachedNodes {
 public:
  explicit CachedNodes(BlockCache& cache) : cache_(cache) {}

  // The node of full block `i` of the sequence behind `parent`; none: it is not cached.
  NodeRef at(Chain& chain, std::span<const int32_t> tokens, int32_t i, const NodeRef& parent) const;
  // Which blocks, by group, and which checkpoint the node has. None of either: it is gone.
  NodeObjects objects(const NodeRef& node) const;
  // What is told of the node's block of a group.
  CachedBlock describe(const NodeRef& node, int32_t group) const;
  // References what a node has, until release(): it is copied.
  void hold(const NodeObjects& objects);
  void release(const NodeObjects& objects);

 private:
  BlockCache& cache_;
};

}  // namespace rudder::cache
