// The constraints that are lists of tokens. Token ids are tiny_tokenizer's where text matters.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "rudder/constraint/allowed_tokens.h"
#include "rudder/constraint/bad_words.h"
#include "rudder/constraint/thinking_budget.h"
#include "rudder/testing/tiny_tokenizer.h"

namespace rudder::constraint {
namespace {

using Tokens = std::vector<int32_t>;

// What a matcher leaves of a vocabulary.
Tokens allowed_tokens(Matcher& matcher, int32_t vocab_size) {
  std::vector<uint32_t> mask(mask_words(vocab_size));
  fill_mask(mask, vocab_size);
  EXPECT_TRUE(matcher.restrict(mask));
  Tokens tokens;
  for (int32_t token = 0; token < vocab_size; ++token) {
    if (is_in_mask(mask, token)) tokens.push_back(token);
  }
  return tokens;
}

void advance(Matcher& matcher, const Tokens& tokens) {
  for (const int32_t token : tokens) EXPECT_TRUE(matcher.advance(token));
}

TEST(TokenMask, EndsWithTheVocabulary) {
  for (const int32_t vocab_size : {1, 31, 32, 33, 64}) {
    std::vector<uint32_t> mask(mask_words(vocab_size));
    fill_mask(mask, vocab_size);
    int32_t bits = 0;
    for (const uint32_t word : mask) bits += __builtin_popcount(word);
    EXPECT_EQ(bits, vocab_size);
    for (int32_t token = 0; token < vocab_size; ++token) {
      EXPECT_FALSE(is_mask_empty(mask));
      clear_in_mask(mask, token);
    }
    EXPECT_TRUE(is_mask_empty(mask));
  }
}

TEST(AllowedTokens, AreTheOnlyOnesAndStaySo) {
  const auto constraint = allow_tokens(Tokens{0, 31, 32, 40, 32}, 41);
  const auto matcher = constraint->start();
  EXPECT_EQ(allowed_tokens(*matcher, 41), (Tokens{0, 31, 32, 40}));
  advance(*matcher, {32, 0});
  EXPECT_EQ(allowed_tokens(*matcher, 41), (Tokens{0, 31, 32, 40}));
}

TEST(ThinkingBudget, EndsEachThoughtAndNothingElse) {
  const Tokens all = {0, 1, 2, 3, 4, 5, 6};
  const auto matcher = limit_thinking(Tokens{1}, Tokens{2, 3}, 2, false)->start();
  EXPECT_EQ(allowed_tokens(*matcher, 7), all);
  advance(*matcher, {5, 5, 5, 5});
  EXPECT_EQ(allowed_tokens(*matcher, 7), all) << "outside thoughts nothing is counted";
  advance(*matcher, {1, 6});
  EXPECT_EQ(allowed_tokens(*matcher, 7), all);
  advance(*matcher, {6});
  EXPECT_EQ(allowed_tokens(*matcher, 7), Tokens{2});
  advance(*matcher, {2});
  EXPECT_EQ(allowed_tokens(*matcher, 7), Tokens{3});
  advance(*matcher, {3});
  EXPECT_EQ(allowed_tokens(*matcher, 7), all);
  advance(*matcher, {5, 5, 5, 1, 6, 2});
  EXPECT_EQ(allowed_tokens(*matcher, 7), Tokens{3}) << "the mark has begun by itself";
  advance(*matcher, {3, 1, 2, 3});
  EXPECT_EQ(allowed_tokens(*matcher, 7), all) << "a thought may end early";

  const auto open = limit_thinking(Tokens{1}, Tokens{2}, 0, true)->start();
  EXPECT_EQ(allowed_tokens(*open, 7), Tokens{2}) << "the prompt has opened one";
}

TEST(AllowedTokens, NarrowWhatAnotherConstraintLeft) {
  const auto first = allow_tokens(Tokens{1, 2}, 5)->start();
  const auto second = allow_tokens(Tokens{2, 3}, 5)->start();
  std::vector<uint32_t> mask = {0x1F};
  EXPECT_TRUE(first->restrict(mask));
  EXPECT_TRUE(second->restrict(mask));
  EXPECT_EQ(mask[0], 4u);
}

TEST(BadWords, OnlyTheLastTokenOfASequenceIsForbidden) {
  const auto matcher = forbid_words({{3}, {1, 2, 4}, {1, 5}})->start();
  EXPECT_EQ(allowed_tokens(*matcher, 6), (Tokens{0, 1, 2, 4, 5}));
  advance(*matcher, {1});
  EXPECT_EQ(allowed_tokens(*matcher, 6), (Tokens{0, 1, 2, 4}));
  advance(*matcher, {2});
  EXPECT_EQ(allowed_tokens(*matcher, 6), (Tokens{0, 1, 2, 5}));
  advance(*matcher, {2});
  EXPECT_EQ(allowed_tokens(*matcher, 6), (Tokens{0, 1, 2, 4, 5}));
  advance(*matcher, {1, 2});
  EXPECT_EQ(allowed_tokens(*matcher, 6), (Tokens{0, 1, 2, 5}));
}

// However long the output, and whatever it repeats.
TEST(BadWords, LooksAsFarBackAsItsLongestSequence) {
  const auto matcher = forbid_words({{1, 1, 1, 2}})->start();
  int32_t ones = 0;
  for (int32_t i = 0; i < 200; ++i) {
    const Tokens expected = ones >= 3 ? Tokens{0, 1} : Tokens{0, 1, 2};
    EXPECT_EQ(allowed_tokens(*matcher, 3), expected) << i;
    const int32_t token = i % 7 < 5 ? 1 : 0;
    ones = token == 1 ? ones + 1 : 0;
    advance(*matcher, {token});
  }
}

// Also of a trial within one, however long both are.
TEST(TokenLists, WhatIsTriedLeavesNoTrace) {
  const std::unique_ptr<Matcher> matchers[] = {
      forbid_words({{1, 1, 1, 2}, {1, 3}, {4}})->start(),
      limit_thinking(Tokens{1}, Tokens{2, 3}, 2, false)->start(),
      allow_tokens(Tokens{0, 1, 2}, 5)->start()};
  const Tokens branch = {1, 1, 0, 2, 1, 1, 1, 0, 3};
  for (const auto& matcher : matchers) {
    for (const int32_t token : {0, 1, 1, 1, 2, 3, 1, 0}) {
      const Tokens before = allowed_tokens(*matcher, 5);
      matcher->begin_trial();
      advance(*matcher, {1, 1});
      const Tokens behind = allowed_tokens(*matcher, 5);
      for (size_t length = 0; length <= branch.size(); ++length) {
        matcher->begin_trial();
        advance(*matcher, {branch.begin(), branch.begin() + static_cast<ptrdiff_t>(length)});
        matcher->end_trial();
        EXPECT_EQ(allowed_tokens(*matcher, 5), behind);
      }
      matcher->end_trial();
      EXPECT_EQ(allowed_tokens(*matcher, 5), before);
      advance(*matcher, {token});
    }
  }
}

TEST(BadWords, EachChoiceHasItsOwnOutput) {
  const auto constraint = forbid_words({{1, 2}});
  const auto first = constraint->start();
  const auto second = constraint->start();
  advance(*first, {1});
  EXPECT_EQ(allowed_tokens(*first, 3), (Tokens{0, 1}));
  EXPECT_EQ(allowed_tokens(*second, 3), (Tokens{0, 1, 2}));
}

TEST(BadWords, AWordIsSpelledAloneAndBehindASpace) {
  const auto tokenizer = testing::tiny_tokenizer();
  const auto spellings = spellings_of("ab", *tokenizer).value();
  const Tokens alone = tokenizer->encode("ab", {.add_special_tokens = false}).value();
  const Tokens behind_space = tokenizer->encode(" ab", {.add_special_tokens = false}).value();
  EXPECT_NE(alone, behind_space);
  EXPECT_EQ(spellings, (std::vector<Tokens>{alone, behind_space}));
  // Leading space is no part of the word.
  EXPECT_EQ(spellings_of("  ab", *tokenizer).value(), spellings);
}

TEST(BadWords, AWordWithoutATokenIsRefused) {
  const auto tokenizer = testing::tiny_tokenizer();
  for (const char* word : {"", "  ", "\n"}) {
    const auto spellings = spellings_of(word, *tokenizer);
    ASSERT_FALSE(spellings);
    EXPECT_EQ(spellings.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace rudder::constraint
