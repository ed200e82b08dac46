#include "rudder/kv/block_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::kv {

BlockCache::BlockCache(const CacheOptions& options)
    : options_(options),
      hasher_(options.hash_key, options.model_identity, options.hash_bits),
      pool_(options.num_blocks),
      index_(options.num_blocks, options.block_size),
      distrusted_(static_cast<size_t>(options.num_blocks), 0) {
  erased_.reserve(static_cast<size_t>(options.num_blocks));
}

Chain BlockCache::make_chain(std::string salt, std::vector<ContentRun> runs) const {
  Chain chain;
  for (ContentRun& run : runs) {
    if (run.begin >= run.end) continue;
    ContentRun* last = chain.runs.empty() ? nullptr : &chain.runs.back();
    RUDDER_CHECK(last == nullptr || last->end <= run.begin, "runs overlap at {}", run.begin);
    if (last != nullptr && last->end == run.begin && last->content == run.content) {
      last->end = run.end;
    } else {
      chain.runs.push_back(run);
    }
  }
  chain.root = hasher_.root(salt);
  chain.salt = std::make_shared<const std::string>(std::move(salt));
  return chain;
}

BlockContent BlockCache::content(const Chain& chain, std::span<const int32_t> tokens,
                                 int32_t i) const {
  const int32_t size = options_.block_size;
  const int32_t begin = i * size;
  runs_.clear();
  auto run = std::ranges::upper_bound(chain.runs, begin, {}, &ContentRun::end);
  for (; run != chain.runs.end() && run->begin < begin + size; ++run) {
    if (RUDDER_MUTANT(kHashWithoutContent)) break;
    runs_.push_back({.begin = std::max(run->begin - begin, 0),
                     .end = std::min(run->end - begin, size),
                     .content = run->content});
  }
  return {tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(size)), runs_};
}

const BlockKey& BlockCache::key(Chain& chain, std::span<const int32_t> tokens, int32_t i) const {
  while (static_cast<int32_t>(chain.keys.size()) <= i) {
    const auto next = static_cast<int32_t>(chain.keys.size());
    const bool at_root = next == 0 || RUDDER_MUTANT(kHashWithoutParent);
    const BlockKey& parent = at_root ? chain.root : chain.keys.back();
    chain.keys.push_back(hasher_.child(parent, content(chain, tokens, next)));
  }
  return chain.keys[static_cast<size_t>(i)];
}

BlockId BlockCache::find(Chain& chain, std::span<const int32_t> tokens, int32_t i,
                         const NodeRef& parent) const {
  const BlockKey wanted = key(chain, tokens, i);
  return index_.find(wanted, RUDDER_MUTANT(kHashWithoutParent) ? NodeRef{} : parent, *chain.salt,
                     content(chain, tokens, i));
}

void BlockCache::match(Chain& chain, std::span<const int32_t> tokens, int32_t max_blocks,
                       std::vector<BlockId>* found) const {
  found->clear();
  if (!options_.share_prefixes) return;
  NodeRef parent;
  for (int32_t i = 0; i < max_blocks; ++i) {
    const BlockId block = find(chain, tokens, i, parent);
    if (block == kNoBlock) return;
    found->push_back(block);
    parent = index_.ref(block);
  }
}

void BlockCache::hold(Chain& chain, std::span<const BlockId> found) {
  for (const BlockId block : found) pool_.add_ref(block);
  chain.num_shared = static_cast<int32_t>(found.size());
  chain.last_shared = found.empty() ? NodeRef{} : index_.ref(found.back());
}

BlockId BlockCache::take() {
  if (pool_.num_free() == 0) {
    const BlockId oldest = pool_.oldest_cached();
    if (oldest == kNoBlock) return kNoBlock;
    forget(oldest);
    ++evictions_;
  }
  const BlockId block = pool_.take_free();
  distrusted_[static_cast<size_t>(block)] = 0;
  return block;
}

void BlockCache::forget(BlockId block) {
  erased_.clear();
  index_.erase(block, &erased_);
  for (const BlockId erased : erased_) {
    if (pool_.is_cached(erased)) pool_.uncache(erased);
  }
}

void BlockCache::publish(Chain& chain, std::span<const int32_t> tokens,
                         std::span<const BlockId> blocks, int32_t num_tokens) {
  if (!options_.share_prefixes) return;
  int32_t num_full = num_tokens / options_.block_size;
  if (RUDDER_MUTANT(kPublishPartialBlock)) {
    num_full = std::min((num_tokens + options_.block_size - 1) / options_.block_size,
                        static_cast<int32_t>(tokens.size()) / options_.block_size);
  }
  // A node that stood for one of our blocks belonged to a sequence of equal prefix: it may have
  // been evicted since. Then our own blocks take its place.
  if (chain.num_shared > 0 && !index_.contains(chain.last_shared)) {
    chain.num_shared = 0;
    chain.last_shared = NodeRef{};
  }
  RUDDER_CHECK(num_full <= static_cast<int32_t>(blocks.size()), "{} tokens, {} blocks", num_tokens,
               blocks.size());
  while (chain.num_shared < num_full) {
    const int32_t i = chain.num_shared;
    BlockId shared = find(chain, tokens, i, chain.last_shared);
    if (shared == kNoBlock) {
      shared = blocks[static_cast<size_t>(i)];
      if (distrusted_[static_cast<size_t>(shared)]) return;
      const BlockKey added = key(chain, tokens, i);
      index_.insert(shared, added,
                    RUDDER_MUTANT(kHashWithoutParent) ? NodeRef{} : chain.last_shared, chain.salt,
                    content(chain, tokens, i));
    }
    chain.last_shared = index_.ref(shared);
    ++chain.num_shared;
  }
}

void BlockCache::distrust(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    distrusted_[static_cast<size_t>(block)] = 1;
    if (index_.contains(block)) forget(block);
  }
}

void BlockCache::release(Chain& chain, std::span<const BlockId> blocks) {
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    pool_.release(*block, index_.contains(*block));
  }
  chain.num_shared = 0;
  chain.last_shared = NodeRef{};
}

void BlockCache::forget_all() {
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    if (index_.contains(block)) forget(block);
    if (pool_.refs(block) > 0) distrusted_[static_cast<size_t>(block)] = 1;
  }
}

Result<void> BlockCache::check(const std::vector<std::span<const BlockId>>& tables) const {
  std::vector<int32_t> refs(static_cast<size_t>(pool_.num_blocks()), 0);
  for (const auto& table : tables) {
    for (const BlockId block : table) ++refs[static_cast<size_t>(block)];
  }
  RUDDER_TRY_VOID(pool_.check(refs));
  RUDDER_TRY_VOID(index_.check());
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    const bool in_use = pool_.refs(block) > 0;
    if (!in_use && pool_.is_cached(block) != index_.contains(block)) {
      return fail(ErrorCode::kInternal,
                  fmt::format("block {} is cached without a prefix or free with one", block));
    }
  }
  return {};
}

Result<void> BlockCache::check_chain(const Chain& chain, std::span<const int32_t> tokens,
                                     std::span<const BlockId> blocks) const {
  const auto size = static_cast<size_t>(options_.block_size);
  BlockKey key = hasher_.root(*chain.salt);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const BlockId block = blocks[i];
    const bool full = (i + 1) * size <= tokens.size();
    if (full) key = hasher_.child(key, content(chain, tokens, static_cast<int32_t>(i)));
    if (!index_.contains(block)) continue;
    if (!full) {
      return fail(ErrorCode::kInternal, fmt::format("block {} is shared but not full", block));
    }
    const std::string* salt = index_.salt(block);
    if (i == 0 && (salt == nullptr || *salt != *chain.salt)) {
      return fail(ErrorCode::kInternal, fmt::format("block {} is shared across salts", block));
    }
    if (index_.key(block) != key) {
      return fail(ErrorCode::kInternal,
                  fmt::format("block {} is shared under the key of another prefix", block));
    }
  }
  return {};
}

}  // namespace rudder::kv
