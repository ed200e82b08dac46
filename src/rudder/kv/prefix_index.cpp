#include "rudder/kv/prefix_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::kv {

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_size)
    : block_size_(block_size),
      nodes_(static_cast<size_t>(num_blocks)),
      tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size)),
      buckets_(std::bit_ceil(static_cast<size_t>(num_blocks) * 2 + 1), kNoBlock) {}

bool PrefixIndex::contains(const NodeRef& ref) const {
  return ref.block != kNoBlock && node(ref.block).live && node(ref.block).serial == ref.serial;
}

NodeRef PrefixIndex::ref(BlockId block) const {
  RUDDER_CHECK(contains(block), "block {} holds no prefix", block);
  return {block, node(block).serial};
}

std::span<const int32_t> PrefixIndex::tokens(BlockId block) const {
  const auto size = static_cast<size_t>(block_size_);
  return std::span(tokens_).subspan(static_cast<size_t>(block) * size, size);
}

BlockId PrefixIndex::find(const BlockKey& key, const NodeRef& parent, const std::string& salt,
                          const BlockContent& wanted) const {
  for (BlockId block = bucket(key); block != kNoBlock; block = node(block).next_in_bucket) {
    const Node& found = node(block);
    if (found.key != key) continue;
    if (RUDDER_MUTANT(kHashWithoutCompare)) return block;
    if (found.parent != parent) continue;
    if (parent.block == kNoBlock && *found.salt != salt && !RUDDER_MUTANT(kHashWithoutSalt)) {
      continue;
    }
    if (std::ranges::equal(tokens(block), wanted.tokens) &&
        std::ranges::equal(found.runs, wanted.runs)) {
      return block;
    }
  }
  return kNoBlock;
}

void PrefixIndex::insert(BlockId block, const BlockKey& key, const NodeRef& parent,
                         const std::shared_ptr<const std::string>& salt,
                         const BlockContent& content) {
  Node& added = node(block);
  RUDDER_CHECK(!added.live, "block {} already holds a prefix", block);
  RUDDER_CHECK(parent.block == kNoBlock || contains(parent), "block {} has no parent", block);
  added = {.live = true,
           .key = key,
           .serial = next_serial_++,
           .parent = parent,
           .next_in_bucket = bucket(key),
           .salt = parent.block == kNoBlock ? salt : nullptr,
           .runs = {content.runs.begin(), content.runs.end()}};
  bucket(key) = block;
  if (parent.block != kNoBlock) {
    BlockId& first = node(parent.block).first_child;
    added.next_sibling = first;
    if (first != kNoBlock) node(first).prev_sibling = block;
    first = block;
  }
  std::ranges::copy(content.tokens, tokens_.begin() + ptrdiff_t{block} * block_size_);
  ++size_;
}

void PrefixIndex::unlink_from_bucket(BlockId block) {
  BlockId* link = &bucket(node(block).key);
  while (*link != block) link = &node(*link).next_in_bucket;
  *link = node(block).next_in_bucket;
}

void PrefixIndex::erase(BlockId block, std::vector<BlockId>* erased) {
  RUDDER_CHECK(contains(block), "block {} holds no prefix", block);
  const Node& top = node(block);
  if (top.parent.block != kNoBlock) {
    BlockId& to_top = top.prev_sibling == kNoBlock ? node(top.parent.block).first_child
                                                   : node(top.prev_sibling).next_sibling;
    to_top = top.next_sibling;
    if (top.next_sibling != kNoBlock) node(top.next_sibling).prev_sibling = top.prev_sibling;
  }
  const size_t begin = erased->size();
  erased->push_back(block);
  for (size_t i = begin; i < erased->size(); ++i) {
    const BlockId doomed = (*erased)[i];
    for (BlockId child = node(doomed).first_child; child != kNoBlock;
         child = node(child).next_sibling) {
      erased->push_back(child);
    }
    unlink_from_bucket(doomed);
    node(doomed) = Node{};
    --size_;
  }
}

Result<void> PrefixIndex::check() const {
  int32_t live = 0;
  for (BlockId block = 0; block < static_cast<BlockId>(nodes_.size()); ++block) {
    const Node& checked = node(block);
    if (!checked.live) continue;
    ++live;
    if (checked.parent.block != kNoBlock && !contains(checked.parent)) {
      return fail(ErrorCode::kInternal, fmt::format("the parent of block {} is gone", block));
    }
    if ((checked.parent.block == kNoBlock) != (checked.salt != nullptr)) {
      return fail(ErrorCode::kInternal, fmt::format("block {} has no salt of its own", block));
    }
    const std::string no_salt;
    const std::string& salt = checked.salt ? *checked.salt : no_salt;
    if (find(checked.key, checked.parent, salt, {tokens(block), checked.runs}) != block) {
      return fail(ErrorCode::kInternal, fmt::format("block {} cannot be found", block));
    }
  }
  if (live != size_) return fail(ErrorCode::kInternal, "the prefix index is miscounted");
  return {};
}

}  // namespace rudder::kv
