// States and checkpoints of the prefix index (docs/contracts/cache.md).
#include <gtest/gtest.h>

#include <numeric>

#include "rudder/cache/block_cache.h"

namespace rudder::cache {
namespace {

constexpr int32_t kBlockTokens = 4;

CacheOptions with_states(int32_t num_states) {
  return {.num_blocks = 32,
          .block_size = kBlockTokens,
          .model_identity = "model",
          .hash_key = {1, 2},
          .num_states = num_states};
}

// A sequence of so many tokens from `first` on, with a state; everything is computed and shared.
struct Sequence {
  BlockCache& cache;
  std::vector<int32_t> tokens;
  Chain chain;
  BlockTables tables = {{}};
  StateId state = kNoState;

  Sequence(BlockCache& in, int32_t first, int32_t count)
      : cache(in), tokens(static_cast<size_t>(count)), chain(in.make_chain("")) {
    std::iota(tokens.begin(), tokens.end(), first);
    state = cache.take_state();
    for (int32_t i = 0; i < count; i += kBlockTokens) tables[0].blocks.push_back(cache.take());
    cache.publish(chain, tokens, tables, count);
  }
  // Behind so many of its blocks, as if it had just come so far.
  StateId make_checkpoint(int32_t num_blocks) {
    Chain before = cache.make_chain("");
    const StateId made = cache.take_state();
    cache.share_checkpoint(before, tokens, num_blocks, state, made);
    cache.release_state(made);
    return made;
  }
  void release() {
    cache.release(chain, tables);
    cache.release_state(state);
  }
};

Match find(BlockCache& cache, int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  Chain chain = cache.make_chain("");
  BlockTables found;
  return cache.match(chain, tokens, (count - 1) / kBlockTokens, &found);
}

TEST(CacheStatesTest, AMatchEndsAtTheLastCheckpoint) {
  BlockCache cache(with_states(4));
  Sequence sequence(cache, 0, 16);
  EXPECT_EQ(find(cache, 0, 17).num_blocks, 0);
  EXPECT_EQ(find(cache, 0, 17).without_states, 4);
  const StateId second = sequence.make_checkpoint(2);
  const StateId third = sequence.make_checkpoint(3);
  EXPECT_EQ(find(cache, 0, 17).num_blocks, 3);
  EXPECT_EQ(find(cache, 0, 17).checkpoint, third);
  EXPECT_EQ(find(cache, 0, 12).num_blocks, 2);
  EXPECT_EQ(find(cache, 0, 12).checkpoint, second);
  EXPECT_EQ(find(cache, 0, 8).checkpoint, kNoState);
  sequence.release();
  EXPECT_TRUE(cache.check({}));
}

TEST(CacheStatesTest, TheCheckpointUsedLongestAgoIsEvicted) {
  BlockCache cache(with_states(3));
  Sequence sequence(cache, 0, 16);
  const StateId first = sequence.make_checkpoint(1);
  const StateId second = sequence.make_checkpoint(2);
  EXPECT_EQ(cache.num_available_states(), 2);
  EXPECT_EQ(cache.take_state(), first);
  EXPECT_EQ(find(cache, 0, 5).num_blocks, 0);
  EXPECT_EQ(find(cache, 0, 9).checkpoint, second);
  EXPECT_EQ(cache.take_state(), second);
  EXPECT_EQ(cache.take_state(), kNoState);
}

TEST(CacheStatesTest, ACheckpointThatIsHeldIsNotGivenAway) {
  BlockCache cache(with_states(3));
  Sequence sequence(cache, 0, 16);
  const StateId made = sequence.make_checkpoint(2);
  Chain chain = cache.make_chain("");
  BlockTables found;
  const Match match = cache.match(chain, sequence.tokens, 3, &found);
  cache.hold(chain, match, found);
  EXPECT_EQ(match.checkpoint, made);
  EXPECT_NE(cache.take_state(), made);
  EXPECT_EQ(cache.take_state(), kNoState);
  cache.release_state(made);
  EXPECT_EQ(cache.take_state(), made);
}

TEST(CacheStatesTest, ACheckpointGoesWithItsNode) {
  BlockCache cache(with_states(4));
  Sequence sequence(cache, 0, 16);
  sequence.make_checkpoint(2);
  sequence.release();
  EXPECT_EQ(cache.states().num_cached(), 1);
  while (cache.pool().num_cached() > 0 || cache.pool().num_free() > 0) cache.take();
  EXPECT_EQ(cache.states().num_cached(), 0);
  EXPECT_EQ(cache.states().num_free(), 4);
}

TEST(CacheStatesTest, WhatIsNotTrustedIsNotShared) {
  BlockCache cache(with_states(4));
  Sequence numerical(cache, 0, 16);
  cache.distrust(numerical.tables, numerical.state);
  numerical.make_checkpoint(2);
  Sequence reset(cache, 100, 16);
  cache.forget_all();
  reset.make_checkpoint(2);
  EXPECT_EQ(cache.states().num_cached(), 0);
  EXPECT_EQ(find(cache, 100, 17).num_blocks, 0);
}

}  // namespace
}  // namespace rudder::cache
