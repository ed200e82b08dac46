// CachedKeys follows a cache, and a chain made elsewhere finds in it what the cache holds.
#include "rudder/cache/cached_keys.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "rudder/cache/block_cache.h"
#include "rudder/cache/prefix_chain.h"

namespace rudder::cache {
namespace {

constexpr int32_t kBlockSize = 4;
constexpr std::array<uint64_t, 2> kSecret = {7, 8};

CacheOptions cache_options(BlockWatcher* watcher) {
  return {.num_blocks = 8,
          .block_size = kBlockSize,
          .model_identity = "model",
          .hash_key = kSecret,
          .watcher = watcher};
}

// Leaves the full blocks of `tokens` in the cache, and no reference to them.
void cache_prefix(BlockCache& cache, const std::vector<int32_t>& tokens, const std::string& salt,
                  const std::vector<ContentRun>& runs) {
  Chain chain = cache.make_chain(salt, runs);
  BlockTables tables(1);
  for (size_t i = 0; i < tokens.size() / kBlockSize; ++i) {
    tables[0].blocks.push_back(cache.take());
  }
  cache.publish(chain, tokens, tables, static_cast<int32_t>(tokens.size()));
  cache.release(chain, tables);
}

// Blocks of the prompt that `keys` has, from the first on.
int32_t cached_blocks(const CachedKeys& keys, const std::vector<int32_t>& tokens,
                      const std::string& salt, const std::vector<ContentRun>& runs) {
  const ChainHasher hasher(
      {.hash_key = kSecret, .model_identity = "model", .block_size = kBlockSize});
  PrefixChain chain = hasher.begin(salt, runs);
  std::vector<ContentRun> scratch;
  const auto most = static_cast<int32_t>(tokens.size()) / kBlockSize;
  for (int32_t i = 0; i < most; ++i) {
    if (!keys.contains(hasher.key(chain, tokens, i, scratch))) return i;
  }
  return most;
}

const std::vector<int32_t> kPrompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
const std::vector<ContentRun> kSteered = {{.begin = 0, .end = 100, .content = {3, 4}}};

TEST(CachedKeys, FindWhatTheCacheHoldsForEachSaltAndSteering) {
  CachedKeys keys(0, nullptr);
  BlockCache cache(cache_options(&keys));
  cache_prefix(cache, kPrompt, "", {});
  EXPECT_EQ(cached_blocks(keys, kPrompt, "", {}), 0) << "the step is not done";
  keys.step_done();
  EXPECT_EQ(cached_blocks(keys, kPrompt, "", {}), 2);
  EXPECT_EQ(cached_blocks(keys, kPrompt, "salt", {}), 0);
  EXPECT_EQ(cached_blocks(keys, kPrompt, "", kSteered), 0);
  cache_prefix(cache, kPrompt, "salt", {});
  cache_prefix(cache, kPrompt, "", kSteered);
  keys.step_done();
  EXPECT_EQ(cached_blocks(keys, kPrompt, "salt", {}), 2);
  EXPECT_EQ(cached_blocks(keys, kPrompt, "", kSteered), 2);
  EXPECT_EQ(keys.size(), 6u);
}

TEST(CachedKeys, ForgetWhatTheCacheEvictsAndClears) {
  CachedKeys keys(0, nullptr);
  BlockCache cache(cache_options(&keys));
  cache_prefix(cache, kPrompt, "", {});
  cache_prefix(cache, kPrompt, "salt", {});
  keys.step_done();
  for (int i = 0; i < 7; ++i) ASSERT_NE(cache.take(), kNoBlock);  // evicts three of the four
  keys.step_done();
  EXPECT_EQ(keys.size(), 1u);
  EXPECT_EQ(cached_blocks(keys, kPrompt, "", {}), 0);
  EXPECT_EQ(cached_blocks(keys, kPrompt, "salt", {}), 1);
  cache.forget_all();
  keys.step_done();
  EXPECT_EQ(keys.size(), 0u);
}

TEST(CachedKeys, PassOnWhatTheyAreTold) {
  CachedKeys last(0, nullptr);
  CachedKeys keys(1, &last);  // looks at another group
  BlockCache cache(cache_options(&keys));
  cache_prefix(cache, kPrompt, "", {});
  keys.step_done();
  EXPECT_EQ(keys.size(), 0u);
  EXPECT_EQ(cached_blocks(last, kPrompt, "", {}), 2);
}

}  // namespace
}  // namespace rudder::cache
