#include "rudder/text/regex.h"
#include "rudder/base/utf8.h"

#include <gtest/gtest.h>

#include <random>

#include "rudder/text/splitters.h"

namespace rudder::text {
namespace {

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  auto regex = Regex::compile(pattern, "test");
  EXPECT_TRUE(regex.has_value()) << pattern << ": " << regex.error().to_string();
  std::vector<std::string> out;
  if (!regex) return out;
  const auto done = regex->for_each_match(
      text, [&](size_t begin, size_t end) { out.emplace_back(text.substr(begin, end - begin)); });
  EXPECT_TRUE(done.has_value());
  return out;
}

using Strings = std::vector<std::string>;

TEST(Regex, OnigurumaMeaningsAreKept) {
  EXPECT_EQ(matches(R"(\s+)", "a\u180e b\u0085c"), (Strings{" ", "\u0085"}));  // no U+180E
  EXPECT_EQ(matches(R"(\h+)", "xyz0aF"), (Strings{"0aF"}));                    // hex digits
  EXPECT_EQ(matches(R"(\p{Han}+)", "漢字かな、"), (Strings{"漢字"}));          // script only
  EXPECT_EQ(matches(R"(\p{^L}+)", "ab12"), (Strings{"12"}));
  EXPECT_EQ(matches(R"(a{,2}b)", "aaab"), (Strings{"aab"}));
  EXPECT_EQ(matches(R"(\d{1,2}+)", "12345"), (Strings{"12345"}));  // a repeated interval
  EXPECT_EQ(matches(R"(a++a|b)", "aaab"), (Strings{"b"}));         // possessive
  EXPECT_EQ(matches(R"(^b)", "a\nb"), (Strings{"b"}));             // lines, not the text
  EXPECT_EQ(matches(R"((?m:a.b))", "a\nb"), (Strings{"a\nb"}));    // Ruby's m is dot-all
  EXPECT_EQ(matches(R"((?i:'S))", "'s'\u017f"), (Strings{"'s", "'\u017f"}));
  EXPECT_EQ(matches(R"([[:digit:]a[bc]]+)", "x1abcd"), (Strings{"1abc"}));
  EXPECT_EQ(matches(R"(\p{L}+)", "\U0002EBF0"), (Strings{"\U0002EBF0"}));  // Unicode 15.1
}

TEST(Regex, WordCharactersDifferInsideAndOutsideAClass) {
  EXPECT_EQ(matches(R"(\w+)", "a½b"), (Strings{"a½b"}));
  EXPECT_EQ(matches(R"([\w]+)", "a½b"), (Strings{"a", "b"}));
  EXPECT_EQ(matches(R"(\bb)", "½b b"), (Strings{"b"}));
}

TEST(Regex, PatternsInUseCompile) {
  for (
      const char* pattern :
      {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       R"((?:[^\r\n\p{L}\p{N}]?+\p{L}++)|\p{N}{1,3}+|(?=(\d{3})+(?!\d)))",
       R"([一-龥぀-ゟ゠-ヿ]+)", R"([0-9][0-9][0-9])", R"(\s?[^\s!?.,]+)"}) {
    const auto regex = Regex::compile(pattern, "test");
    EXPECT_TRUE(regex.has_value()) << regex.error().to_string();
  }
}

TEST(Regex, EmptyMatchesAdvance) {
  EXPECT_EQ(matches("a*", "baac"), (Strings{"", "aa", ""}));
}

TEST(Regex, WhatCannotBeTranslatedIsNamed) {
  for (const char* pattern : {R"([a&&b])", R"([^\p{L}[^a]])", R"((?<name>a))", R"(\K)", R"(a**)",
                              R"([\D])", R"([[:graph:]])", R"((?x:a))", "(", "[a", R"(\p{C})"}) {
    const auto regex = Regex::compile(pattern, "pre_tokenizer.pattern");
    ASSERT_FALSE(regex.has_value()) << pattern;
    EXPECT_EQ(regex.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(regex.error().where, "pre_tokenizer.pattern");
  }
}

TEST(Regex, CatastrophicPatternsGiveUp) {
  auto regex = Regex::compile("(a+)+$", "test");
  ASSERT_TRUE(regex.has_value());
  const auto done = regex->for_each_match(std::string(64, 'a') + "b", [](size_t, size_t) {});
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
}

std::string random_text(std::mt19937& rng) {
  static const std::vector<std::string> kParts = {
      " ",       "  ",  "\n",     "\r\n", "\t",         "\u00a0", "\u3000", "'s", "'S",
      "'\u017f", "'ll", "'LL",    "'re",  "'",          "''d",    "a",      "Zz", "é",
      "漢",      "1",   "23",     "٤",    "½",          "!",      "...",    "=",  "\u0301",
      "😀",       "_",   "\u200d", "\x01", "\U0001E030", "\u2028", "don't"};
  std::string text;
  for (size_t n = rng() % 12; n > 0; --n) {
    if (rng() % 5 == 0) {
      char32_t c = 1 + rng() % 0x323AF;
      if (c >= 0xD800 && c < 0xE000) c = 'x';
      append_utf8(text, c);
    } else {
      text += kParts[rng() % kParts.size()];
    }
  }
  return text;
}

TEST(Splitters, EqualTheirRegex) {
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    const Splitter splitter = find_splitter(pattern);
    ASSERT_NE(splitter, nullptr);
    auto regex = Regex::compile(pattern, "test");
    ASSERT_TRUE(regex.has_value()) << regex.error().to_string();
    std::mt19937 rng(11);
    for (int round = 0; round < 30000; ++round) {
      const std::string text = random_text(rng);
      std::vector<size_t> expected, actual;
      ASSERT_TRUE(regex->for_each_match(text, [&](size_t begin, size_t end) {
        expected.push_back(begin);
        expected.push_back(end);
      }));
      for (size_t pos = 0; pos < text.size();) {
        actual.push_back(pos);
        pos = splitter(text, pos);
        actual.push_back(pos);
      }
      ASSERT_EQ(actual, expected) << pattern << " on " << text;
    }
  }
  EXPECT_EQ(find_splitter(R"(\p{L}+)"), nullptr);
}

}  // namespace
}  // namespace rudder::text
