#include "rudder/cache/block_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::cache {

namespace {

// Where a group has no window each node has a block. Else a node stays, without one, for those that
// hang on it; a few bytes each, against a block's many.
constexpr int32_t kNodesPerBlock = 4;

int32_t num_nodes(const CacheOptions& options) {
  const bool has_full = std::ranges::count(options.windows, 0) > 0;
  return has_full ? options.num_blocks : kNodesPerBlock * options.num_blocks;
}

}  // namespace

int32_t first_visible(int32_t position, int32_t window) {
  if (window == 0) return 0;
  return std::max(0, position - window + (RUDDER_MUTANT(kWindowOffByOne) ? 2 : 1));
}

BlockCache::BlockCache(const CacheOptions& options)
    : options_(options),
      hasher_({.hash_key = options.hash_key,
               .model_identity = options.model_identity,
               .hash_bits = options.hash_bits,
               .block_size = options.block_size}),
      pool_(options.num_blocks),
      index_(num_nodes(options), options.num_blocks, options.block_size,
             static_cast<int32_t>(options.windows.size()), options.watcher, options.num_states),
      states_(options.num_states),
      distrusted_(static_cast<size_t>(options.num_blocks), 0),
      distrusted_states_(static_cast<size_t>(options.num_states), 0) {
  erased_.reserve(static_cast<size_t>(options.num_blocks));
}

void BlockCache::set_runs(Chain& chain, std::span<const ContentRun> runs) {
  ChainHasher::set_runs(chain, runs);
}

Chain BlockCache::make_chain(std::string salt, std::vector<ContentRun> runs) const {
  return Chain{hasher_.begin(std::move(salt), runs), 0, {}};
}

BlockContent BlockCache::content(const Chain& chain, std::span<const int32_t> tokens,
                                 int32_t i) const {
  return hasher_.content(chain, tokens, i, runs_);
}

const BlockKey& BlockCache::key(Chain& chain, std::span<const int32_t> tokens, int32_t i) const {
  return hasher_.key(chain, tokens, i, runs_);
}

NodeRef BlockCache::find(Chain& chain, std::span<const int32_t> tokens, int32_t i,
                         const NodeRef& parent) const {
  const BlockKey wanted = key(chain, tokens, i);
  return index_.find(wanted, RUDDER_MUTANT(kHashWithoutParent) ? NodeRef{} : parent, *chain.salt,
                     content(chain, tokens, i));
}

// The first block of a group that a token at `position` sees.
int32_t BlockCache::first_needed(int32_t group, int32_t position) const {
  return first_visible(position, options_.windows[static_cast<size_t>(group)]) /
         options_.block_size;
}

Match BlockCache::match(Chain& chain, std::span<const int32_t> tokens, int32_t max_blocks,
                        BlockTables* found) const {
  found->assign(options_.windows.size(), {});
  Match match;
  if (!options_.share_prefixes) return match;
  int32_t without_states = 0;
  NodeRef node;
  StateId before = kNoState;  // of the node before
  // By group: its blocks from here to the last one found are there.
  std::vector<int32_t> there_from(options_.windows.size(), 0);
  for (int32_t i = 0; i < max_blocks; ++i) {
    node = find(chain, tokens, i, node);
    if (node.node == kNoNode) break;
    bool can_go_on = true;
    for (int32_t g = 0; g < num_groups(); ++g) {
      const BlockId block = index_.block(node, g);
      int32_t& from = there_from[static_cast<size_t>(g)];
      (*found)[static_cast<size_t>(g)].blocks.push_back(block);
      if (block == kNoBlock) from = i + 1;
      can_go_on = can_go_on && from <= first_needed(g, (i + 1) * options_.block_size);
    }
    const bool is_whole = can_go_on || RUDDER_MUTANT(kHitWithHole);
    StateId checkpoint = index_.checkpoint(node);
    if (RUDDER_MUTANT(kRestoredTooFar) && checkpoint == kNoState) checkpoint = before;
    before = index_.checkpoint(node);
    const bool has_state =
        !has_states() || checkpoint != kNoState || RUDDER_MUTANT(kHitWithoutCheckpoint);
    if (is_whole) without_states = i + 1;
    if (is_whole && has_state) match = {i + 1, node, checkpoint, 0};
  }
  match.without_states = without_states;
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& table = (*found)[static_cast<size_t>(g)];
    table.blocks.resize(static_cast<size_t>(match.num_blocks));
    table.first =
        std::min(first_needed(g, match.num_blocks * options_.block_size), match.num_blocks);
    std::fill_n(table.blocks.begin(), table.first, kNoBlock);
  }
  return match;
}

void BlockCache::hold(Chain& chain, const Match& match, const BlockTables& found) {
  for (const BlockTable& table : found) {
    for (const BlockId block : table.held()) {
      if (block != kNoBlock || !RUDDER_MUTANT(kHitWithHole)) pool_.add_ref(block);
    }
  }
  if (match.checkpoint != kNoState && !RUDDER_MUTANT(kCheckpointUnheld)) {
    states_.add_ref(match.checkpoint);
  }
  chain.num_shared = match.num_blocks;
  chain.last_shared = match.last;
}

BlockId BlockCache::take() {
  if (pool_.num_free() == 0) {
    if (pool_.num_cached() == 0) return kNoBlock;
    evict_oldest();
  }
  const BlockId block = pool_.take_free();
  distrusted_[static_cast<size_t>(block)] = 0;
  return block;
}

StateId BlockCache::take_state() {
  if (states_.num_free() == 0) {
    const StateId oldest = states_.oldest_cached();
    if (oldest == kNoState) return kNoState;
    index_.detach_checkpoint(oldest);
    states_.uncache(oldest);
  }
  const StateId state = states_.take_free();
  distrusted_states_[static_cast<size_t>(state)] = 0;
  return state;
}

void BlockCache::release_state(StateId state) {
  states_.release(state, index_.is_checkpoint(state));
}

void BlockCache::share_checkpoint(Chain& chain, std::span<const int32_t> tokens, int32_t num_blocks,
                                  StateId from, StateId checkpoint) {
  if (!options_.share_prefixes || chain.num_shared > num_blocks) return;
  if (distrusted_states_[static_cast<size_t>(from)] != 0) return;
  if (distrusted_states_[static_cast<size_t>(checkpoint)] != 0) return;
  if (chain.num_shared > 0 && !index_.contains(chain.last_shared)) return;
  NodeRef node = chain.last_shared;
  for (int32_t i = chain.num_shared; i < num_blocks; ++i) {
    node = find(chain, tokens, i, node);
    if (node.node == kNoNode) return;
  }
  if (index_.checkpoint(node) != kNoState || index_.is_checkpoint(checkpoint)) return;
  index_.attach_checkpoint(node, checkpoint);
}

// Those of nodes that went: in use they are held by who copies them.
void BlockCache::uncache_lost() {
  for (const StateId state : index_.lost_checkpoints()) {
    if (states_.is_cached(state)) states_.uncache(state);
  }
  index_.clear_lost_checkpoints();
}

void BlockCache::evict_oldest() {
  forget(pool_.oldest_cached());
  ++evictions_;
}

// A prefix is of no use without a block of a group that sees all of it, but may be without one that
// a window passes.
void BlockCache::forget(BlockId block) {
  if (options_.windows[static_cast<size_t>(index_.group_of(block))] == 0) {
    return forget_node(index_.node_of(block));
  }
  index_.detach(block);
  if (pool_.is_cached(block)) pool_.uncache(block);
  uncache_lost();
}

void BlockCache::forget_node(const NodeRef& node) {
  erased_.clear();
  index_.erase(node, &erased_);
  for (const BlockId erased : erased_) {
    if (pool_.is_cached(erased)) pool_.uncache(erased);
  }
  uncache_lost();
}

// For block chain.num_shared of the sequence; kNoNode: it cannot be shared, or not now.
NodeRef BlockCache::add_node(Chain& chain, std::span<const int32_t> tokens,
                             const BlockTables& tables) {
  const int32_t i = chain.num_shared;
  for (const BlockTable& table : tables) {
    const BlockId block = table.blocks[static_cast<size_t>(i)];
    if (block != kNoBlock && is_distrusted(block)) return {};
  }
  while (index_.is_full() && pool_.num_cached() > 0) evict_oldest();
  const bool has_parent = i == 0 || index_.contains(chain.last_shared);
  if (index_.is_full() || !has_parent) return {};
  const BlockKey added = key(chain, tokens, i);
  return index_.insert(added, RUDDER_MUTANT(kHashWithoutParent) ? NodeRef{} : chain.last_shared,
                       chain.salt, content(chain, tokens, i));
}

void BlockCache::publish(Chain& chain, std::span<const int32_t> tokens, const BlockTables& tables,
                         int32_t num_tokens) {
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
  for (const BlockTable& table : tables) {
    RUDDER_CHECK(num_full <= std::ssize(table.blocks), "{} tokens, {} blocks", num_tokens,
                 table.blocks.size());
  }
  while (chain.num_shared < num_full) {
    const auto i = static_cast<size_t>(chain.num_shared);
    NodeRef node = find(chain, tokens, chain.num_shared, chain.last_shared);
    if (node.node == kNoNode) node = add_node(chain, tokens, tables);
    if (node.node == kNoNode) break;
    for (int32_t g = 0; g < num_groups(); ++g) {
      const BlockId own = tables[static_cast<size_t>(g)].blocks[i];
      const bool is_missing = own != kNoBlock && index_.block(node, g) == kNoBlock;
      if (is_missing && !is_distrusted(own)) index_.attach(node, g, own);
    }
    chain.last_shared = node;
    ++chain.num_shared;
  }
  // Nodes of blocks that were given back before they were shared may have nothing to stay for.
  index_.prune(chain.last_shared);
  uncache_lost();
}

void BlockCache::distrust(const BlockTables& tables, StateId state) {
  if (state != kNoState) distrusted_states_[static_cast<size_t>(state)] = 1;
  for (const BlockTable& table : tables) {
    for (const BlockId block : table.held()) {
      distrusted_[static_cast<size_t>(block)] = 1;
      if (index_.contains(block)) forget_node(index_.node_of(block));
    }
  }
}

int32_t BlockCache::count_refs(const BlockTables& tables, int32_t refs) const {
  int64_t count = 0;
  for (const BlockTable& table : tables) {
    count += std::ranges::count_if(table.held(),
                                   [&](BlockId block) { return pool_.refs(block) == refs; });
  }
  return static_cast<int32_t>(count);
}

void BlockCache::release_passed(BlockTables& tables, int32_t position) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& table = tables[static_cast<size_t>(g)];
    const int32_t first =
        std::min(first_needed(g, position), static_cast<int32_t>(table.blocks.size()));
    for (int32_t i = first - 1; i >= table.first; --i) {
      BlockId& block = table.blocks[static_cast<size_t>(i)];
      pool_.release(block, index_.contains(block));
      block = kNoBlock;
    }
    table.first = std::max(table.first, first);
  }
}

void BlockCache::release(Chain& chain, BlockTables& tables) {
  for (BlockTable& table : tables) {
    const std::span<const BlockId> held = table.held();
    for (auto block = held.rbegin(); block != held.rend(); ++block) {
      RUDDER_CHECK(*block != kNoBlock);
      pool_.release(*block, index_.contains(*block));
    }
    table = {};
  }
  chain.num_shared = 0;
  chain.last_shared = NodeRef{};
}

void BlockCache::forget_all(const std::string* identity, std::span<Chain* const> chains) {
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    if (index_.contains(block)) forget_node(index_.node_of(block));
    if (pool_.refs(block) > 0) distrusted_[static_cast<size_t>(block)] = 1;
  }
  for (StateId state = 0; state < states_.num_blocks(); ++state) {
    if (states_.refs(state) > 0) distrusted_states_[static_cast<size_t>(state)] = 1;
  }
  if (options_.watcher != nullptr) options_.watcher->cleared();
  if (identity == nullptr) return;
  RUDDER_CHECK(pool_.num_in_use() == 0, "{} blocks of the model before", pool_.num_in_use());
  hasher_ = ChainHasher({.hash_key = options_.hash_key,
                         .model_identity = *identity,
                         .hash_bits = options_.hash_bits,
                         .block_size = options_.block_size});
  for (Chain* const chain : chains) {
    hasher_.restart(*chain);
    chain->num_shared = 0;
    chain->last_shared = {};
  }
}

Result<void> BlockCache::check(const std::vector<std::span<const BlockId>>& tables,
                               std::span<const StateId> states) const {
  std::vector<int32_t> state_refs(static_cast<size_t>(states_.num_blocks()), 0);
  for (const StateId state : states) ++state_refs[static_cast<size_t>(state)];
  RUDDER_TRY_VOID(states_.check(state_refs));
  for (StateId state = 0; state < states_.num_blocks(); ++state) {
    if (states_.refs(state) == 0 && states_.is_cached(state) != index_.is_checkpoint(state)) {
      return fail(ErrorCode::kInternal,
                  fmt::format("state {} is cached and no checkpoint, or free and one", state));
    }
  }
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

// `key`: of the sequence's tokens up to this block's end; null when it is not full.
Result<void> BlockCache::check_block(const Chain& chain, int32_t group, BlockId block,
                                     const BlockKey* key, bool is_first) const {
  const auto broken = [&](std::string_view what) {
    return fail(ErrorCode::kInternal, fmt::format("block {} is shared {}", block, what));
  };
  if (key == nullptr) return broken("but not full");
  const NodeRef node = index_.node_of(block);
  const std::string* salt = index_.salt(node);
  if (is_first && (salt == nullptr || *salt != *chain.salt)) return broken("across salts");
  if (index_.key(node) != *key) return broken("under the key of another prefix");
  if (index_.group_of(block) != group) return broken("as one of another group");
  return {};
}

Result<void> BlockCache::check_chain(const Chain& chain, std::span<const int32_t> tokens,
                                     const BlockTables& tables) const {
  const auto size = static_cast<size_t>(options_.block_size);
  BlockKey key = hasher_.hasher().root(*chain.salt);
  for (size_t i = 0; i < tables.front().blocks.size(); ++i) {
    const bool full = (i + 1) * size <= tokens.size();
    if (full) key = hasher_.hasher().child(key, content(chain, tokens, static_cast<int32_t>(i)));
    for (int32_t g = 0; g < num_groups(); ++g) {
      const BlockId block = tables[static_cast<size_t>(g)].blocks[i];
      if (block == kNoBlock || !index_.contains(block)) continue;
      RUDDER_TRY_VOID(check_block(chain, g, block, full ? &key : nullptr, i == 0));
    }
  }
  return {};
}

}  // namespace rudder::cache
