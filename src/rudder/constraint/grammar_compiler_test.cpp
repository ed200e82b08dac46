// The compiler of grammars: what it keeps, what it counts, and that no request waits for a compile
// past the deadline.
#include "rudder/constraint/grammar_compiler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

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

// Thousands of rules that refer to each other: seconds of work for the library.
GrammarSpec slow_grammar() {
  std::string text = "root ::= r0\n";
  constexpr int kRules = 1500;
  for (int i = 0; i < kRules; ++i) {
    text += fmt::format("r{} ::= \"a\" r{} \"b\" | [a-e]{{1,{}}} r{} | \"c\"\n", i,
                        (i + 1) % kRules, 2 + i % 60, (i * 7 + 3) % kRules);
  }
  return {.kind = GrammarKind::kEbnf, .text = std::move(text)};
}

TEST(GrammarCompiler, CountsWhatItDoes) {
  const auto compiler = make_compiler();
  EXPECT_EQ(compiler->find(regex("[a-e]+")), std::nullopt);
  EXPECT_TRUE(compiler->compile(regex("[a-e]+")));
  EXPECT_TRUE(compiler->compile(regex("[a-e]+")));
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

TEST(GrammarCompiler, NoRequestWaitsPastTheDeadline) {
  GrammarSettings settings;
  settings.grammar_timeout = 0.1;
  settings.max_grammar = int64_t{1} << 20;
  settings.grammar_threads = 2;
  const auto compiler = make_compiler(settings);
  const auto start = std::chrono::steady_clock::now();
  const CompiledGrammar late = compiler->compile(slow_grammar());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().message.find("too complex"), std::string::npos) << late.error().message;
  EXPECT_LT(took.count(), 5);
  EXPECT_EQ(compiler->stats().timeouts, 1u);
  // It is not tried again at once, and others are compiled meanwhile.
  EXPECT_TRUE(compiler->find(slow_grammar()).has_value());
  EXPECT_TRUE(compiler->compile(regex("a")));
  // The compile goes on by itself; the test's process should not end in the midst of it.
  const double others = compiler->stats().compile_seconds;
  for (int i = 0; i < 600 && compiler->stats().compile_seconds < others + 0.1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace
}  // namespace rudder::constraint
