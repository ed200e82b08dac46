// From specs to constraints: what is leased is found, whatever the source forgets.
#include "rudder/engine/forms.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "rudder/base/token_mask.h"

namespace rudder::engine {
namespace {

constexpr int32_t kFormVocab = 40;

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
  Forms forms(std::make_unique<ForgetfulGrammars>(&num_compiles), kFormVocab);
  const std::vector<constraint::ConstraintSpec> specs = {regex("ok 1")};
  EXPECT_EQ(forms.resolve(specs).error().code, ErrorCode::kUnavailable);
  FormLease lease, other;
  forms.compile(regex("ok 1"), [&](const Result<FormLease>& made) { lease = made.value(); });
  forms.compile(regex("ok 2"), [&](const Result<FormLease>& made) { other = made.value(); });
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
  Forms forms(std::make_unique<ForgetfulGrammars>(&num_compiles), kFormVocab);
  std::optional<Error> error;
  forms.compile(regex("bad"), [&](const Result<FormLease>& made) { error = made.error(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error->where, ".a");
  EXPECT_EQ(forms.resolve(std::vector<constraint::ConstraintSpec>{regex("bad")}).error().code,
            ErrorCode::kUnavailable);
}

TEST(FormsTest, WithoutASourceNoOutputHasAGrammar) {
  Forms forms(nullptr, kFormVocab);
  std::optional<Error> error;
  forms.compile(regex("ok"), [&](const Result<FormLease>& made) { error = made.error(); });
  EXPECT_EQ(error.value().code, ErrorCode::kUnsupported);
  EXPECT_EQ(forms.resolve(std::vector<constraint::ConstraintSpec>{regex("ok")}).error().code,
            ErrorCode::kUnsupported);
}

TEST(FormsTest, ListsBecomeConstraintsAtOnceInTheirOrder) {
  Forms forms(nullptr, kFormVocab);
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

}  // namespace
}  // namespace rudder::engine
