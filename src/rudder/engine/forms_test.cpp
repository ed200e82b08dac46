// From specs to constraints: what is leased is found, whatever the source forgets.
#include "rudder/engine/forms.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/token_mask.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::engine {
namespace {

constexpr int32_t kFormVocab = 40;
const SteadyClock kFormClock;

struct AnyToken final : constraint::Constraint {
  std::unique_ptr<constraint::Matcher> start() const override { return nullptr; }
};

// Compiles what begins with "ok", remembers nothing, answers when it is told to.
class ForgetfulGrammars final : public constraint::GrammarSource {
 public:
  explicit ForgetfulGrammars(int* num_compiles) : num_compiles_(num_compiles) {}

  std::optional<constraint::CompiledGrammar> find(const constraint::GrammarSpec&) override {
    return std::nullopt;
  }
  void compile(const constraint::GrammarSpec& spec,
               std::function<void(const constraint::CompiledGrammar&)> done) override {
    ++*num_compiles_;
    if (spec.text.starts_with("ok")) return done(std::make_shared<AnyToken>());
    done(fail(ErrorCode::kInvalidArgument, "is wrong", ".a"));
  }
  constraint::GrammarStats stats() const override { return {}; }

 private:
  int* const num_compiles_;
};

constraint::GrammarSpec regex(std::string text) {
  return {.kind = constraint::GrammarKind::kRegex, .text = std::move(text)};
}

TEST(FormsTest, AGrammarIsFoundWhileItsLeaseLives) {
  int num_compiles = 0;
  Forms forms(std::make_unique<ForgetfulGrammars>(&num_compiles), kFormVocab, kFormClock);
  const std::vector<constraint::ConstraintSpec> specs = {regex("ok 1")};
  EXPECT_EQ(forms.resolve(specs).error().code, ErrorCode::kUnavailable);
  FormLease lease, other;
  forms.compile(regex("ok 1"), 0, [&](const Result<FormLease>& made) { lease = made.value(); });
  forms.compile(regex("ok 2"), 0, [&](const Result<FormLease>& made) { other = made.value(); });
  other.reset();
  {
    const auto resolved = forms.resolve(specs);
    ASSERT_TRUE(resolved) << resolved.error().to_string();
    ASSERT_EQ(resolved->size(), 1u);
    EXPECT_EQ(resolved->front()->start(), nullptr);  // as AnyToken's
  }
  EXPECT_EQ(num_compiles, 2);
  lease.reset();
  EXPECT_EQ(forms.resolve(specs).error().code, ErrorCode::kUnavailable);
}

TEST(FormsTest, AGrammarAtFaultIsTheCompilersError) {
  int num_compiles = 0;
  Forms forms(std::make_unique<ForgetfulGrammars>(&num_compiles), kFormVocab, kFormClock);
  std::optional<Error> error;
  forms.compile(regex("bad"), 0, [&](const Result<FormLease>& made) { error = made.error(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error->where, ".a");
  EXPECT_EQ(forms.resolve(std::vector<constraint::ConstraintSpec>{regex("bad")}).error().code,
            ErrorCode::kUnavailable);
}

TEST(FormsTest, WithoutASourceNoOutputHasAGrammar) {
  Forms forms(nullptr, kFormVocab, kFormClock);
  std::optional<Error> error;
  forms.compile(regex("ok"), 0, [&](const Result<FormLease>& made) { error = made.error(); });
  EXPECT_EQ(error.value().code, ErrorCode::kUnsupported);
  EXPECT_EQ(forms.resolve(std::vector<constraint::ConstraintSpec>{regex("ok")}).error().code,
            ErrorCode::kUnsupported);
}

TEST(FormsTest, ListsBecomeConstraintsAtOnceInTheirOrder) {
  Forms forms(nullptr, kFormVocab, kFormClock);
  const std::vector<constraint::ConstraintSpec> specs = {
      constraint::AllowedTokens{{3, 5, 7}}, constraint::ForbiddenWords{{{5}}},
      constraint::ThinkingLimit{.begin = {8}, .end = {9}, .budget = 4, .open = false}};
  const auto resolved = forms.resolve(specs);
  ASSERT_TRUE(resolved) << resolved.error().to_string();
  ASSERT_EQ(resolved->size(), 3u);
  std::vector<uint32_t> mask(mask_words(kFormVocab));
  fill_mask(mask, kFormVocab);
  for (const auto& constraint : *resolved) ASSERT_TRUE(constraint->start()->restrict(mask));
  for (int32_t token = 0; token < kFormVocab; ++token) {
    EXPECT_EQ(is_in_mask(mask, token), token == 3 || token == 7) << token;
  }
}

// Compiles when it is told to, in the order in which it was asked.
class SlowGrammars final : public constraint::GrammarSource {
 public:
  struct Job {
    std::string text;
    std::function<void(const constraint::CompiledGrammar&)> done;
  };
  std::optional<constraint::CompiledGrammar> find(const constraint::GrammarSpec&) override {
    return std::nullopt;
  }
  void compile(const constraint::GrammarSpec& spec,
               std::function<void(const constraint::CompiledGrammar&)> done) override {
    jobs.push_back({spec.text, std::move(done)});
  }
  constraint::GrammarStats stats() const override { return {}; }
  // Of the first grammar.
  std::string finish_one() {
    const Job job = std::move(jobs.front());
    jobs.pop_front();
    job.done(std::make_shared<AnyToken>());
    return job.text;
  }

  std::deque<Job> jobs;
};

class FormQueueTest : public ::testing::Test {
 protected:
  void compile(const std::string& text, int32_t tenant) {
    queue_.compile(regex(text), tenant, [this, text](const constraint::CompiledGrammar& compiled) {
      told_[text] += 1;
      if (!compiled) codes_[text] = compiled.error().code;
    });
  }

  testing::VirtualClock clock_;
  SlowGrammars source_;
  FormQueue queue_{source_, clock_};
  std::map<std::string, int> told_;
  std::map<std::string, ErrorCode> codes_;
};

TEST_F(FormQueueTest, ManySlowGrammarsOfOneTenantDelayAnothersByThoseThatRun) {
  for (int i = 0; i < 200; ++i) compile("a" + std::to_string(i), 1);
  EXPECT_EQ(source_.jobs.size(), FormQueue::kMaxRunning);
  EXPECT_EQ(codes_.size(), 200 - FormQueue::kMaxRunning - FormQueue::kMaxQueued);
  for (const auto& [text, code] : codes_) EXPECT_EQ(code, ErrorCode::kOverloaded) << text;
  compile("b", 2);  // not refused, and next
  EXPECT_EQ(source_.finish_one(), "a0");
  EXPECT_EQ(source_.finish_one(), "a1");
  EXPECT_EQ(source_.finish_one(), "b");
  EXPECT_EQ(told_["b"], 1);
  EXPECT_FALSE(codes_.contains("b"));
  while (!source_.jobs.empty()) {
    EXPECT_LE(source_.jobs.size(), FormQueue::kMaxRunning);
    source_.finish_one();
  }
  EXPECT_EQ(told_.size(), 201u);
  for (const auto& [text, times] : told_) EXPECT_EQ(times, 1) << text;
}

TEST_F(FormQueueTest, TenantsTakeTurns) {
  for (int i = 0; i < 6; ++i) compile("a" + std::to_string(i), 1);
  for (int i = 0; i < 6; ++i) compile("b" + std::to_string(i), 2);
  std::map<char, int> finished;
  while (!source_.jobs.empty()) {
    ++finished[source_.finish_one()[0]];
    EXPECT_LE(std::abs(finished['a'] - finished['b']), 2);
  }
  EXPECT_EQ(finished['a'], 6);
  EXPECT_EQ(finished['b'], 6);
}

TEST_F(FormQueueTest, TheSameGrammarIsQueuedOnce) {
  compile("x", 1);
  compile("y", 1);
  for (int i = 0; i < 100; ++i) compile("z", 1);
  compile("x", 1);  // runs already: the source knows what to do
  EXPECT_EQ(source_.jobs.size(), 3u);
  while (!source_.jobs.empty()) source_.finish_one();
  EXPECT_EQ(told_["x"], 2);
  EXPECT_EQ(told_["z"], 100);
  EXPECT_TRUE(codes_.empty());
}

TEST_F(FormQueueTest, WhatWaitsTooLongIsOverloaded) {
  for (const char* text : {"a", "b", "late"}) compile(text, 1);
  clock_.advance(FormQueue::kMaxWaitUs - 1);
  compile("c", 1);
  clock_.advance(1);
  compile("d", 2);
  EXPECT_EQ(codes_, (std::map<std::string, ErrorCode>{{"late", ErrorCode::kOverloaded}}));
  while (!source_.jobs.empty()) source_.finish_one();
  EXPECT_EQ(told_["c"], 1);
  EXPECT_EQ(codes_.size(), 1u);
}

TEST_F(FormQueueTest, ClosingEndsWhatWaits) {
  for (const char* text : {"a", "b", "c"}) compile(text, 1);
  queue_.close();
  EXPECT_EQ(codes_["c"], ErrorCode::kCancelled);
  compile("d", 1);
  EXPECT_EQ(codes_["d"], ErrorCode::kCancelled);
  source_.finish_one();
  source_.finish_one();
  EXPECT_TRUE(source_.jobs.empty());
  EXPECT_EQ(told_["a"] + told_["b"], 2);
}

}  // namespace
}  // namespace rudder::engine
