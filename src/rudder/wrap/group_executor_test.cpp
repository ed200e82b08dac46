// The executor of a group, over ranks that only pretend to compute.
#include "rudder/wrap/group_executor.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

namespace rudder::wrap {
namespace {

// Samples `token` for every plan; or fails.
class PretendedRank final : public step::Executor {
 public:
  struct Does {
    int32_t token = 7;
    float logprob = -1;
    uint64_t late_steps = 0;  // its results are of so many steps before
    bool is_ready = true;
    bool fails = false;
    int32_t num_launched = 0;
    int32_t num_masks = 0;
  };

  explicit PretendedRank(std::shared_ptr<Does> does) : does_(std::move(does)) {}

  step::Capacity capacity() const override { return {.num_blocks = 8, .max_seq_len = 64}; }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    ++does_->num_launched;
    return step::Ticket{plan->id};
  }
  Result<void> supply(step::Ticket /*ticket*/, std::span<const uint32_t> masks) override {
    does_->num_masks += static_cast<int32_t>(masks.size());
    return {};
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    if (does_->fails) return fail(ErrorCode::kInternal, "this rank failed");
    step::StepResult result;
    result.id = ticket.id - does_->late_steps;
    step::SeqResult& seq = result.seqs.emplace_back();
    seq.tokens = {does_->token};
    seq.logprobs.push_back({.logprob = does_->logprob, .rank = 1, .top = {}});
    return result;
  }
  bool ready(step::Ticket /*ticket*/) override { return does_->is_ready; }

 private:
  const std::shared_ptr<Does> does_;
};

struct Group {
  explicit Group(int count) {
    std::vector<std::unique_ptr<step::Executor>> made;
    for (int i = 0; i < count; ++i) {
      ranks.push_back(std::make_shared<PretendedRank::Does>());
      made.push_back(std::make_unique<PretendedRank>(ranks.back()));
    }
    executor = GroupExecutor::of(std::move(made));
  }
  Result<step::StepResult> step(uint64_t id) {
    auto plan = std::make_shared<step::StepPlan>();
    plan->id = id;
    RUDDER_TRY(const step::Ticket ticket, executor->launch(std::move(plan)));
    return executor->collect(ticket);
  }

  std::vector<std::shared_ptr<PretendedRank::Does>> ranks;
  std::unique_ptr<step::Executor> executor;
};

TEST(GroupExecutor, EveryRankGetsEveryPlanAndMask) {
  Group group(3);
  const auto result = group.step(1);
  ASSERT_TRUE(result) << result.error().to_string();
  EXPECT_EQ(result->seqs.at(0).tokens, std::vector<int32_t>{7});
  const std::vector<uint32_t> masks(5);
  ASSERT_TRUE(group.executor->supply({1}, masks));
  for (const auto& rank : group.ranks) {
    EXPECT_EQ(rank->num_launched, 1);
    EXPECT_EQ(rank->num_masks, 5);
  }
}

TEST(GroupExecutor, IsReadyWhenEveryRankIs) {
  Group group(2);
  EXPECT_TRUE(group.executor->ready({1}));
  group.ranks[1]->is_ready = false;
  EXPECT_FALSE(group.executor->ready({1}));
}

TEST(GroupExecutor, RanksThatDifferAreAFaultThatStays) {
  const auto expect_fault = [](auto change, const char* what) {
    Group group(3);
    ASSERT_TRUE(group.step(1));
    change(*group.ranks[2]);
    const auto result = group.step(2);
    ASSERT_FALSE(result) << what;
    EXPECT_EQ(result.error().code, ErrorCode::kInternal);
    EXPECT_NE(result.error().message.find(what), std::string::npos) << result.error().message;
    const int32_t launched = group.ranks[0]->num_launched;
    EXPECT_FALSE(group.step(3));
    EXPECT_EQ(group.ranks[0]->num_launched, launched) << "a dead group launches nothing";
    EXPECT_TRUE(group.executor->ready({3}));
  };
  using Does = PretendedRank::Does;
  expect_fault([](Does& rank) { rank.token = 8; },
               "rank 2 and rank 0 differ: sequence 0 of step 2");
  expect_fault([](Does& rank) { rank.logprob = -1.0000001f; }, "sequence 0 of step 2");
  expect_fault([](Does& rank) { rank.late_steps = 1; }, "step 2.0 of 1 sequences and step 1.0");
  expect_fault([](Does& rank) { rank.fails = true; }, "this rank failed");
}

TEST(GroupExecutor, OneThatIsAloneIsItself) {
  std::vector<std::unique_ptr<step::Executor>> alone;
  alone.push_back(std::make_unique<PretendedRank>(std::make_shared<PretendedRank::Does>()));
  const step::Executor* const raw = alone[0].get();
  EXPECT_EQ(GroupExecutor::of(std::move(alone)).get(), raw);
}

}  // namespace
}  // namespace rudder::wrap
