#include "rudder/cache/block_key.h"

#include <gtest/gtest.h>

#include <vector>

namespace rudder::cache {
namespace {

using Tokens = std::vector<int32_t>;
using Runs = std::vector<ContentRun>;

BlockKey child(const KeyHasher& hasher, const BlockKey& parent, const Tokens& tokens,
               const Runs& runs = {}) {
  return hasher.child(parent, {tokens, runs});
}

TEST(BlockKeyTest, CoversEverything) {
  const KeyHasher hasher({1, 2}, "model", 128);
  const BlockKey key = child(hasher, hasher.root("salt"), Tokens{1, 2, 3});
  EXPECT_EQ(key, child(hasher, hasher.root("salt"), Tokens{1, 2, 3}));
  EXPECT_NE(key, child(hasher, hasher.root("salt2"), Tokens{1, 2, 3}));
  EXPECT_NE(key, child(hasher, hasher.root("salt"), Tokens{1, 2, 4}));
  EXPECT_NE(key, child(hasher, hasher.root("salt"), Tokens{1, 2}));
  EXPECT_NE(key, child(hasher, key, Tokens{1, 2, 3}));
  const KeyHasher other_model({1, 2}, "model2", 128);
  EXPECT_NE(key, child(other_model, other_model.root("salt"), Tokens{1, 2, 3}));
  const KeyHasher other_secret({1, 3}, "model", 128);
  EXPECT_NE(key, child(other_secret, other_secret.root("salt"), Tokens{1, 2, 3}));
}

TEST(BlockKeyTest, CoversWhatTheTokensWereComputedUnder) {
  const KeyHasher hasher({1, 2}, "model", 128);
  const BlockKey root = hasher.root("salt");
  const Tokens tokens = {1, 2, 3, 4};
  const std::vector<Runs> all = {{},
                                 {{0, 4, {1, 2}}},
                                 {{0, 4, {2, 1}}},
                                 {{0, 4, {1, 7}}},
                                 {{0, 2, {1, 2}}},
                                 {{2, 4, {1, 2}}},
                                 {{0, 2, {1, 2}}, {2, 4, {1, 3}}},
                                 {{0, 1, {1, 2}}, {2, 4, {1, 3}}}};
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(child(hasher, root, tokens, all[i]), child(hasher, root, tokens, Runs(all[i])));
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(child(hasher, root, tokens, all[i]), child(hasher, root, tokens, all[j]));
    }
  }
}

TEST(BlockKeyTest, FieldsDoNotRunTogether) {
  EXPECT_NE(KeyHasher({1, 2}, "ab", 128).root("c"), KeyHasher({1, 2}, "a", 128).root("bc"));
  EXPECT_NE(KeyHasher({1, 2}, "", 128).root("a"), KeyHasher({1, 2}, "a", 128).root(""));
}

TEST(BlockKeyTest, KeepsAsManyBitsAsAsked) {
  for (const int32_t bits : {1, 63, 64, 65, 127}) {
    const BlockKey key = KeyHasher({1, 2}, "model", bits).root("salt");
    const BlockKey whole = KeyHasher({1, 2}, "model", 128).root("salt");
    EXPECT_EQ(key.low, bits >= 64 ? whole.low : whole.low & ((uint64_t{1} << bits) - 1));
    EXPECT_EQ(key.high, bits <= 64 ? 0 : whole.high & ((uint64_t{1} << (bits - 64)) - 1));
  }
}

}  // namespace
}  // namespace rudder::cache
