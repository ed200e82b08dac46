// Constrained choices: their masks, and what the engine makes of what goes wrong with them. That
// tokens are those of a lone request whatever runs beside it is the simulator's.
#include "rudder/engine/token_masks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "rudder/base/token_mask.h"
#include "rudder/constraint/grammar_compiler.h"
#include "rudder/engine/engine_core.h"
#include "rudder/testing/fake_executor.h"
#include "rudder/testing/named_grammars.h"
#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::engine {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kVocab = 37;

// Allows `allowed` and the token after the last one; fails when told of `bad`. Tokens behind the
// first `cheap` ones are dear.
class Followers final : public constraint::Constraint {
 public:
  explicit Followers(Tokens allowed, int32_t bad = -1, int32_t cheap = 1000)
      : allowed_(std::move(allowed)), bad_(bad), cheap_(cheap) {}

  std::unique_ptr<constraint::Matcher> start() const override {
    return std::make_unique<Matcher>(*this);
  }

 private:
  class Matcher final : public constraint::Matcher {
   public:
    explicit Matcher(const Followers& of) : of_(of) {}
    Result<void> restrict(std::span<uint32_t> words) override {
      std::vector<uint32_t> mask(words.size());
      for (const int32_t token : of_.allowed_) set_in_mask(mask, token);
      if (last_ >= 0) set_in_mask(mask, last_ + 1);
      for (size_t i = 0; i < words.size(); ++i) words[i] &= mask[i];
      return {};
    }
    Result<void> advance(int32_t token) override {
      if (token == of_.bad_) return fail(ErrorCode::kUnsupported, "not this one");
      last_ = token;
      is_dear_ = is_dear_ || ++num_tokens_ > of_.cheap_;
      return {};
    }
    bool is_dear() const override { return is_dear_; }
    void begin_trial() override { trials_.push_back(last_); }
    void end_trial() override {
      last_ = trials_.back();
      trials_.pop_back();
    }

   private:
    const Followers& of_;
    int32_t last_ = -1;
    Tokens trials_;
    int32_t num_tokens_ = 0;  // tried ones too
    bool is_dear_ = false;
  };

  const Tokens allowed_;
  const int32_t bad_;
  const int32_t cheap_;
};

constraint::ConstraintSpec followers(Tokens allowed, int32_t bad = -1) {
  return testing::name_constraint(std::make_shared<Followers>(std::move(allowed), bad));
}

RequestParams params_with(std::vector<constraint::ConstraintSpec> constraints) {
  RequestParams params;
  params.prompt = {2, 3, 4};
  params.seed = 7;
  params.max_tokens = 5;
  params.constraints = std::move(constraints);
  return params;
}

ChoiceConstraint choice_of(const RequestParams& params) {
  std::vector<std::shared_ptr<const constraint::Constraint>> constraints;
  for (const constraint::ConstraintSpec& spec : params.constraints) {
    constraints.push_back(testing::named_constraint(spec));
  }
  return {params, std::move(constraints)};
}

Tokens in(std::span<const uint32_t> mask) {
  Tokens tokens;
  for (int32_t token = 0; std::cmp_less(token, mask.size() * 32); ++token) {
    if (is_in_mask(mask, token)) tokens.push_back(token);
  }
  return tokens;
}

Tokens mask_of(ChoiceConstraint& choice) {
  std::vector<uint32_t> mask(mask_words(kVocab));
  EXPECT_TRUE(choice.write_mask(kVocab, mask));
  return in(mask);
}

TEST(ChoiceConstraint, AllConstraintsBindAndFollowTheTokens) {
  ChoiceConstraint choice = choice_of(params_with({followers({3, 8, 36}), followers({8, 5, 36})}));
  EXPECT_EQ(mask_of(choice), (Tokens{8, 36}));
  EXPECT_TRUE(choice.advance(8));
  EXPECT_EQ(mask_of(choice), (Tokens{8, 9, 36}));
}

TEST(ChoiceConstraint, StopIdsWaitForMinTokensUnlessNothingElseMayCome) {
  RequestParams params = params_with({followers({0, 1, 6})});
  params.sampling.stop_ids = {0, 1, 9999, -1};
  params.sampling.min_tokens = 1;
  ChoiceConstraint choice = choice_of(params);
  EXPECT_EQ(mask_of(choice), (Tokens{6}));
  EXPECT_TRUE(choice.advance(6));
  EXPECT_EQ(mask_of(choice), (Tokens{0, 1, 6, 7}));

  params.constraints = {followers({0, 1})};
  ChoiceConstraint complete = choice_of(params);
  EXPECT_EQ(mask_of(complete), (Tokens{0, 1}));
}

TEST(ChoiceConstraint, SaysWhenNothingMayCome) {
  ChoiceConstraint choice = choice_of(params_with({followers({3}), followers({4})}));
  std::vector<uint32_t> mask(mask_words(kVocab));
  const auto written = choice.write_mask(kVocab, mask);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kInvalidArgument);
}

// Of a draft, the mask behind each token follows from it, as far as the draft may come.
TEST(ChoiceConstraint, MasksBehindADraftFollowIt) {
  const size_t words = mask_words(kVocab);
  RequestParams params = params_with({followers({3, 8, 20}, 20)});
  params.sampling.stop_ids = {8};
  params.sampling.min_tokens = 2;
  ChoiceConstraint choice = choice_of(params);
  EXPECT_TRUE(choice.advance(3));  // one token is out
  std::vector<uint32_t> masks(4 * words);
  const auto mask = [&](size_t i) { return in(std::span(masks).subspan(i * words, words)); };
  const auto write = [&](const Tokens& draft) {
    return choice.write_masks(kVocab, {draft}, std::span(masks).first((1 + draft.size()) * words));
  };
  ASSERT_TRUE(write({4, 5, 3}));
  EXPECT_EQ(mask(0), (Tokens{3, 4, 20}));
  EXPECT_EQ(mask(1), (Tokens{3, 5, 8, 20}));
  EXPECT_EQ(mask(2), (Tokens{3, 6, 8, 20}));
  EXPECT_EQ(mask(3), (Tokens{3, 4, 8, 20}));
  // Nothing of it stays.
  ASSERT_TRUE(write({3}));
  EXPECT_EQ(mask(0), (Tokens{3, 4, 20}));
  EXPECT_EQ(mask(1), (Tokens{3, 4, 8, 20}));
  EXPECT_EQ(choice.failed_behind(Tokens{3}), nullptr);
  // A draft that a constraint fails at: no token may follow it.
  ASSERT_TRUE(write({3, 20, 3}));
  EXPECT_EQ(mask(1), (Tokens{3, 4, 8, 20}));
  EXPECT_EQ(mask(2), Tokens{});
  EXPECT_EQ(choice.failed_behind(Tokens{3}), nullptr);
  ASSERT_NE(choice.failed_behind(Tokens{3, 20}), nullptr);
  EXPECT_EQ(choice.failed_behind(Tokens{3, 20})->code, ErrorCode::kUnsupported);
  // One that may not come, or ends the choice, leads nowhere.
  ASSERT_TRUE(write({30, 20}));
  EXPECT_EQ(choice.failed_behind(Tokens{30, 20}), nullptr);
  ASSERT_TRUE(write({4, 8, 20}));
  EXPECT_EQ(choice.failed_behind(Tokens{4, 8, 20}), nullptr);
}

// Of a tree, each mask follows from the drafts on the way to it, not from those beside it, and is
// that of a chain of them.
TEST(ChoiceConstraint, MasksOfATreeFollowItsPaths) {
  const size_t words = mask_words(kVocab);
  ChoiceConstraint choice = choice_of(params_with({followers({3, 8, 20}, 20)}));
  ChoiceConstraint of_chains = choice_of(params_with({followers({3, 8, 20}, 20)}));
  // 3 -> (4 -> 5, 8 -> 9, 20 -> 3), 8 -> (9, 30 -> 3, 20).
  const Tokens drafts = {3, 8, 4, 8, 20, 9, 30, 20, 5, 9, 3, 3};
  step::DraftTree tree;
  for (const int32_t parent : {0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5, 7}) tree.add(parent);
  std::vector<uint32_t> masks((1 + drafts.size()) * words);
  for (int round = 0; round < 2; ++round) {  // nothing of it stays
    ASSERT_TRUE(choice.write_masks(kVocab, {drafts, tree}, masks));
    for (int32_t row = 1; row <= tree.size(); ++row) {
      Tokens path;
      for (int32_t on = row; on > 0; on = tree.parent(on)) {
        path.insert(path.begin(), drafts[static_cast<size_t>(on - 1)]);
      }
      std::vector<uint32_t> chain((1 + path.size()) * words);
      ASSERT_TRUE(of_chains.write_masks(kVocab, {path}, chain));
      EXPECT_EQ(in(std::span(masks).subspan(static_cast<size_t>(row) * words, words)),
                in(std::span(chain).last(words)))
          << row;
      EXPECT_EQ(choice.failed_behind(path) == nullptr, of_chains.failed_behind(path) == nullptr);
    }
    EXPECT_NE(choice.failed_behind(Tokens{3, 20}), nullptr);
    EXPECT_NE(choice.failed_behind(Tokens{8, 20}), nullptr);
    EXPECT_EQ(choice.failed_behind(Tokens{20}), nullptr);
  }
}

// As one thread writes them, sequences without a constraint and failed ones between the others.
TEST(MaskMaker, HelpersWriteTheSameMasks) {
  std::vector<ChoiceConstraint> choices;
  for (int32_t i = 0; i < 32; ++i) {
    choices.push_back(
        choice_of(params_with({followers({i % 30, i % 7}), followers({i % 7, i % 3})})));
  }
  MaskMaker alone(kVocab, 1);
  MaskMaker helped(kVocab, 4);
  for (const size_t num_jobs : {1, 3, 4, 17, 32}) {
    std::vector<MaskMaker::Job> jobs(num_jobs);
    for (size_t i = 0; i < num_jobs; ++i) {
      if (i % 5 != 4) jobs[i].constraint = &choices[i];
    }
    std::vector<MaskMaker::Job> others = jobs;
    const auto expected = alone.make(jobs);
    const auto got = helped.make(others);
    EXPECT_TRUE(std::ranges::equal(expected, got)) << num_jobs;
    const size_t words = mask_words(kVocab);
    for (size_t i = 0; i < num_jobs; ++i) {
      EXPECT_EQ(jobs[i].written.has_value(), others[i].written.has_value());
      const bool is_free = jobs[i].constraint == nullptr || !jobs[i].written;
      EXPECT_EQ(in(got.subspan(i * words, words)).size() == kVocab, is_free);
    }
  }
}

// Matchers of one grammar share what is compiled of it.
TEST(MaskMaker, MatchersOfOneGrammarRunSideBySide) {
  const auto tokenizer = testing::tiny_tokenizer();
  const auto compiler =
      constraint::GrammarCompiler::create(*tokenizer, kVocab, {testing::kTinyEos}, {}).value();
  const auto grammar =
      compiler->compile({.kind = constraint::GrammarKind::kRegex, .text = "(ab|a|b|cd)*c?[a-d]+"});
  ASSERT_TRUE(grammar) << grammar.error().to_string();
  constexpr size_t kJobs = 32;
  std::vector<ChoiceConstraint> choices;
  std::vector<ChoiceConstraint> others;
  for (size_t i = 0; i < kJobs; ++i) {
    choices.push_back(choice_of(params_with({testing::name_constraint(*grammar)})));
    others.push_back(choice_of(params_with({testing::name_constraint(*grammar)})));
  }
  MaskMaker alone(kVocab, 1);
  MaskMaker helped(kVocab, 4);
  const size_t words = mask_words(kVocab);
  for (size_t step = 0; step < 40; ++step) {
    std::vector<MaskMaker::Job> jobs(kJobs);
    std::vector<MaskMaker::Job> other_jobs(kJobs);
    for (size_t i = 0; i < kJobs; ++i) {
      jobs[i].constraint = &choices[i];
      other_jobs[i].constraint = &others[i];
    }
    const auto masks = alone.make(jobs);
    ASSERT_TRUE(std::ranges::equal(masks, helped.make(other_jobs))) << step;
    for (size_t i = 0; i < kJobs; ++i) {
      ASSERT_TRUE(jobs[i].written);
      Tokens allowed = in(masks.subspan(i * words, words));
      std::erase(allowed, testing::kTinyEos);
      ASSERT_FALSE(allowed.empty());
      const int32_t token = allowed[(step * 7 + i * 13) % allowed.size()];
      ASSERT_TRUE(choices[i].advance(token));
      ASSERT_TRUE(others[i].advance(token));
    }
  }
}

class ConstrainedEngineTest : public ::testing::Test {
 protected:
  struct Got {
    Tokens tokens;
    std::optional<Event> last;
  };

  void start(std::unique_ptr<step::Executor> executor, const EngineSettings& settings = {}) {
    auto core = EngineCore::create({.executor = std::move(executor),
                                    .tokenizer = testing::tiny_tokenizer(),
                                    .clock = std::make_shared<testing::VirtualClock>(),
                                    .model_identity = "test",
                                    .eos_ids = {testing::kTinyEos},
                                    .grammars = std::make_unique<testing::NamedGrammars>()},
                                   settings, {});
    core_ = std::move(*core);
  }
  void start_fake(const EngineSettings& settings = {}) {
    testing::FakeOptions options;
    options.capacity.vocab_size = kVocab;
    options.capacity.max_repeat = 4;
    start(std::make_unique<testing::FakeExecutor>(options), settings);
  }
  void submit(RequestParams params) {
    auto request = validate_request(std::move(params), core_->limits());
    ASSERT_TRUE(request) << request.error().to_string();
    const auto id = core_->submit(std::move(*request), [this](Event&& event) {
      Got& got = got_[{event.id.value, event.choice}];
      for (const OutputToken& token : event.tokens) got.tokens.push_back(token.token);
      if (event.finish) got.last = std::move(event);
    });
    ASSERT_TRUE(id);
  }
  void run() {
    for (int turn = 0; core_->step(); ++turn) ASSERT_LT(turn, 1000);
    EXPECT_TRUE(core_->scheduler().idle());
    EXPECT_EQ(core_->num_open(), 0);
  }

  std::unique_ptr<EngineCore> core_;
  std::map<std::pair<uint64_t, int32_t>, Got> got_;
};

// Whose masks take long is drafted for no more; its tokens are the same.
TEST_F(ConstrainedEngineTest, NobodyIsDraftedForWhoseMasksAreDear) {
  std::map<int32_t, Tokens> tokens;
  std::map<int32_t, uint64_t> drafts;
  for (const int32_t cheap : {0, 20, 1000}) {
    testing::FakeOptions options;
    options.capacity.vocab_size = kVocab;
    options.capacity.drafts.max_draft = 4;
    options.capacity.drafts.guesses = options.capacity.drafts.guesses_from_rows = true;
    EngineSettings settings;
    settings.speculative_adaptive = false;
    start(std::make_unique<testing::FakeExecutor>(options), settings);
    got_.clear();
    RequestParams params = params_with(
        {testing::name_constraint(std::make_shared<Followers>(Tokens{4, 9, 14}, -1, cheap))});
    params.max_tokens = 60;
    submit(params);
    run();
    tokens[cheap] = got_.begin()->second.tokens;
    drafts[cheap] = core_->scheduler().stats().draft_tokens;
  }
  EXPECT_EQ(tokens[0].size(), 60u);
  EXPECT_EQ(tokens[0], tokens[1000]);
  EXPECT_EQ(tokens[20], tokens[1000]);
  EXPECT_GT(drafts[1000], 2 * drafts[20]);
  EXPECT_GT(drafts[20], drafts[0]);
}

TEST_F(ConstrainedEngineTest, EveryChoiceKeepsToItsOwnPlace) {
  for (const bool ahead : {false, true}) {
    EngineSettings settings;
    settings.async_scheduling = ahead;
    settings.multi_step = 4;
    start_fake(settings);
    got_.clear();
    RequestParams params = params_with({followers({4, 9, 14})});
    params.n = 3;
    params.max_tokens = 20;
    submit(params);
    run();
    ASSERT_EQ(got_.size(), 3u);
    for (const auto& [id, got] : got_) {
      EXPECT_EQ(got.tokens.size(), 20u);
      for (size_t i = 0; i < got.tokens.size(); ++i) {
        const int32_t token = got.tokens[i];
        const bool follows = i > 0 && token == got.tokens[i - 1] + 1;
        EXPECT_TRUE(follows || token == 4 || token == 9 || token == 14) << token;
      }
    }
    EXPECT_EQ(core_->stats().constrained_sequences, 60u);
    EXPECT_EQ(core_->stats().mask_time.count, core_->stats().constrained_steps);
  }
}

TEST_F(ConstrainedEngineTest, OthersRunAsTheyWould) {
  start_fake();
  submit(params_with({}));
  run();
  EXPECT_EQ(core_->stats().constrained_steps, 0u);
  const Tokens alone = got_.begin()->second.tokens;
  got_.clear();
  submit(params_with({}));
  submit(params_with({followers({4, 9})}));
  run();
  EXPECT_EQ(got_.begin()->second.tokens, alone);
  EXPECT_GT(core_->stats().constrained_steps, 0u);
}

// With its own error, behind the token that it failed at; the others do not notice.
TEST_F(ConstrainedEngineTest, AFailedConstraintEndsItsChoiceAlone) {
  start(std::make_unique<testing::ScriptedExecutor>(Tokens{4, 5, 6, 7, 8, 9}));
  submit(params_with({followers({4, 5, 6, 7, 8}, 6)}));
  submit(params_with({followers({4, 5, 6, 7, 8})}));
  run();
  const auto& [first, second] = std::pair(got_.begin()->second, got_.rbegin()->second);
  EXPECT_EQ(first.tokens, (Tokens{4, 5, 6}));
  EXPECT_EQ(first.last->finish, FinishReason::kError);
  EXPECT_EQ(first.last->error->code, ErrorCode::kUnsupported);
  EXPECT_EQ(first.last->usage.completion_tokens, 3);
  EXPECT_EQ(second.tokens, (Tokens{4, 5, 6, 7, 8}));
  EXPECT_EQ(second.last->finish, FinishReason::kLength);
}

TEST_F(ConstrainedEngineTest, ConstraintsThatExcludeEachOtherAreTheClientsError) {
  start_fake();
  submit(params_with({followers({4}), followers({5})}));
  run();
  const Got& got = got_.begin()->second;
  EXPECT_TRUE(got.tokens.empty());
  EXPECT_EQ(got.last->finish, FinishReason::kError);
  EXPECT_EQ(got.last->error->code, ErrorCode::kInvalidArgument);
}

// What comes behind a stop string is no part of the text, so its constraint never hears of it.
TEST_F(ConstrainedEngineTest, LateTokensAreNotMatched) {
  start(std::make_unique<testing::ScriptedExecutor>(Tokens{2, 3, 4, 5}));
  RequestParams params = params_with({followers({2, 3, 4, 5}, 4)});
  params.stop = {"ab"};
  submit(params);
  run();
  EXPECT_EQ(got_.begin()->second.last->finish, FinishReason::kStop);
}

TEST_F(ConstrainedEngineTest, MasksAreThoseOfTheTokensBefore) {
  auto owned = std::make_unique<testing::ScriptedExecutor>(Tokens{4, 9, 20});
  const testing::ScriptedExecutor& executor = *owned;
  start(std::move(owned));
  RequestParams params = params_with({followers({4, 9})});
  params.max_tokens = 3;
  submit(params);
  run();
  std::vector<Tokens> masks;
  for (const auto& mask : executor.masks()) masks.push_back(in(mask));
  EXPECT_EQ(masks, (std::vector<Tokens>{{4, 9}, {4, 5, 9}, {4, 9, 10}}));
}

}  // namespace
}  // namespace rudder::engine
