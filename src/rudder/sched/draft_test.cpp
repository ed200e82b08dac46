// Sequences with drafts in the scheduler: when they are planned, what they reserve, and what is
// left of a draft that was wrong (step.I11).
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "rudder/testing/fake_executor.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

// Drafts what it is told to, once.
class ScriptedProposer final : public DraftProposer {
 public:
  void begin(const NewSequence& sequence) override { known.insert(sequence.id); }
  void end(SequenceId id, std::span<const int32_t> tokens) override {
    known.erase(id);
    ended_with = static_cast<int32_t>(tokens.size());
  }
  bool waits(SequenceId) override { return wait; }
  void propose(SequenceId, std::span<const int32_t> tokens, const DraftAsk& ask,
               Draft* draft) override {
    asked.emplace_back(tokens.begin(), tokens.end());
    script.resize(std::min(script.size(), static_cast<size_t>(ask.most)));
    draft->tokens = std::exchange(script, {});
  }

  bool wait = true;
  std::set<SequenceId> known;
  int32_t ended_with = 0;
  std::vector<int32_t> script;
  std::vector<std::vector<int32_t>> asked;
};

class DraftTest : public ::testing::Test {
 protected:
  static testing::FakeOptions drafting_fake(int32_t max_draft) {
    testing::FakeOptions options;
    options.capacity.drafts.max_draft = max_draft;
    options.capacity.block_size = 4;
    return options;
  }
  static SchedSettings drafting_settings() {
    SchedSettings settings;
    settings.model_identity = "model";
    return settings;
  }

  std::shared_ptr<const step::StepPlan> launch() {
    auto plan = scheduler_.plan();
    EXPECT_TRUE(scheduler_.check_integrity());
    if (plan != nullptr) {
      EXPECT_TRUE(executor_.launch(plan));
    }
    return plan;
  }
  std::vector<int32_t> collect(step::StepId id) {
    const auto result = executor_.collect({id});
    EXPECT_TRUE(result);
    std::vector<SequenceOutput> outputs;
    scheduler_.commit(*result, &outputs);
    const auto whole = scheduler_.check_integrity();
    EXPECT_TRUE(whole) << whole.error().message;
    EXPECT_TRUE(executor_.violations().empty());
    if (outputs.empty()) return {};
    return {outputs[0].tokens.begin(), outputs[0].tokens.end()};
  }

  // Adds a sequence and takes it to its first token; returns all tokens that it will get.
  std::vector<int32_t> begin(int32_t num_output) {
    NewSequence sequence = testing::test_sequence(1, testing::test_prompt(6, 2), num_output);
    const auto expected =
        testing::expected_run(sequence.prompt, sequence.sampling, sequence.max_len, 1000);
    EXPECT_TRUE(scheduler_.add(std::move(sequence)));
    EXPECT_NE(launch(), nullptr);
    EXPECT_EQ(collect(1), std::vector<int32_t>(1, expected.tokens[0]));
    return expected.tokens;
  }

  testing::FakeExecutor executor_{drafting_fake(4)};
  ScriptedProposer proposer_;
  Scheduler scheduler_{drafting_fake(4).capacity, drafting_settings(), &proposer_};
};

TEST_F(DraftTest, ASequenceTakesWhatIsRightAndOneMore) {
  const auto tokens = begin(20);
  proposer_.script = {tokens[1], tokens[2], tokens[3] + 1, tokens[4]};
  const auto plan = launch();
  ASSERT_NE(plan, nullptr);
  const step::SeqWork& work = plan->seqs.at(0);
  EXPECT_EQ(work.num_draft, 4);
  EXPECT_EQ(work.q_len, 5);
  EXPECT_EQ(work.kv_len, 6);
  EXPECT_EQ(work.logits, step::LogitsWanted::kAll);
  EXPECT_EQ(work.append_blocks.at(0).size(), 1u);  // 11 tokens in blocks of 4
  EXPECT_EQ(launch(), nullptr);                    // it waits
  EXPECT_EQ(collect(2), (std::vector<int32_t>{tokens[1], tokens[2], tokens[3]}));
  EXPECT_EQ(proposer_.asked.back().size(), 7u);
  EXPECT_EQ(scheduler_.stats().draft_tokens, 4u);
  EXPECT_EQ(scheduler_.stats().accepted_tokens, 2u);
  const auto next = launch();
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->seqs.at(0).kv_len, 9);
  EXPECT_EQ(next->seqs.at(0).num_draft, 0);
  EXPECT_EQ(next->seqs.at(0).append_blocks.size(), 0u);  // it has the block of the rejected ones
  EXPECT_EQ(collect(3), std::vector<int32_t>(1, tokens[4]));
}

TEST_F(DraftTest, RunAheadBehindDraftsIsPlannedAtTheFurthest) {
  const auto tokens = begin(20);
  proposer_.wait = false;
  proposer_.script = {tokens[1] + 1, tokens[2], tokens[3]};
  ASSERT_EQ(launch()->seqs.at(0).num_draft, 3);
  const auto ahead = launch();
  ASSERT_NE(ahead, nullptr);
  EXPECT_EQ(ahead->seqs.at(0).kv_len, 10);
  EXPECT_EQ(ahead->seqs.at(0).num_draft, 0);
  EXPECT_EQ(collect(2), std::vector<int32_t>(1, tokens[1]));
  EXPECT_EQ(collect(3), std::vector<int32_t>(1, tokens[2]));
  EXPECT_EQ(launch()->seqs.at(0).kv_len, 8);
  EXPECT_EQ(collect(4), std::vector<int32_t>(1, tokens[3]));
}

TEST_F(DraftTest, NoDraftGoesPastTheLastToken) {
  const auto tokens = begin(4);
  proposer_.script = {tokens[1], tokens[2], tokens[3], 5};
  ASSERT_EQ(launch()->seqs.at(0).num_draft, 2);  // and the last token behind them
  EXPECT_EQ(collect(2), (std::vector<int32_t>{tokens[1], tokens[2], tokens[3]}));
  EXPECT_TRUE(scheduler_.idle());
  EXPECT_TRUE(proposer_.known.empty());
  EXPECT_EQ(proposer_.ended_with, 10);
}

// Who is not to be drafted for runs ahead, and the proposer hears nothing of it.
TEST_F(DraftTest, ASequenceMayGoWithout) {
  NewSequence sequence = testing::test_sequence(1, testing::test_prompt(6, 2), 20);
  sequence.is_drafted = false;
  ASSERT_TRUE(scheduler_.add(std::move(sequence)));
  EXPECT_TRUE(proposer_.known.empty());
  ASSERT_NE(launch(), nullptr);
  ASSERT_NE(launch(), nullptr);
  for (step::StepId id = 1; id <= 2; ++id) (void)collect(id);
  EXPECT_TRUE(proposer_.asked.empty());
  scheduler_.finish(SequenceId(1));
  EXPECT_TRUE(scheduler_.idle());
}

// Drafts that are being verified are so; there are no more, and it runs ahead.
TEST_F(DraftTest, ASequenceMayStopBeingDraftedFor) {
  const auto tokens = begin(20);
  proposer_.script = {tokens[1], tokens[2] + 1};
  ASSERT_EQ(launch()->seqs.at(0).num_draft, 2);
  scheduler_.stop_drafting(SequenceId(1));
  scheduler_.stop_drafting(SequenceId(99));
  EXPECT_EQ(collect(2), (std::vector<int32_t>{tokens[1], tokens[2]}));
  const size_t num_asked = proposer_.asked.size();
  for (step::StepId id = 3; id <= 4; ++id) ASSERT_EQ(launch()->seqs.at(0).num_draft, 0);
  EXPECT_EQ(collect(3), std::vector<int32_t>(1, tokens[3]));
  EXPECT_EQ(proposer_.asked.size(), num_asked);
  scheduler_.finish(SequenceId(1));
  EXPECT_TRUE(proposer_.known.empty());
}

// A cancel ends it with the proposer too, wherever it is.
TEST_F(DraftTest, TheProposerHearsOfEveryEnd) {
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(scheduler_.add(testing::test_sequence(id, testing::test_prompt(6, 2), 20)));
    if (id == 1) {
      ASSERT_NE(launch(), nullptr);
    }
  }
  EXPECT_EQ(proposer_.known.size(), 3u);
  scheduler_.finish(SequenceId(3));  // waits
  scheduler_.finish(SequenceId(1));  // in flight
  EXPECT_EQ(proposer_.known.size(), 1u);
  scheduler_.drop_all();
  EXPECT_TRUE(proposer_.known.empty());
}

TEST_F(DraftTest, AnExecutorWithoutDraftsGetsNone) {
  Scheduler plain(drafting_fake(0).capacity, drafting_settings(), &proposer_);
  EXPECT_TRUE(plain.add(testing::test_sequence(1, testing::test_prompt(6, 2), 9)));
  testing::FakeExecutor executor(drafting_fake(0));
  for (step::StepId id = 1; !plain.idle(); ++id) {
    const auto plan = plain.plan();
    ASSERT_NE(plan, nullptr);
    EXPECT_EQ(plan->seqs.at(0).num_draft, 0);
    ASSERT_TRUE(executor.launch(plan));
    std::vector<SequenceOutput> outputs;
    plain.commit(*executor.collect({id}), &outputs);
  }
  EXPECT_TRUE(proposer_.asked.empty());
}

// Every place at which a sequence may end or be held up, under random drafts and run-ahead.
TEST(DraftStressTest, TheTokensAreThoseOfPlainDecoding) {
  for (const int32_t depth : {1, 2, 3}) {
    testing::FakeOptions fake;
    fake.seed = static_cast<uint64_t>(depth);
    fake.capacity.drafts.max_draft = 6;
    fake.capacity.block_size = 4;
    fake.capacity.num_blocks = 40;
    fake.capacity.max_in_flight = depth;
    SchedSettings settings;
    settings.model_identity = "model";
    settings.max_in_flight = depth;
    settings.max_num_batched_tokens = 48;
    testing::SchedLoop loop(fake, settings);
    for (uint64_t id = 1; id <= 20; ++id) {
      NewSequence sequence = testing::test_sequence(
          id, testing::test_prompt(static_cast<int32_t>(id), 3), 4 * static_cast<int32_t>(id));
      sequence.sampling.stop_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
      sequence.sampling.min_tokens = static_cast<int32_t>(id) / 2;
      if (id % 3 == 0) sequence.sampling.presence_penalty = 0.5f;
      if (id % 4 == 0) sequence.sampling.num_logprobs = 2;
      loop.add(std::move(sequence));
    }
    ASSERT_EQ(loop.run(), "") << depth;
    const SchedStats stats = loop.scheduler().stats();
    EXPECT_GT(stats.preemptions, 0u);
    EXPECT_GT(stats.accepted_tokens, 100u);
    EXPECT_GT(stats.draft_tokens, stats.accepted_tokens + 100);
  }
}

}  // namespace
}  // namespace rudder::sched
