// Block tables of several KV groups: what a window gives back, and which prefixes a sequence can go
// on from.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "rudder/cache/block_cache.h"

namespace rudder::cache {
namespace {

constexpr int32_t kBlock = 4;

CacheOptions grouped(std::vector<int32_t> windows, int32_t num_blocks, int32_t hash_bits = 128) {
  return {.num_blocks = num_blocks,
          .block_size = kBlock,
          .windows = std::move(windows),
          .share_prefixes = true,
          .model_identity = "model",
          .hash_key = {1, 2},
          .hash_bits = hash_bits};
}

std::vector<int32_t> counted(int32_t from, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = from + i;
  return tokens;
}

// A sequence as the scheduler runs it: goes on from what is cached, then a chunk at a time.
class Runner {
 public:
  Runner(BlockCache* cache, std::vector<int32_t> tokens)
      : cache_(cache), tokens_(std::move(tokens)), chain_(cache->make_chain("")) {}

  int32_t begin() {
    const Match match = cache_->match(chain_, tokens_, num_tokens() / kBlock, &tables_);
    cache_->hold(chain_, match, tables_);
    computed_ = match.num_blocks * kBlock;
    return match.num_blocks;
  }
  // Computes up to `end`.
  void run_to(int32_t end, int32_t chunk = kBlock) {
    while (computed_ < end) {
      computed_ = std::min(computed_ + chunk, end);
      for (BlockTable& table : tables_) {
        while (std::ssize(table.blocks) * kBlock < computed_)
          table.blocks.push_back(cache_->take());
      }
      was_.resize(tables_.size());
      for (size_t g = 0; g < tables_.size(); ++g) {
        was_[g].resize(tables_[g].blocks.size(), kNoBlock);
        std::ranges::copy(tables_[g].held(), was_[g].begin() + tables_[g].first);
      }
      cache_->publish(chain_, tokens_, tables_, computed_);
      cache_->release_passed(tables_, computed_);
    }
  }
  void run() {
    begin();
    run_to(num_tokens());
  }
  void release() {
    cache_->release(chain_, tables_);
    computed_ = 0;
  }
  bool is_sound() const {
    std::vector<std::span<const BlockId>> held;
    for (const BlockTable& table : tables_) held.push_back(table.held());
    return cache_->check(held).has_value() &&
           cache_->check_chain(chain_, tokens_, tables_).has_value();
  }
  const BlockTables& tables() const { return tables_; }
  // By group: the block of each 16 tokens when they were computed.
  const std::vector<std::vector<BlockId>>& computed() const { return was_; }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  BlockCache* const cache_;
  const std::vector<int32_t> tokens_;
  Chain chain_;
  BlockTables tables_;
  std::vector<std::vector<BlockId>> was_;
  int32_t computed_ = 0;
};

// How many blocks of `tokens` a new sequence would go on from.
int32_t reused(const BlockCache& cache, const std::vector<int32_t>& tokens) {
  Chain chain = cache.make_chain("");
  BlockTables found;
  return cache.match(chain, tokens, static_cast<int32_t>(tokens.size()) / kBlock, &found)
      .num_blocks;
}

TEST(KvGroups, AWindowKeepsTheBlocksThatItReaches) {
  // The token at `position` sees (position - window, position].
  struct Case {
    int32_t window;
    int32_t position;
    int32_t first;
  };
  for (const Case& c :
       {Case{0, 100, 0}, Case{8, 7, 0}, Case{8, 10, 0}, Case{8, 11, 1}, Case{8, 12, 1},
        Case{8, 15, 2}, Case{1, 12, 3}, Case{9, 12, 1}, Case{10, 12, 0}}) {
    BlockCache cache(grouped({c.window}, 32));
    BlockTables tables(1);
    while (std::ssize(tables[0].blocks) * kBlock <= c.position) {
      tables[0].blocks.push_back(cache.take());
    }
    cache.release_passed(tables, c.position);
    EXPECT_EQ(tables[0].first, c.first) << c.window << ", " << c.position;
    EXPECT_EQ(std::ranges::count(tables[0].blocks, kNoBlock), c.first);
    EXPECT_EQ(cache.pool().num_in_use(), std::ssize(tables[0].blocks) - c.first);
    EXPECT_EQ(cache.pool().num_free(), 32 - cache.pool().num_in_use());
  }
}

TEST(KvGroups, AHitHoldsOnlyWhatTheWindowReaches) {
  BlockCache cache(grouped({0, 8}, 64));
  Runner first(&cache, counted(0, 40));
  first.run();
  EXPECT_TRUE(first.is_sound());
  EXPECT_EQ(cache.pool().num_in_use(), 10 + 2);  // positions 33 to 39 lie in two blocks
  EXPECT_EQ(cache.pool().num_cached(), 8);
  first.release();
  EXPECT_EQ(cache.pool().num_cached(), 20);
  Runner again(&cache, counted(0, 40));
  EXPECT_EQ(again.begin(), 10);
  EXPECT_EQ(again.tables()[0].first, 0);
  EXPECT_EQ(again.tables()[1].first, 8);
  EXPECT_EQ(again.tables()[1].blocks[7], kNoBlock);
  EXPECT_EQ(cache.pool().num_in_use(), 12);
  EXPECT_TRUE(again.is_sound());
}

// Blocks that the window passed are the first to be evicted: a prefix that ends there is no hit any
// more, the whole one is.
TEST(KvGroups, AHitNeedsTheWholeLastWindow) {
  BlockCache cache(grouped({0, 8}, 20));
  Runner first(&cache, counted(0, 40));
  first.run();
  first.release();
  EXPECT_EQ(reused(cache, counted(0, 22)), 5);
  const auto take = [&](int count) {
    for (int i = 0; i < count; ++i) EXPECT_NE(cache.take(), kNoBlock);
  };
  // A prefix of 5 blocks needs blocks 3 and 4 of the windowed group.
  std::vector<int32_t> other = counted(0, 20);
  other.resize(30, 999);
  take(3);  // blocks 0 to 2 of the windowed group, which it passed first
  EXPECT_EQ(cache.evictions(), 3u);
  EXPECT_EQ(reused(cache, other), 5);
  take(1);
  EXPECT_EQ(reused(cache, other), 0);
  take(4);
  EXPECT_EQ(reused(cache, counted(0, 40)), 10);
  take(1);  // the last of the group without a window: a node less
  EXPECT_EQ(reused(cache, counted(0, 40)), 0);
}

TEST(KvGroups, AHoleIsFilledByWhoComputesItAgain) {
  BlockCache cache(grouped({0, 8}, 20));
  Runner first(&cache, counted(0, 40));
  first.run();
  first.release();
  for (int i = 0; i < 8; ++i) cache.take();
  std::vector<int32_t> shorter = counted(0, 20);
  shorter.push_back(999);
  EXPECT_EQ(reused(cache, shorter), 0);
  Runner again(&cache, shorter);
  EXPECT_EQ(again.begin(), 0);
  again.run_to(20);  // evicts what it needs; the nodes that are left take its windowed blocks
  EXPECT_EQ(reused(cache, shorter), 5);
}

// Without a group that sees everything a prefix lives on in its last window, however long it is;
// and different prefixes with the same last window are told apart, also under keys that collide.
TEST(KvGroups, WindowsAlone) {
  for (const int32_t bits : {1, 128}) {
    BlockCache cache(grouped({8, 6}, 12, bits));
    Runner first(&cache, counted(0, 400));
    first.begin();
    first.run_to(40);
    EXPECT_EQ(cache.pool().num_in_use(), 4) << bits;
    first.release();
    for (int i = 0; i < 8; ++i) cache.take();
    EXPECT_EQ(reused(cache, counted(0, 41)), 10) << bits;
    std::vector<int32_t> differs = counted(0, 41);
    differs[2] = 999;
    EXPECT_EQ(reused(cache, differs), 0) << bits;
    EXPECT_EQ(reused(cache, counted(0, 36)), 0) << bits;
  }
}

// Prefixes without blocks are bounded: those released longest ago go.
TEST(KvGroups, LongPrefixesDoNotFillTheIndex) {
  BlockCache cache(grouped({8}, 16));
  for (int32_t i = 0; i < 20; ++i) {
    Runner runner(&cache, counted(1000 * i, 100));
    runner.run();
    EXPECT_TRUE(runner.is_sound()) << i;
    runner.release();
    EXPECT_EQ(reused(cache, counted(1000 * i, 100)), 25) << i;
  }
  EXPECT_GT(cache.evictions(), 0u);
  Runner longer(&cache, counted(50'000, 1000));  // more blocks than there may be nodes
  longer.run();
  EXPECT_TRUE(longer.is_sound());
  longer.release();
  EXPECT_TRUE(cache.check({}));
  EXPECT_EQ(cache.pool().num_in_use(), 0);
}

// Against the definition, whatever was evicted: a prefix of n blocks is a hit when all of its
// blocks of the first group, and those of its last window of the others, are in the index.
TEST(KvGroups, HitsAreTheLongestThatCanGoOn) {
  std::mt19937 random(3);
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  int num_holes = 0;
  for (int round = 0; round < 400; ++round) {
    const std::vector<int32_t> windows = {0, pick(2, 14), pick(2, 30)};
    const int32_t num_blocks = pick(40, 60);
    BlockCache cache(grouped(windows, num_blocks, round % 2 == 0 ? 1 : 128));
    const int32_t len = pick(12, 52);
    Runner first(&cache, counted(0, len));
    first.begin();
    for (int32_t end = 0; end < len;) {
      end = std::min(len, end + pick(1, 9));
      first.run_to(end, 9);
    }
    const std::vector<std::vector<BlockId>> was = first.computed();
    first.release();
    const int32_t num_taken = pick(0, 30);
    for (int32_t i = 0; i < num_taken; ++i) cache.take();
    int32_t expected = 0;
    for (int32_t n = 1; n <= len / kBlock; ++n) {
      bool hit = true;
      for (size_t g = 0; g < 3; ++g) {
        const int32_t seen = windows[g] == 0 ? 0 : std::max(0, n * kBlock - windows[g] + 1);
        for (int32_t i = seen / kBlock; i < n; ++i) {
          const BlockId block = was[g][static_cast<size_t>(i)];
          hit = hit && block != kNoBlock && cache.pool().is_cached(block);
        }
      }
      if (hit) expected = n;
      num_holes += hit ? 0 : 1;
    }
    EXPECT_EQ(reused(cache, counted(0, len)), expected) << round;
  }
  EXPECT_GT(num_holes, 100);
}

}  // namespace
}  // namespace rudder::cache
