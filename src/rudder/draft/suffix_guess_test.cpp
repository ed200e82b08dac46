// Drafts of suffix trees: what is in one, by hand; and that a tree has the likeliest tokens of all.
#include "rudder/draft/suffix_guess.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "rudder/base/philox.h"

namespace rudder::draft {
namespace {

using TokenRun = std::vector<int32_t>;

SuffixTree tree_of(const std::vector<TokenRun>& texts, int32_t depth = 8) {
  SuffixTree tree(depth);
  for (const TokenRun& text : texts) {
    tree.begin_text();
    for (const int32_t token : text) tree.append(token);
  }
  return tree;
}

sched::Draft guess_behind(const SuffixTree& tree, const TokenRun& text,
                          const SuffixLimits& limits) {
  SuffixGuess guess;
  guess.add_behind(tree, text);
  sched::Draft draft;
  guess.make(limits, &draft);
  return draft;
}

// Behind 7 come 1 three times and 5 once, of which 8 7 knows one: 1.
TEST(SuffixGuess, ALongContextLeavesAShareToShorterOnes) {
  const SuffixTree tree = tree_of({{8, 7, 1, 2, 3}, {9, 7, 1, 2, 3}, {7, 1, 4}, {7, 5}});
  const SuffixLimits limits = {.most = 8, .takes_tree = true, .min_token_prob = 0};
  const sched::Draft one = guess_behind(tree, {6, 7}, limits);  // a match of 1: one token deep
  EXPECT_EQ(one.tokens, (TokenRun{1, 5}));
  EXPECT_FLOAT_EQ(one.odds[0], 3.0f / 6);
  EXPECT_FLOAT_EQ(one.odds[1], 1.0f / 6);
  EXPECT_EQ(one.tree.parent(1), 0);
  EXPECT_EQ(one.tree.parent(2), 0);

  const sched::Draft two = guess_behind(tree, {8, 7}, limits);
  ASSERT_GE(two.tokens.size(), 3u);
  EXPECT_EQ(two.tokens[0], 1);
  EXPECT_FLOAT_EQ(two.odds[0], 1.0f / 2 + 1.0f / 2 * 3 / 6);
  const auto sibling = std::ranges::find(two.tokens, 5) - two.tokens.begin();
  EXPECT_FLOAT_EQ(two.odds[static_cast<size_t>(sibling)], 1.0f / 2 * 1 / 6);
  EXPECT_EQ(two.tokens[1], 2);  // behind 8 7 1 once, behind 7 1 two times of three
  EXPECT_EQ(two.tree.parent(2), 1);
  EXPECT_FLOAT_EQ(two.odds[1], 1.0f / 2 + 1.0f / 2 * 2 / 5);
}

TEST(SuffixGuess, AChainHasTheLikeliestTokenEach) {
  const SuffixTree tree = tree_of({{8, 7, 1, 2, 3}, {9, 7, 1, 2, 3}, {7, 1, 4}, {7, 5}});
  const sched::Draft draft = guess_behind(tree, {8, 7}, {.most = 8, .min_token_prob = 0.1});
  EXPECT_EQ(draft.tokens, (TokenRun{1, 2}));
  EXPECT_TRUE(draft.tree.empty());
  EXPECT_EQ(draft.odds.size(), 2u);
  EXPECT_EQ(guess_behind(tree, {8, 7}, {.most = 1}).tokens, TokenRun{1});
  EXPECT_EQ(guess_behind(tree, {8, 7}, {.most = 8, .max_spec_factor = 0}).tokens, TokenRun{});
  EXPECT_EQ(guess_behind(tree, {7}, {.most = 8, .min_token_prob = 0.6}).tokens, TokenRun{});
  EXPECT_EQ(guess_behind(tree, {6}, {.most = 8}).tokens, TokenRun{});
}

// A tree's text that ends within a context has nothing to say behind it.
TEST(SuffixGuess, OfItsOwnEndATextKnowsWhatCameBefore) {
  const SuffixTree tree = tree_of({{1, 2, 3, 4, 1, 2}});
  SuffixGuess guess;
  guess.add_own(tree);
  sched::Draft draft;
  guess.make({.most = 8, .max_spec_factor = 4, .min_token_prob = 0.1}, &draft);
  EXPECT_EQ(draft.tokens, (TokenRun{3, 4, 1, 2}));
}

TEST(SuffixGuess, SeveralTreesAreBlended) {
  const SuffixTree own = tree_of({{9, 7, 1}});
  const SuffixTree other = tree_of({{8, 7, 2}, {8, 7, 2}});
  SuffixGuess guess;
  guess.add_behind(own, TokenRun{8, 7});
  guess.add_behind(other, TokenRun{8, 7});
  sched::Draft draft;
  guess.make({.most = 8, .takes_tree = true, .min_token_prob = 0}, &draft);
  EXPECT_EQ(draft.tokens, (TokenRun{2, 1}));
  EXPECT_FLOAT_EQ(draft.odds[0], 2.0f / 3 + 1.0f / 3 * 1 / 2 * 2 / 3);
  EXPECT_FLOAT_EQ(draft.odds[1], 1.0f / 3 * 1 / 2);
}

// More than a tree may have is a chain, or left out.
TEST(SuffixGuess, ALongChainIsNoTree) {
  TokenRun text;
  for (int32_t i = 0; i < 130; ++i) text.push_back(i);
  const SuffixTree plain = tree_of({text}, 128);
  const SuffixLimits limits = {
      .most = 100, .takes_tree = true, .max_spec_factor = 16, .min_token_prob = 0};
  const TokenRun end(text.begin() + 10, text.begin() + 20);
  const sched::Draft chain = guess_behind(plain, end, limits);
  EXPECT_EQ(chain.tokens.size(), 100u);
  EXPECT_TRUE(chain.tree.empty());
  TokenRun second = end;
  second.push_back(5);
  const sched::Draft tree = guess_behind(tree_of({text, second}, 128), end, limits);
  EXPECT_EQ(tree.tree.size(), 63);
  EXPECT_EQ(tree.tokens.size(), 63u);
}

// Of all trees of as many tokens it is the one with the most accepted tokens expected, and so are
// its beginnings; drafts that follow one row differ.
TEST(SuffixGuess, ATreeHasTheLikeliestTokens) {
  uint64_t draws = 0;
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(philox_u64(7, ++draws) % static_cast<uint64_t>(n));
  };
  for (int round = 0; round < 60; ++round) {
    SuffixTree tree(12);
    SuffixTree other(12);
    TokenRun text;
    const int32_t vocab = 2 + below(8);
    for (int32_t i = 0; i < 120; ++i) {
      text.push_back(i > 10 && below(3) > 0 ? text[static_cast<size_t>(i - 1 - below(9))]
                                            : below(vocab));
      tree.append(text.back());
      other.append(below(vocab));
    }
    const auto guess_of = [&](int32_t most) {
      SuffixGuess guess;
      guess.add_own(tree);
      guess.add_behind(other, text);
      sched::Draft draft;
      guess.make({.most = most, .takes_tree = true, .max_spec_factor = 3, .min_token_prob = 0.01},
                 &draft);
      return draft;
    };
    const sched::Draft all = guess_of(step::kMaxTreeDrafts);
    const auto parent = [&](int32_t row) {
      return all.tree.empty() ? row - 1 : all.tree.parent(row);
    };
    std::vector<double> probs = {1};
    std::map<int32_t, double> sums;
    for (int32_t row = 1; row <= std::ssize(all.tokens); ++row) {
      const double odds = all.odds[static_cast<size_t>(row - 1)];
      probs.push_back(probs[static_cast<size_t>(parent(row))] * odds);
      EXPECT_GE(probs.back(), 0.0099);
      sums[parent(row)] += odds;
      for (int32_t before = 1; before < row; ++before) {
        if (parent(before) != parent(row)) continue;
        EXPECT_NE(all.tokens[static_cast<size_t>(before - 1)],
                  all.tokens[static_cast<size_t>(row - 1)]);
      }
    }
    EXPECT_TRUE(std::ranges::is_sorted(probs, [](double a, double b) { return a > b + 1e-6; }));
    for (const auto& [row, sum] : sums) EXPECT_LE(sum, 1.0001) << row;
    const sched::Draft few = guess_of(5);
    ASSERT_EQ(few.tokens.size(), std::min<size_t>(5, all.tokens.size()));
    EXPECT_TRUE(std::equal(few.tokens.begin(), few.tokens.end(), all.tokens.begin()));
  }
}

}  // namespace
}  // namespace rudder::draft
