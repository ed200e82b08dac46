#include "rudder/server/request/token_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "rudder/testing/tiny_tokenizer.h"

namespace rudder::server {
namespace {

const text::EncodeOptions kPlain;

// Of letters that the tiny tokenizer knows; another one for each number.
std::string long_text(int which) {
  std::string name = std::to_string(which);
  for (char& digit : name) digit = static_cast<char>(digit - '0' + 'a');
  std::string text = name;
  while (text.size() < 400) text += " abcd. " + name;
  return text;
}

class TokenCacheTest : public ::testing::Test {
 protected:
  // What the cache gives is what the tokenizer gives.
  void expect_encodes(TokenCache& cache, const std::string& text, int32_t tenant = 0,
                      const text::EncodeOptions& options = kPlain) {
    const auto found = cache.encode(*tokenizer_, text, options, tenant);
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, tokenizer_->encode(text, options).value());
  }

  const std::shared_ptr<const text::Tokenizer> tokenizer_ = testing::tiny_tokenizer();
};

TEST_F(TokenCacheTest, FindsATextAgain) {
  TokenCache cache(1 << 20);
  for (int round = 0; round < 3; ++round) expect_encodes(cache, long_text(1));
  expect_encodes(cache, long_text(2));
  EXPECT_EQ(cache.stats().queries, 4u);
  EXPECT_EQ(cache.stats().hits, 2u);
}

TEST_F(TokenCacheTest, OptionsAndTenantsAreKeptApart) {
  TokenCache cache(1 << 20);
  const std::string text = "<stop>" + long_text(1);
  for (int round = 0; round < 2; ++round) {
    expect_encodes(cache, text);
    expect_encodes(cache, text, 1);
    expect_encodes(cache, text, 0, {.add_special_tokens = false});
    expect_encodes(cache, text, 0, {.parse_special = false});
    expect_encodes(cache, text, 0, {.max_ids = 10});
    EXPECT_EQ(cache.stats().hits, round * 5u);
  }
}

TEST_F(TokenCacheTest, IsBoundedAndForgetsTheLeastRecentlyUsed) {
  constexpr int64_t kBytes = 32 << 10;
  TokenCache cache(kBytes);
  expect_encodes(cache, long_text(0));
  for (int i = 1; i < 200; ++i) {
    expect_encodes(cache, long_text(i));
    expect_encodes(cache, long_text(0));
    EXPECT_LE(cache.stats().bytes, kBytes);
  }
  EXPECT_EQ(cache.stats().hits, 199u) << "used again and again, it stays";
  expect_encodes(cache, long_text(1));
  EXPECT_EQ(cache.stats().hits, 199u) << "forgotten";
}

TEST_F(TokenCacheTest, ShortAndHugeTextsAreNotKept) {
  TokenCache cache(32 << 10);
  std::string huge;
  for (int i = 0; i < 300; ++i) huge += long_text(i);
  for (int round = 0; round < 2; ++round) {
    expect_encodes(cache, "abcd");
    expect_encodes(cache, huge);
  }
  EXPECT_EQ(cache.stats().hits, 0u);
  EXPECT_EQ(cache.stats().queries, 2u);
  EXPECT_EQ(cache.stats().bytes, 0);
  TokenCache off(0);
  for (int round = 0; round < 2; ++round) expect_encodes(off, long_text(1));
  EXPECT_EQ(off.stats().queries, 0u);
}

TEST_F(TokenCacheTest, ThreadsShareIt) {
  TokenCache cache(16 << 10);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) expect_encodes(cache, long_text((i + t) % 7));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.stats().queries, 800u);
  EXPECT_GT(cache.stats().hits, 0u);
}

}  // namespace
}  // namespace rudder::server
