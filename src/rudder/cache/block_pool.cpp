#include "rudder/cache/block_pool.h"

#include <fmt/format.h>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::cache {

BlockPool::BlockPool(int32_t num_blocks) : nodes_(static_cast<size_t>(num_blocks)) {
  for (BlockId block = 0; block < num_blocks; ++block) push_back(free_, block);
  num_free_ = num_blocks;
}

size_t BlockPool::index(BlockId block) const {
  RUDDER_CHECK(block >= 0 && block < num_blocks(), "block {} of {}", block, num_blocks());
  return static_cast<size_t>(block);
}

void BlockPool::push_back(List& list, BlockId block) {
  Node& node = nodes_[index(block)];
  node.prev = list.tail;
  node.next = kNoBlock;
  if (list.tail == kNoBlock) {
    list.head = block;
  } else {
    nodes_[index(list.tail)].next = block;
  }
  list.tail = block;
}

void BlockPool::unlink(List& list, BlockId block) {
  Node& node = nodes_[index(block)];
  (node.prev == kNoBlock ? list.head : nodes_[index(node.prev)].next) = node.next;
  (node.next == kNoBlock ? list.tail : nodes_[index(node.next)].prev) = node.prev;
  node.prev = node.next = kNoBlock;
}

BlockId BlockPool::take_free() {
  const BlockId block = free_.head;
  if (block == kNoBlock) return kNoBlock;
  unlink(free_, block);
  --num_free_;
  Node& node = nodes_[index(block)];
  node.state = State::kInUse;
  node.refs = 1;
  return block;
}

void BlockPool::add_ref(BlockId block) {
  Node& node = nodes_[index(block)];
  RUDDER_CHECK(node.state != State::kFree, "block {} is free", block);
  if (node.state == State::kCached && !RUDDER_MUTANT(kEvictInUse)) {
    unlink(cached_, block);
    --num_cached_;
    node.state = State::kInUse;
  }
  ++node.refs;
}

void BlockPool::release(BlockId block, bool keep_cached) {
  Node& node = nodes_[index(block)];
  RUDDER_CHECK(node.state == State::kInUse && node.refs > 0, "block {} is not in use", block);
  if (--node.refs > 0) return;
  push_back(keep_cached ? cached_ : free_, block);
  node.state = keep_cached ? State::kCached : State::kFree;
  ++(keep_cached ? num_cached_ : num_free_);
}

void BlockPool::uncache(BlockId block) {
  Node& node = nodes_[index(block)];
  RUDDER_CHECK(node.state == State::kCached, "block {} is not cached", block);
  unlink(cached_, block);
  --num_cached_;
  push_back(free_, block);
  ++num_free_;
  node.state = State::kFree;
}

int32_t BlockPool::length(const List& list, State state) const {
  int32_t count = 0;
  BlockId prev = kNoBlock;
  for (BlockId block = list.head; block != kNoBlock; block = nodes_[index(block)].next) {
    const Node& node = nodes_[index(block)];
    if (node.state != state || node.prev != prev || ++count > num_blocks()) return -1;
    prev = block;
  }
  return list.tail == prev ? count : -1;
}

Result<void> BlockPool::check(const std::vector<int32_t>& expected_refs) const {
  for (BlockId block = 0; block < num_blocks(); ++block) {
    const Node& node = nodes_[index(block)];
    if (node.refs != expected_refs[index(block)]) {
      return fail(ErrorCode::kInternal, fmt::format("block {} has {} references, {} hold it", block,
                                                    node.refs, expected_refs[index(block)]));
    }
    if ((node.refs > 0) != (node.state == State::kInUse)) {
      return fail(ErrorCode::kInternal, fmt::format("block {} is in the wrong list", block));
    }
  }
  if (length(free_, State::kFree) != num_free_ || length(cached_, State::kCached) != num_cached_) {
    return fail(ErrorCode::kInternal, "a block list is broken or miscounted");
  }
  return {};
}

}  // namespace rudder::cache
