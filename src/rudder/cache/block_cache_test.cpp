#include "rudder/cache/block_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>
#include <stdexcept>

#include "rudder/base/check.h"

namespace rudder::cache {
namespace {

constexpr int32_t kSize = 4;
constexpr int32_t kForEver = std::numeric_limits<int32_t>::max();
using Tokens = std::vector<int32_t>;

CacheOptions options(int32_t num_blocks, int32_t hash_bits = 128) {
  return {.num_blocks = num_blocks,
          .block_size = kSize,
          .share_prefixes = true,
          .model_identity = "model",
          .hash_key = {1, 2},
          .hash_bits = hash_bits};
}

Tokens count_up(int32_t from, int32_t count) {
  Tokens tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(from + i);
  return tokens;
}

// One sequence as the scheduler keeps it: matched blocks, then new ones, everything computed.
struct Holder {
  BlockCache* cache;
  Tokens tokens;
  Chain chain;
  BlockTables tables = {{}};

  Holder(BlockCache* in, Tokens with, const std::string& salt = "",
         std::vector<ContentRun> runs = {})
      : cache(in), tokens(std::move(with)), chain(in->make_chain(salt, std::move(runs))) {}

  std::vector<BlockId>& blocks() { return tables[0].blocks; }
  size_t match() {
    const auto max_blocks = static_cast<int32_t>((tokens.size() - 1) / kSize);
    cache->hold(chain, cache->match(chain, tokens, max_blocks, &tables), tables);
    return blocks().size();
  }
  size_t fill() {
    const size_t matched = match();
    while (blocks().size() * kSize < tokens.size()) {
      const BlockId block = cache->take();
      if (block == kNoBlock) break;
      blocks().push_back(block);
    }
    return matched;
  }
  void publish() { cache->publish(chain, tokens, tables, static_cast<int32_t>(tokens.size())); }
  void release() { cache->release(chain, tables); }
};

TEST(BlockCacheTest, MatchesTheLongestChainOfFullBlocks) {
  BlockCache cache(options(16));
  Holder first(&cache, count_up(0, 14));
  EXPECT_EQ(first.fill(), 0u);
  first.publish();  // 3 full blocks, 2 tokens more

  struct Case {
    Tokens tokens;
    size_t matched;
  };
  Tokens changed = count_up(0, 14);
  changed[5] = 99;
  const Case cases[] = {{count_up(0, 14), 3}, {count_up(0, 13), 3}, {count_up(0, 12), 2},
                        {count_up(0, 9), 2},  {count_up(0, 8), 1},  {count_up(0, 4), 0},
                        {count_up(0, 1), 0},  {count_up(1, 14), 0}, {changed, 1}};
  for (const Case& c : cases) {
    Holder holder(&cache, c.tokens);
    EXPECT_EQ(holder.match(), c.matched) << c.tokens.size();
    for (size_t i = 0; i < holder.blocks().size(); ++i)
      EXPECT_EQ(holder.blocks()[i], first.blocks()[i]);
    holder.release();
  }
  first.release();
  EXPECT_EQ(cache.pool().num_cached(), 3);
  EXPECT_EQ(cache.pool().num_free(), 13);
}

TEST(BlockCacheTest, AnUnpublishedBlockIsNotFound) {
  BlockCache cache(options(16));
  Holder first(&cache, count_up(0, 12));
  first.fill();
  cache.publish(first.chain, first.tokens, first.tables, 7);  // one block is full
  Holder second(&cache, count_up(0, 12));
  EXPECT_EQ(second.match(), 1u);
}

TEST(BlockCacheTest, EvictsTheOldestChainFromItsTail) {
  BlockCache cache(options(6));
  Holder old(&cache, count_up(0, 12));
  old.fill();
  old.publish();
  Holder young(&cache, count_up(100, 12));
  young.fill();
  young.publish();
  old.release();
  young.release();
  EXPECT_EQ(cache.pool().num_cached(), 6);

  std::vector<BlockId> taken = {cache.take()};
  EXPECT_EQ(Holder(&cache, count_up(0, 13)).match(), 2u);  // holds two: they are used again
  EXPECT_EQ(cache.evictions(), 1u);
  EXPECT_EQ(cache.num_available(), 3);
  for (size_t left = 3; left > 0; --left) {
    Holder probe(&cache, count_up(100, 13));
    EXPECT_EQ(probe.match(), left);
    probe.release();
    EXPECT_NE(cache.take(), kNoBlock);
  }
  EXPECT_EQ(cache.take(), kNoBlock);  // the rest is in use
}

TEST(BlockCacheTest, AHitMakesAChainYoung) {
  BlockCache cache(options(2));
  Holder a(&cache, count_up(0, 4));
  a.fill();
  a.publish();
  Holder b(&cache, count_up(100, 4));
  b.fill();
  b.publish();
  a.release();
  b.release();
  Holder again(&cache, count_up(0, 5));
  EXPECT_EQ(again.match(), 1u);
  again.release();
  cache.take();
  EXPECT_EQ(Holder(&cache, count_up(100, 5)).match(), 0u);
  EXPECT_EQ(Holder(&cache, count_up(0, 5)).match(), 1u);
}

TEST(BlockCacheTest, SaltsAreApart) {
  for (const int32_t bits : {1, 128}) {
    BlockCache cache(options(16, bits));
    Holder a(&cache, count_up(0, 12), "tenant a");
    a.fill();
    a.publish();
    EXPECT_EQ(Holder(&cache, count_up(0, 13), "tenant b").match(), 0u);
    EXPECT_EQ(Holder(&cache, count_up(0, 13), "").match(), 0u);
    EXPECT_EQ(Holder(&cache, count_up(0, 13), "tenant a").match(), 3u);
  }
}

TEST(BlockCacheTest, OnlyBlocksThatARunTouchesAreApart) {
  constexpr std::array<uint64_t, 2> kA = {1, 2}, kB = {1, 3};
  for (const int32_t bits : {1, 128}) {
    BlockCache cache(options(64, bits));
    Holder plain(&cache, count_up(0, 16));
    plain.fill();
    plain.publish();
    struct Case {
      std::vector<ContentRun> runs;
      size_t matched;  // of plain's four blocks
    };
    const Case cases[] = {{{}, 4},
                          {{{16, kForEver, kA}}, 4},  // behind all of them
                          {{{15, kForEver, kA}}, 3},
                          {{{6, 7, kA}}, 1},
                          {{{6, 6, kA}}, 4},  // no token at all
                          {{{0, 1, kA}}, 0}};
    for (const Case& c : cases) {
      Holder probe(&cache, count_up(0, 17), "", c.runs);
      EXPECT_EQ(probe.match(), c.matched) << bits;
      probe.release();
    }
    // The same tokens under A, and under A cut in two, are one prefix; under B they are another.
    Holder under_a(&cache, count_up(0, 16), "", {{4, 16, kA}});
    EXPECT_EQ(under_a.fill(), 1u);
    under_a.publish();
    EXPECT_EQ(Holder(&cache, count_up(0, 17), "", {{4, 9, kA}, {9, 40, kA}}).match(), 4u);
    EXPECT_EQ(Holder(&cache, count_up(0, 17), "", {{4, 9, kA}, {9, 40, kB}}).match(), 2u);
    EXPECT_EQ(Holder(&cache, count_up(0, 17), "", {{4, 16, kB}}).match(), 1u);
    EXPECT_EQ(Holder(&cache, count_up(0, 17)).match(), 4u);
    EXPECT_TRUE(cache.check_chain(under_a.chain, under_a.tokens, under_a.tables));
  }
}

// Against the definition: two sequences share block i when their first (i + 1) blocks agree in
// tokens and in what each token was computed under.
TEST(BlockCacheTest, SharingIsEqualityTokenByToken) {
  std::mt19937 random(7);
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    BlockCache cache(options(64, round % 2 == 0 ? 1 : 128));
    std::vector<Holder> holders;
    std::vector<std::vector<uint64_t>> under;  // by holder, by position
    for (int h = 0; h < 4; ++h) {
      std::vector<ContentRun> runs;
      std::vector<uint64_t>& mine = under.emplace_back(17, 0);
      for (int32_t at = pick(0, 8); at < 17 && pick(0, 2) != 0;) {
        const int32_t end = std::min(17, at + pick(0, 6));
        const auto content = static_cast<uint64_t>(pick(1, 2));
        runs.push_back({at, end == 17 ? kForEver : end, {content, 0}});
        for (int32_t i = at; i < end; ++i) mine[static_cast<size_t>(i)] = content;
        at = end == 17 ? 17 : end + pick(0, 2);
      }
      Holder& holder = holders.emplace_back(&cache, count_up(0, 17), "", runs);
      size_t expected = 0;
      for (int other = 0; other < h; ++other) {
        size_t agree = 0;
        while (agree < 16 && mine[agree] == under[static_cast<size_t>(other)][agree]) ++agree;
        expected = std::max(expected, agree / kSize);
      }
      EXPECT_EQ(holder.fill(), expected);
      holder.publish();
      EXPECT_TRUE(cache.check_chain(holder.chain, holder.tokens, holder.tables));
    }
  }
}

TEST(BlockCacheTest, CollisionsOfAOneBitKeyAreHarmless) {
  BlockCache cache(options(64, 1));
  std::vector<Holder> holders;
  for (int32_t i = 0; i < 8; ++i) {
    // Different first blocks, then equal ones: told apart by their parent alone.
    Tokens tokens = count_up(i, 4);
    const Tokens tail = count_up(50, 8);
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    holders.emplace_back(&cache, tokens);
    EXPECT_EQ(holders.back().fill(), 0u);
    holders.back().publish();
  }
  for (Holder& holder : holders) {
    Tokens longer = holder.tokens;
    longer.push_back(0);
    Holder probe(&cache, longer);
    EXPECT_EQ(probe.match(), 3u);
    EXPECT_EQ(probe.blocks(), holder.blocks());
    EXPECT_TRUE(cache.check_chain(probe.chain, probe.tokens, probe.tables));
  }
}

TEST(BlockCacheTest, TwoCopiesOfOneBlock) {
  BlockCache cache(options(16));
  Holder a(&cache, count_up(0, 8));
  Holder b(&cache, count_up(0, 8));
  a.fill();
  b.fill();
  a.publish();
  b.publish();  // finds a's
  EXPECT_EQ(cache.pool().num_in_use(), 4);
  a.release();
  EXPECT_EQ(cache.pool().num_cached(), 2);
  for (int i = 0; i < 14; ++i) cache.take();  // evicts a's copies
  b.tokens = count_up(0, 12);
  b.blocks().push_back(kNoBlock);
  cache.publish(b.chain, b.tokens, b.tables, 8);  // b's own take their place
  b.blocks().pop_back();
  EXPECT_EQ(Holder(&cache, count_up(0, 9)).match(), 2u);
}

TEST(BlockCacheTest, EvictingAParentForgetsWhatHangsOnIt) {
  BlockCache cache(options(4));
  Holder a(&cache, count_up(0, 4));
  a.fill();
  a.publish();
  Holder b(&cache, count_up(0, 4));
  b.fill();  // a copy: a lone full block is never matched
  b.tokens = count_up(0, 8);
  b.blocks().push_back(cache.take());
  b.publish();  // hangs its second block on a's first
  a.release();
  EXPECT_TRUE(cache.is_shared(b.blocks()[1]));
  cache.take();  // the free one
  cache.take();  // evicts a's
  EXPECT_FALSE(cache.is_shared(b.blocks()[1]));
  b.publish();  // both are b's own now
  EXPECT_TRUE(cache.is_shared(b.blocks()[0]));
  EXPECT_TRUE(cache.is_shared(b.blocks()[1]));
}

TEST(BlockCacheTest, DistrustedBlocksAreNotSharedAgain) {
  BlockCache cache(options(8));
  Holder a(&cache, count_up(0, 8));
  a.fill();
  a.publish();
  Holder b(&cache, count_up(0, 12));
  EXPECT_EQ(b.fill(), 2u);
  b.publish();
  cache.distrust(a.tables);
  EXPECT_EQ(Holder(&cache, count_up(0, 12)).match(), 0u);
  b.publish();
  EXPECT_EQ(Holder(&cache, count_up(0, 12)).match(), 0u);
  a.release();
  b.release();
  EXPECT_EQ(cache.pool().num_free(), 8);
  Holder again(&cache, count_up(0, 12));
  EXPECT_EQ(again.fill(), 0u);
  again.publish();
  EXPECT_EQ(Holder(&cache, count_up(0, 12)).match(), 2u);  // given out anew, trusted again
}

TEST(BlockCacheTest, ForgetAllLeavesWhatIsInUse) {
  BlockCache cache(options(8));
  Holder a(&cache, count_up(0, 8));
  Holder b(&cache, count_up(100, 8));
  a.fill();
  b.fill();
  a.publish();
  b.publish();
  a.release();
  cache.forget_all();
  EXPECT_EQ(cache.pool().num_cached(), 0);
  EXPECT_EQ(cache.pool().num_in_use(), 2);
  b.publish();
  EXPECT_EQ(Holder(&cache, count_up(100, 9)).match(), 0u);
  b.release();
  EXPECT_EQ(cache.pool().num_free(), 8);
  EXPECT_TRUE(cache.check({}));
}

TEST(BlockCacheTest, WithoutSharingNothingIsCached) {
  CacheOptions off = options(8);
  off.share_prefixes = false;
  BlockCache cache(off);
  Holder a(&cache, count_up(0, 8));
  a.fill();
  a.publish();
  a.release();
  EXPECT_EQ(cache.pool().num_free(), 8);
}

TEST(BlockCacheTest, CheckSeesALostReference) {
  BlockCache cache(options(4));
  const BlockId block = cache.take();
  const std::vector<BlockId> table = {block};
  EXPECT_TRUE(cache.check({table}));
  EXPECT_FALSE(cache.check({}));
  EXPECT_FALSE(cache.check({table, table}));
}

TEST(BlockPoolTest, ReleasingAFreeBlockIsABrokenInvariant) {
  set_check_hook([](const std::string& message) { throw std::logic_error(message); });
  BlockPool pool(2);
  const BlockId block = pool.take_free();
  pool.release(block, false);
  EXPECT_THROW(pool.release(block, false), std::logic_error);
  EXPECT_THROW(pool.add_ref(block), std::logic_error);
  EXPECT_THROW(pool.release(7, false), std::logic_error);
  set_check_hook(nullptr);
}

}  // namespace
}  // namespace rudder::cache
