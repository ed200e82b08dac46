// The engine begins anew where its executor asks for it, and no request notices.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rudder/engine/engine_core.h"
#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::engine {
namespace {

// An executor that asks for a fresh start every few steps, and checks that it gets one.
class RestartingExecutor final : public step::Executor {
 public:
  step::Capacity capacity() const override { return inner_.capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    if (num_launched_++ == 0) {
      EXPECT_EQ(plan->slots.size(), plan->seqs.size()) << "a slot was kept";
      for (const step::SlotEdit& edit : plan->slots) EXPECT_TRUE(edit.blocks.at(0).empty());
    }
    ++in_flight_;
    return inner_.launch(std::move(plan));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    return inner_.supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    --in_flight_;
    return inner_.collect(ticket);
  }
  bool ready(step::Ticket ticket) override { return inner_.ready(ticket); }
  bool wants_fresh_start() const override { return num_launched_ >= 5; }
  void start_afresh() override {
    EXPECT_EQ(in_flight_, 0);
    num_launched_ = 0;
    ++num_starts;
  }

  int num_starts = 0;

 private:
  testing::ScriptedExecutor inner_{{2, 3, 25}};
  int num_launched_ = 0;
  int in_flight_ = 0;
};

TEST(FreshStart, IsMadeWhereTheExecutorAsksForOne) {
  constexpr int32_t kTokens = 40;
  auto executor = std::make_unique<RestartingExecutor>();
  const RestartingExecutor& restarting = *executor;
  auto core = EngineCore::create({.executor = std::move(executor),
                                  .tokenizer = testing::tiny_tokenizer(),
                                  .clock = std::make_shared<testing::VirtualClock>(),
                                  .model_identity = "test",
                                  .eos_ids = {testing::kTinyEos}},
                                 {}, {});
  ASSERT_TRUE(core) << core.error().to_string();
  std::map<RequestId, std::vector<int32_t>> tokens;
  int num_finished = 0;
  const auto submit = [&] {
    RequestParams params;
    params.prompt = {2, 3, 4, 5, 2};
    params.max_tokens = kTokens;
    auto request = validate_request(std::move(params), (*core)->limits());
    ASSERT_TRUE(request) << request.error().to_string();
    ASSERT_TRUE((*core)->submit(std::move(*request), [&](Event&& event) {
      for (const OutputToken& token : event.tokens) tokens[event.id].push_back(token.token);
      num_finished += event.finish == FinishReason::kLength ? 1 : 0;
    }));
  };
  submit();
  for (int turn = 0; turn < 7; ++turn) (*core)->step();
  submit();
  for (int turn = 0; (*core)->step(); ++turn) ASSERT_LT(turn, 1000);
  EXPECT_GE(restarting.num_starts, 8);
  EXPECT_EQ(num_finished, 2);
  std::vector<int32_t> script;
  for (int32_t i = 0; i < kTokens; ++i)
    script.push_back(std::vector<int32_t>{2, 3, 25}[static_cast<size_t>(i % 3)]);
  for (const auto& [id, got] : tokens) EXPECT_EQ(got, script) << id.value;
  EXPECT_TRUE((*core)->scheduler().idle());
}

}  // namespace
}  // namespace rudder::engine
