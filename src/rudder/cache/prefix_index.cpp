#include "rudder/cache/prefix_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::cache {

PrefixIndex::PrefixIndex(int32_t num_nodes, int32_t num_blocks, int32_t block_size,
                         int32_t num_groups, BlockWatcher* watcher, int32_t num_states)
    : block_size_(block_size),
      num_groups_(num_groups),
      watcher_(watcher),
      nodes_(static_cast<size_t>(num_nodes)),
      tokens_(nodes_.size() * static_cast<size_t>(block_size)),
      blocks_(nodes_.size() * static_cast<size_t>(num_groups), kNoBlock),
      entries_(static_cast<size_t>(num_blocks)),
      checkpoints_(static_cast<size_t>(num_states), kNoNode),
      buckets_(std::bit_ceil(nodes_.size() * 2 + 1), kNoNode) {
  free_nodes_.reserve(nodes_.size());
  doomed_.reserve(nodes_.size());
  lost_checkpoints_.reserve(checkpoints_.size());
  for (NodeId id = num_nodes - 1; id >= 0; --id) free_nodes_.push_back(id);
}

bool PrefixIndex::contains(const NodeRef& ref) const {
  return ref.node != kNoNode && node(ref.node).live && node(ref.node).serial == ref.serial;
}

NodeRef PrefixIndex::node_of(BlockId block) const {
  RUDDER_CHECK(contains(block), "block {} holds no prefix", block);
  return {entry(block).node, node(entry(block).node).serial};
}

int32_t PrefixIndex::group_of(BlockId block) const {
  RUDDER_CHECK(contains(block), "block {} holds no prefix", block);
  return entry(block).group;
}

BlockId& PrefixIndex::block_of(NodeId id, int32_t group) {
  return blocks_[static_cast<size_t>(id) * static_cast<size_t>(num_groups_) +
                 static_cast<size_t>(group)];
}

BlockId PrefixIndex::block(const NodeRef& ref, int32_t group) const {
  RUDDER_CHECK(contains(ref), "node {} is gone", ref.node);
  return blocks_[static_cast<size_t>(ref.node) * static_cast<size_t>(num_groups_) +
                 static_cast<size_t>(group)];
}

std::span<const int32_t> PrefixIndex::tokens(NodeId id) const {
  const auto size = static_cast<size_t>(block_size_);
  return std::span(tokens_).subspan(static_cast<size_t>(id) * size, size);
}

NodeRef PrefixIndex::find(const BlockKey& key, const NodeRef& parent, const std::string& salt,
                          const BlockContent& wanted) const {
  for (NodeId id = bucket(key); id != kNoNode; id = node(id).next_in_bucket) {
    const Node& found = node(id);
    if (found.key != key) continue;
    if (RUDDER_MUTANT(kHashWithoutCompare)) return {id, found.serial};
    if (found.parent != parent) continue;
    if (parent.node == kNoNode && *found.salt != salt && !RUDDER_MUTANT(kHashWithoutSalt)) {
      continue;
    }
    if (std::ranges::equal(tokens(id), wanted.tokens) &&
        std::ranges::equal(found.runs, wanted.runs)) {
      return {id, found.serial};
    }
  }
  return {};
}

NodeRef PrefixIndex::insert(const BlockKey& key, const NodeRef& parent,
                            const std::shared_ptr<const std::string>& salt,
                            const BlockContent& content) {
  RUDDER_CHECK(!is_full(), "the prefix index is full");
  RUDDER_CHECK(parent.node == kNoNode || contains(parent), "node {} is gone", parent.node);
  const NodeId id = free_nodes_.back();
  free_nodes_.pop_back();
  Node& added = node(id);
  added = {.live = true,
           .key = key,
           .serial = next_serial_++,
           .parent = parent,
           .next_in_bucket = bucket(key),
           .salt = parent.node == kNoNode ? salt : nullptr,
           .runs = {content.runs.begin(), content.runs.end()}};
  bucket(key) = id;
  const bool follows_public = parent.node == kNoNode ? salt->empty() : node(parent.node).is_public;
  added.is_public = follows_public && content.runs.empty();
  if (parent.node != kNoNode) {
    NodeId& first = node(parent.node).first_child;
    added.next_sibling = first;
    if (first != kNoNode) node(first).prev_sibling = id;
    first = id;
  }
  std::ranges::copy(content.tokens, tokens_.begin() + ptrdiff_t{id} * block_size_);
  return {id, added.serial};
}

void PrefixIndex::attach(const NodeRef& ref, int32_t group, BlockId block) {
  RUDDER_CHECK(contains(ref), "node {} is gone", ref.node);
  RUDDER_CHECK(!contains(block), "block {} already holds a prefix", block);
  BlockId& held = block_of(ref.node, group);
  RUDDER_CHECK(held == kNoBlock, "node {} has block {} of group {}", ref.node, held, group);
  held = block;
  entries_[static_cast<size_t>(block)] = {ref.node, group};
  ++node(ref.node).num_blocks;
  tell_stored(ref.node, group);
}

CachedBlock PrefixIndex::cached_block(NodeId id, int32_t group) const {
  CachedBlock block = {.hash = node(id).key.low, .group = group, .tokens = tokens(id)};
  const NodeId parent = node(id).parent.node;
  if (parent != kNoNode) block.parent = node(parent).key.low;
  block.is_public = node(id).is_public;
  return block;
}

void PrefixIndex::tell_stored(NodeId id, int32_t group) {
  if (watcher_ == nullptr) return;
  watcher_->stored(cached_block(id, group));
}

void PrefixIndex::tell_removed(NodeId id, int32_t group) {
  if (watcher_ != nullptr) watcher_->removed(cached_block(id, group));
}

std::vector<CachedBlock> PrefixIndex::watched() const {
  std::vector<CachedBlock> found;
  for (const Entry& at : entries_) {
    if (at.node != kNoNode) found.push_back(cached_block(at.node, at.group));
  }
  return found;
}

void PrefixIndex::detach(BlockId block) {
  const NodeRef ref = node_of(block);
  tell_removed(ref.node, entry(block).group);
  block_of(ref.node, entry(block).group) = kNoBlock;
  entries_[static_cast<size_t>(block)] = {};
  --node(ref.node).num_blocks;
  prune(ref);
}

void PrefixIndex::attach_checkpoint(const NodeRef& ref, StateId state) {
  RUDDER_CHECK(contains(ref), "node {} is gone", ref.node);
  Node& found = node(ref.node);
  RUDDER_CHECK(found.checkpoint == kNoState && !is_checkpoint(state),
               "node {} or state {} has a checkpoint", ref.node, state);
  found.checkpoint = state;
  checkpoints_[index_of(state)] = ref.node;
}

void PrefixIndex::detach_checkpoint(StateId state) {
  RUDDER_CHECK(is_checkpoint(state), "state {} is no checkpoint", state);
  NodeId& id = checkpoints_[index_of(state)];
  node(id).checkpoint = kNoState;
  id = kNoNode;
}

void PrefixIndex::unlink_from_bucket(NodeId id) {
  NodeId* link = &bucket(node(id).key);
  while (*link != id) link = &node(*link).next_in_bucket;
  *link = node(id).next_in_bucket;
}

void PrefixIndex::unlink_from_parent(NodeId id) {
  const Node& top = node(id);
  if (top.parent.node == kNoNode) return;
  NodeId& to_top = top.prev_sibling == kNoNode ? node(top.parent.node).first_child
                                               : node(top.prev_sibling).next_sibling;
  to_top = top.next_sibling;
  if (top.next_sibling != kNoNode) node(top.next_sibling).prev_sibling = top.prev_sibling;
}

void PrefixIndex::remove(NodeId id) {
  unlink_from_bucket(id);
  const StateId lost = node(id).checkpoint;
  if (lost != kNoState) {
    detach_checkpoint(lost);
    lost_checkpoints_.push_back(lost);
  }
  node(id) = Node{};
  free_nodes_.push_back(id);
}

void PrefixIndex::prune(const NodeRef& ref) {
  for (NodeRef at = ref; contains(at);) {
    const Node& pruned = node(at.node);
    if (pruned.num_blocks > 0 || pruned.first_child != kNoNode) return;
    const NodeRef parent = pruned.parent;
    unlink_from_parent(at.node);
    remove(at.node);
    at = parent;
  }
}

void PrefixIndex::erase(const NodeRef& ref, std::vector<BlockId>* blocks) {
  RUDDER_CHECK(contains(ref), "node {} is gone", ref.node);
  const NodeRef parent = node(ref.node).parent;
  unlink_from_parent(ref.node);
  doomed_.assign(1, ref.node);
  for (size_t i = 0; i < doomed_.size(); ++i) {
    const NodeId id = doomed_[i];
    for (NodeId child = node(id).first_child; child != kNoNode; child = node(child).next_sibling) {
      doomed_.push_back(child);
    }
    for (int32_t group = 0; group < num_groups_; ++group) {
      BlockId& block = block_of(id, group);
      if (block == kNoBlock) continue;
      tell_removed(id, group);
      blocks->push_back(block);
      entries_[static_cast<size_t>(block)] = {};
      block = kNoBlock;
    }
    remove(id);
  }
  prune(parent);
}

Result<void> PrefixIndex::check() const {
  int32_t live = 0;
  size_t num_placed = 0;
  for (NodeId id = 0; id < static_cast<NodeId>(nodes_.size()); ++id) {
    const Node& checked = node(id);
    if (!checked.live) continue;
    ++live;
    if (checked.parent.node != kNoNode && !contains(checked.parent)) {
      return fail(ErrorCode::kInternal, fmt::format("the parent of node {} is gone", id));
    }
    if ((checked.parent.node == kNoNode) != (checked.salt != nullptr)) {
      return fail(ErrorCode::kInternal, fmt::format("node {} has no salt of its own", id));
    }
    const std::string no_salt;
    const std::string& salt = checked.salt ? *checked.salt : no_salt;
    const NodeRef ref = {id, checked.serial};
    if (find(checked.key, checked.parent, salt, {tokens(id), checked.runs}) != ref) {
      return fail(ErrorCode::kInternal, fmt::format("node {} cannot be found", id));
    }
    if (checked.num_blocks == 0 && checked.first_child == kNoNode) {
      return fail(ErrorCode::kInternal, fmt::format("node {} is of no use", id));
    }
    int32_t held = 0;
    for (int32_t group = 0; group < num_groups_; ++group) {
      const BlockId has = block(ref, group);
      if (has == kNoBlock) continue;
      ++held;
      if (entry(has).node != id || entry(has).group != group) {
        return fail(ErrorCode::kInternal, fmt::format("block {} is of two nodes", has));
      }
    }
    num_placed += static_cast<size_t>(held);
    if (checked.checkpoint != kNoState && checkpoints_[index_of(checked.checkpoint)] != id) {
      return fail(ErrorCode::kInternal,
                  fmt::format("checkpoint {} is of two nodes", checked.checkpoint));
    }
    if (held != checked.num_blocks) {
      return fail(ErrorCode::kInternal, fmt::format("the blocks of node {} are miscounted", id));
    }
  }
  const auto placed =
      std::ranges::count_if(entries_, [](const Entry& p) { return p.node != kNoNode; });
  if (live != size() || static_cast<size_t>(placed) != num_placed) {
    return fail(ErrorCode::kInternal, "the prefix index is miscounted");
  }
  return {};
}

}  // namespace rudder::cache
