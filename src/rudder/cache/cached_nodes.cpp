#include "rudder/cache/cached_nodes.h"

namespace rudder::cache {

NodeRef CachedNodes::at(Chain& chain, std::span<const int32_t> tokens, int32_t i,
                        const NodeRef& parent) const {
  return cache_.find(chain, tokens, i, parent);
}

NodeObjects CachedNodes::objects(const NodeRef& node) const {
  NodeObjects objects;
  if (!cache_.index_.contains(node)) return objects;
  for (int32_t g = 0; g < cache_.num_groups(); ++g) {
    const BlockId block = cache_.index_.block(node, g);
    const bool is_trusted = block != kNoBlock && !cache_.is_distrusted(block);
    objects.blocks.push_back(is_trusted ? block : kNoBlock);
  }
  objects.checkpoint = cache_.index_.checkpoint(node);
  return objects;
}

CachedBlock CachedNodes::describe(const NodeRef& node, int32_t group) const {
  return cache_.index_.cached_block(node.node, group);
}

void CachedNodes::hold(const NodeObjects& objects) {
  for (const BlockId block : objects.blocks) {
    if (block != kNoBlock) cache_.pool_.add_ref(block);
  }
  if (objects.checkpoint != kNoState) cache_.states_.add_ref(objects.checkpoint);
}

void CachedNodes::release(const NodeObjects& objects) {
  for (const BlockId block : objects.blocks) {
    if (block != kNoBlock) cache_.pool_.release(block, cache_.index_.contains(block));
  }
  if (objects.checkpoint != kNoState) cache_.release_state(objects.checkpoint);
}

}  // namespace rudder::cache
