// BlockCache: the scheduler's bookkeeping of KV blocks. It gives blocks out, takes them back, and
// lets sequences with equal prefixes share full blocks. A sequence has one block table for each KV
// group. A group with a window needs only the blocks that its window still reaches, also when a
// sequence starts from a cached prefix. The scheduler owns it and calls it on the engine thread. It
// knows blocks by number and never sees a tensor. Whoever releases a block promises that no step in
// flight reads it. Normative text: docs/contracts/kv.md.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/cache/block_key.h"
#include "rudder/cache/block_pool.h"
#include "rudder/cache/block_watcher.h"
#include "rudder/cache/prefix_chain.h"
#include "rudder/cache/prefix_index.h"

namespace rudder::cache {

struct CacheOptions {
  int32_t num_blocks = 0;
  int32_t block_size = 16;
  std::vector<int32_t> windows = {0};  // one a KV group; 0: its layers see all tokens
  bool share_prefixes = true;
  std::string model_identity;
  std::array<uint64_t, 2> hash_key = {};
  int32_t hash_bits = 128;
  BlockWatcher* watcher = nullptr;  // outlives the cache; null: nobody is told
  int32_t num_states = 0;           // 0: sequences keep nothing besides blocks
};

// A sequence's blocks of one group, in the order of its tokens.
struct BlockTable {
  std::vector<BlockId> blocks;  // kNoBlock before `first`: the window is past them
  int32_t first = 0;

  std::span<const BlockId> held() const {
    return std::span(blocks).subspan(static_cast<size_t>(first));
  }
};
using BlockTables = std::vector<BlockTable>;  // one a group, all of one length

// The first position that a token at `position` sees.
int32_t first_visible(int32_t position, int32_t window);

// A prefix that a sequence can go on from.
struct Match {
  int32_t num_blocks = 0;  // of each table
  NodeRef last;            // the node of the last of them
  // Where sequences have states: that of `last`, to be copied; none where num_blocks is 0.
  StateId checkpoint = kNoState;
  int32_t without_states = 0;  // blocks, if no checkpoint were needed
};

// A sequence's tokens as prefix blocks. Kept by the caller, one a sequence; the fields belong to
// BlockCache.
struct Chain : PrefixChain {
  int32_t num_shared = 0;  // its first blocks known to be in the index
  NodeRef last_shared;     // the node of the last of them
};

class BlockCache {
 public:
  explicit BlockCache(const CacheOptions& options);

  int32_t block_size() const { return options_.block_size; }
  int32_t num_groups() const { return static_cast<int32_t>(options_.windows.size()); }
  const BlockPool& pool() const { return pool_; }
  uint64_t evictions() const { return evictions_; }
  // Blocks that take() can give: free ones, and cached ones by eviction.
  int32_t num_available() const { return pool_.num_free() + pool_.num_cached(); }

  // States, likewise: those of running sequences go before checkpoints.
  bool has_states() const { return options_.num_states > 0; }
  const BlockPool& states() const { return states_; }
  int32_t num_available_states() const { return states_.num_free() + states_.num_cached(); }

  // Blocks of the tables that are referenced so often.
  int32_t count_refs(const BlockTables& tables, int32_t refs) const;
  // A holder of an equal prefix may use the block without writing it.
  bool is_shared(BlockId block) const { return index_.contains(block); }

  // As ChainHasher::begin.
  Chain make_chain(std::string salt, std::vector<ContentRun> runs = {}) const;
  // What the tokens that are not in a full block yet are computed under has become known.
  static void set_runs(Chain& chain, std::span<const ContentRun> runs);

  // The first block of a group that a token at `position` sees.
  int32_t first_needed(int32_t group, int32_t position) const;

  // The longest prefix of full blocks that `tokens` begin with, at most `max_blocks` long, that a
  // sequence can go on from: every block of the groups without a window is there, those that the
  // windows of the next token reach of the others, and where sequences have states a checkpoint
  // behind the last block. `found` gets the tables. Takes no reference:
  // the caller does (hold) or asks again.
  Match match(Chain& chain, std::span<const int32_t> tokens, int32_t max_blocks,
              BlockTables* found) const;
  // References what match() has found, from now on the first blocks of the chain's sequence. The
  // checkpoint is held for the copy of it, until release_state().
  void hold(Chain& chain, const Match& match, const BlockTables& found);

  // A block with undefined content, referenced once; evicts the oldest cached one when none is
  // free. kNoBlock when every block is in use.
  BlockId take();

  // A state with undefined content, referenced once; evicts the oldest checkpoint when none is
  // free. kNoState when every state is in use.
  StateId take_state();
  // Drops a reference: a checkpoint stays cached, any other state is free.
  void release_state(StateId state);
  // `checkpoint`, a copy of `from` behind the first `num_blocks` blocks of the sequence, is written
  // for good: it becomes that of its node, unless there is no such node, or it has one, or its
  // content is not trusted.
  void share_checkpoint(Chain& chain, std::span<const int32_t> tokens, int32_t num_blocks,
                        StateId from, StateId checkpoint);

  // Shares the full blocks among the first `num_tokens` tokens: their KV is written for good.
  void publish(Chain& chain, std::span<const int32_t> tokens, const BlockTables& tables,
               int32_t num_tokens);
  // Their content is not trusted (a sequence that read them ended in NaN): they and what hangs on
  // them are forgotten, and are not shared again by another sequence that still holds them.
  void distrust(const BlockTables& tables, StateId state = kNoState);
  // Gives back, of each group with a window, the blocks that no token from `position` on sees.
  void release_passed(BlockTables& tables, int32_t position);
  // Drops one reference to each block and empties the tables, last block first, so that a chain is
  // evicted from its tail.
  void release(Chain& chain, BlockTables& tables);
  // Empties the index: unreferenced blocks become free, and blocks in use are not shared again by
  // those who hold them. With `identity` no block is in use: keys are those of that model from now
  // on, and `chains`, all that there are, begin anew.
  void forget_all(const std::string* identity = nullptr, std::span<Chain* const> chains = {});

  // Key of full block `i` of `tokens`; kept in the chain.
  const BlockKey& key(Chain& chain, std::span<const int32_t> tokens, int32_t i) const;

  // What the watcher was told of and is still cached. O(blocks).
  std::vector<CachedBlock> watched() const { return index_.watched(); }

  // `tables`: what every sequence holds of each group. O(blocks).
  // `states`: those that sequences and copies in flight hold, each as often as it is held.
  Result<void> check(const std::vector<std::span<const BlockId>>& tables,
                     std::span<const StateId> states = {}) const;
  // That what the index says of a sequence's shared blocks is what the sequence holds: keys are
  // recomputed from its tokens and salt.
  Result<void> check_chain(const Chain& chain, std::span<const int32_t> tokens,
                           const BlockTables& tables) const;

 private:
  friend class CachedNodes;  // cached_nodes.h

  // Full block `i`; its runs are in runs_ until the next call.
  BlockContent content(const Chain& chain, std::span<const int32_t> tokens, int32_t i) const;
  NodeRef find(Chain& chain, std::span<const int32_t> tokens, int32_t i,
               const NodeRef& parent) const;
  NodeRef add_node(Chain& chain, std::span<const int32_t> tokens, const BlockTables& tables);
  Result<void> check_block(const Chain& chain, int32_t group, BlockId block, const BlockKey* key,
                           bool is_first) const;
  bool is_distrusted(BlockId block) const { return distrusted_[static_cast<size_t>(block)] != 0; }
  void forget(BlockId block);
  void forget_node(const NodeRef& node);
  void evict_oldest();
  void uncache_lost();

  const CacheOptions options_;
  ChainHasher hasher_;
  BlockPool pool_;
  PrefixIndex index_;
  BlockPool states_;
  std::vector<uint8_t> distrusted_;  // by block, until it is given out again
  std::vector<uint8_t> distrusted_states_;
  std::vector<BlockId> erased_;           // scratch
  mutable std::vector<ContentRun> runs_;  // scratch of content()
  uint64_t evictions_ = 0;
};

}  // namespace rudder::cache
