// The compiler of grammars: what it keeps, what it counts, and that no request waits for a compile
// past the deadline.
#include "rudder/constraint/grammar_compiler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "rudder/testing/tiny_tokenizer.h"

namespace rudder::constraint {
namespace {

std::unique_ptr<GrammarCompiler> make_compiler(const GrammarSettings& settings = {}) {
  auto made = GrammarCompiler::create(*testing::tiny_tokenizer(), testing::kTinyVocab,
                                      {testing::kTinyEos}, settings);
  EXPECT_TRUE(made);
  return std::move(*made);
}

GrammarSpec regex(std::string text) {
  return {.kind = GrammarKind::kRegex, .text = std::move(text)};
}

// Expressions whose automata have thousands of states each: seconds of work, were there no bound.
GrammarSpec slow_form() {
  std::string properties;
  for (int i = 0; i < 200; ++i) {
    properties +=
        fmt::format(R"({}"p{}":{{"type":"string","pattern":"^(?:a|b)*a(?:a|b){{13}}x{}$"}})",
                    i == 0 ? "" : ",", i, i);
  }
  return {.kind = GrammarKind::kJsonSchema,
          .text = R"({"type":"object","properties":{)" + properties + "}}"};
}

TEST(GrammarCompiler, CountsWhatItDoes) {
  const auto compiler = make_compiler();
  const GrammarSpec letters = {.kind = GrammarKind::kEbnf, .text = "root ::= [a-e]+"};
  EXPECT_EQ(compiler->find(letters), std::nullopt);
  EXPECT_TRUE(compiler->compile(letters));
  EXPECT_TRUE(compiler->compile(letters));
  const CompiledGrammar refused = compiler->compile(regex("(?=a)"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(compiler->compile(regex("(?=a)")));  // failures are kept too
  const GrammarStats stats = compiler->stats();
  EXPECT_EQ(stats.misses, 2u);
  EXPECT_EQ(stats.hits, 2u);
  EXPECT_EQ(stats.failures, 1u);
  EXPECT_EQ(stats.timeouts, 0u);
  EXPECT_EQ(stats.cache_entries, 2u);
  EXPECT_GT(stats.cache_bytes, 0u);
  EXPECT_GT(stats.compile_seconds, 0);
  EXPECT_GT(stats.masks.lookups, 0u);  // every form is tried once
}

TEST(GrammarCompiler, TooLongIsAnError) {
  GrammarSettings settings;
  settings.max_grammar = 10;
  const CompiledGrammar refused = make_compiler(settings)->compile(regex("[a-e]{2,3}x"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(GrammarCompiler, NoRequestWaitsPastTheDeadlineAndNoCompileGoesOn) {
  GrammarSettings settings;
  settings.grammar_timeout = 0.1;
  settings.grammar_threads = 1;
  const auto compiler = make_compiler(settings);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const CompiledGrammar late = compiler->compile(slow_form());
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().message.find("too complex"), std::string::npos) << late.error().message;
  EXPECT_LT(seconds(), 5);
  EXPECT_EQ(compiler->stats().timeouts, 1u);
  // It is not tried again at once, and the one thread is free for others.
  EXPECT_TRUE(compiler->find(slow_form()).has_value());
  CompiledGrammar other = compiler->compile(regex("a"));
  while (!other && seconds() < 5) other = compiler->compile(regex("a+"));
  EXPECT_TRUE(other);
  EXPECT_LT(compiler->stats().compile_seconds, 1);
  EXPECT_EQ(compiler->stats().timeouts, 1u);
}

TEST(GrammarCompilerFull, WhatTakesTooMuchIsRefusedWithinItsFuel) {
  const CompiledGrammar refused = make_compiler()->compile(slow_form());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("too complex"), std::string::npos);
}

}  // namespace
}  // namespace rudder::constraint
