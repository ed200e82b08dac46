// An engine comes to rest and goes on: what runs is finished, ended or kept, as asked, and nothing
// that was computed before is used behind it.
#include "rudder/engine/rest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rudder/cache/block_watcher.h"
#include "rudder/engine/engine.h"
#include "rudder/engine/engine_core.h"
#include "rudder/testing/fake_executor.h"
#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::engine {
namespace {

struct Outcome {
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;
  std::optional<Error> error;
  int32_t cached_tokens = 0;
};

// The keys that were stored, and how often all blocks were forgotten.
class StoredKeys final : public cache::BlockWatcher {
 public:
  void stored(const cache::CachedBlock& block) override { keys.push_back(block.hash); }
  void removed(const cache::CachedBlock& /*block*/) override {}
  void cleared() override { ++num_cleared; }
  void step_done() override {}

  std::vector<uint64_t> keys;
  int num_cleared = 0;
};

class RestTest : public ::testing::Test {
 protected:
  RestTest() {
    testing::FakeOptions options;
    options.capacity.vocab_size = testing::ScriptedExecutor::default_capacity().vocab_size;
    auto core = EngineCore::create({.executor = std::make_unique<testing::FakeExecutor>(options),
                                    .tokenizer = testing::tiny_tokenizer(),
                                    .clock = clock_,
                                    .model_identity = "first",
                                    .eos_ids = {0},
                                    .block_watcher = &stored_},
                                   {}, {});
    EXPECT_TRUE(core) << core.error().to_string();
    core_ = std::move(*core);
  }

  Result<RequestId> submit(int32_t max_tokens, size_t prompt_tokens = 64) {
    RequestParams params;
    for (size_t i = 0; i < prompt_tokens; ++i) params.prompt.push_back(1 + (i * 7 + i / 5) % 5);
    params.max_tokens = max_tokens;
    params.ignore_eos = true;
    params.sampling.temperature = 0;
    auto request = validate_request(std::move(params), core_->limits());
    EXPECT_TRUE(request) << request.error().to_string();
    return core_->submit(std::move(*request), [this](Event&& event) {
      Outcome& outcome = outcomes_[event.id];
      for (const OutputToken& token : event.tokens) outcome.tokens.push_back(token.token);
      if (event.error) outcome.error = event.error;
      if (event.finish) outcome.cached_tokens = event.usage.cached_tokens;
      if (event.finish) outcome.finish = event.finish;
    });
  }
  void turns(int count) {
    for (int i = 0; i < count; ++i) core_->step();
  }
  void rest(RestMode mode, std::optional<Error> refusal = {}) {
    core_->rest({.ask = RestAsk{.mode = mode, .refusal = std::move(refusal)}, .identity = {}});
  }
  void go_on(std::optional<std::string> identity = {}) {
    core_->rest({.ask = {}, .identity = std::move(identity)});
  }
  std::vector<int32_t> alone(int32_t max_tokens) {
    const auto id = submit(max_tokens);
    run_out();
    return outcomes_[*id].tokens;
  }
  void run_out() {
    for (int turn = 0; core_->step(); ++turn) ASSERT_LT(turn, 10'000);
  }
  int32_t blocks_held() const {
    const sched::SchedStats stats = core_->scheduler().stats();
    return stats.blocks_in_use + stats.blocks_cached;
  }

  std::shared_ptr<testing::VirtualClock> clock_ = std::make_shared<testing::VirtualClock>();
  StoredKeys stored_;
  std::unique_ptr<EngineCore> core_;
  std::map<RequestId, Outcome> outcomes_;
};

TEST_F(RestTest, WhatIsKeptGoesOnAndNobodyNotices) {
  const std::vector<int32_t> wanted = alone(40);
  const auto id = submit(40);
  turns(10);
  const size_t so_far = outcomes_[*id].tokens.size();
  ASSERT_GT(so_far, 0u);
  ASSERT_LT(so_far, 40u);
  rest(RestMode::kKeep);
  turns(4);
  ASSERT_TRUE(core_->is_at_rest());
  EXPECT_EQ(blocks_held(), 0) << "what was computed is forgotten";
  EXPECT_FALSE(core_->step()) << "it sleeps";
  EXPECT_TRUE(core_->health());
  const size_t at_rest = outcomes_[*id].tokens.size();
  turns(10);
  EXPECT_EQ(outcomes_[*id].tokens.size(), at_rest);
  go_on("second");
  run_out();
  EXPECT_EQ(outcomes_[*id].tokens, wanted);
  EXPECT_EQ(outcomes_[*id].finish, FinishReason::kLength);
}

TEST_F(RestTest, WhatCameBeforeIsFinishedAndWhatComesLaterWaits) {
  const auto first = submit(20);
  turns(5);
  rest(RestMode::kWait);
  turns(2);
  EXPECT_FALSE(core_->is_at_rest());
  const auto later = submit(20);
  ASSERT_TRUE(later);
  run_out();
  ASSERT_TRUE(core_->is_at_rest());
  EXPECT_EQ(outcomes_[*first].finish, FinishReason::kLength);
  EXPECT_TRUE(outcomes_[*later].tokens.empty());
  go_on();
  run_out();
  EXPECT_EQ(outcomes_[*later].tokens, outcomes_[*first].tokens);
}

TEST_F(RestTest, WhatRunsEndsWithATypedErrorAndWhatWaitsIsServed) {
  const auto running = submit(200);
  turns(5);
  const auto waiting = submit(20);
  rest(RestMode::kAbort);
  run_out();
  ASSERT_TRUE(core_->is_at_rest());
  EXPECT_EQ(outcomes_[*running].finish, FinishReason::kError);
  ASSERT_TRUE(outcomes_[*running].error);
  EXPECT_EQ(outcomes_[*running].error->code, ErrorCode::kUnavailable);
  EXPECT_FALSE(outcomes_[*waiting].finish);
  go_on();
  run_out();
  EXPECT_EQ(outcomes_[*waiting].finish, FinishReason::kLength);
}

TEST_F(RestTest, AnEngineThatRefusesEndsWhatWaitsTooAndSaysWhy) {
  const auto running = submit(200);
  turns(5);
  const auto waiting = submit(20);
  rest(RestMode::kAbort, Error{ErrorCode::kUnavailable, "it sleeps", ""});
  const auto refused = submit(20);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "it sleeps");
  EXPECT_FALSE(core_->would_accept({}));
  run_out();
  EXPECT_TRUE(outcomes_[*running].error);
  EXPECT_TRUE(outcomes_[*waiting].error);
  EXPECT_TRUE(core_->is_idle());
  go_on();
  EXPECT_TRUE(core_->would_accept({}));
  EXPECT_EQ(alone(20).size(), 20u);
}

TEST_F(RestTest, NoBlockOfTheModelBeforeIsHitNorNamedAlike) {
  const auto first = submit(4);
  run_out();
  const auto again = submit(4);
  run_out();
  EXPECT_GT(outcomes_[*again].cached_tokens, 0) << "its prompt is cached";
  const std::vector<uint64_t> before = std::exchange(stored_.keys, {});
  rest(RestMode::kWait);
  run_out();
  EXPECT_GT(stored_.num_cleared, 0) << "who watches is told";
  go_on("second");
  const auto behind = submit(4);
  run_out();
  EXPECT_EQ(outcomes_[*behind].cached_tokens, 0);
  ASSERT_FALSE(stored_.keys.empty());
  for (const uint64_t key : stored_.keys) {
    EXPECT_EQ(std::ranges::count(before, key), 0) << "a key of the model before";
  }
  EXPECT_EQ(outcomes_[*behind].tokens, outcomes_[*first].tokens);
}

// A sequence that was kept is under the new name too: what it computes is a hit for others.
TEST_F(RestTest, WhatIsKeptIsCachedUnderTheNewName) {
  const auto kept = submit(40);
  turns(10);
  rest(RestMode::kKeep);
  turns(4);
  go_on("second");
  run_out();
  EXPECT_EQ(outcomes_[*kept].finish, FinishReason::kLength);
  const auto behind = submit(4);
  run_out();
  EXPECT_GT(outcomes_[*behind].cached_tokens, 0);
}

TEST_F(RestTest, WhatIsCachedStaysWhereThatIsAskedFor) {
  const std::vector<int32_t> wanted = alone(40);
  const auto rest_with_cache = [&](RestMode mode) {
    return core_->rest({.ask = RestAsk{.mode = mode, .keeps_cache = true}, .identity = {}});
  };
  const auto id = submit(40);
  turns(10);
  uint64_t order = rest_with_cache(RestMode::kKeep);
  turns(4);
  ASSERT_TRUE(core_->is_at_rest(order));
  const int32_t held = blocks_held();
  EXPECT_GT(held, 0);
  const size_t at_rest = outcomes_[*id].tokens.size();
  turns(10);
  EXPECT_EQ(outcomes_[*id].tokens.size(), at_rest);
  go_on();
  run_out();
  EXPECT_EQ(outcomes_[*id].tokens, wanted);
  rest_with_cache(RestMode::kWait);
  run_out();
  go_on();
  const auto again = submit(4);
  run_out();
  EXPECT_GT(outcomes_[*again].cached_tokens, 0);
  // Another order forgets it, and so does another name.
  rest_with_cache(RestMode::kAbort);
  run_out();
  EXPECT_GT(blocks_held(), 0);
  order = core_->rest({.ask = RestAsk{.mode = RestMode::kKeep}, .identity = {}});
  EXPECT_FALSE(core_->is_at_rest(order)) << "it rests by the order before";
  turns(1);
  EXPECT_TRUE(core_->is_at_rest(order));
  EXPECT_EQ(blocks_held(), 0);
  go_on();
  run_out();
  submit(4);
  run_out();
  rest_with_cache(RestMode::kAbort);
  run_out();
  go_on("second");
  const auto behind = submit(4);
  run_out();
  EXPECT_EQ(outcomes_[*behind].cached_tokens, 0);
}

TEST_F(RestTest, ACancelAndADeadlineReachWhatIsHeldBack) {
  rest(RestMode::kWait);
  turns(2);
  const auto held = submit(4);
  turns(1);
  core_->cancel(*held);
  turns(1);
  EXPECT_EQ(outcomes_[*held].finish, FinishReason::kCancelled);
  go_on();
  run_out();
  EXPECT_TRUE(core_->is_idle());
}

}  // namespace

TEST(EngineRest, TimeThatIsOverLeavesItRunning) {
  auto made = std::make_unique<testing::ScriptedExecutor>(std::vector<int32_t>{2, 3, 4});
  testing::ScriptedExecutor& executor = *made;
  auto engine = Engine::start({.executor = std::move(made),
                               .tokenizer = testing::tiny_tokenizer(),
                               .clock = std::make_shared<SteadyClock>(),
                               .model_identity = "test",
                               .eos_ids = {0}},
                              {});
  ASSERT_TRUE(engine);
  testing::ScriptedExecutor::Hold hold = executor.hold();
  RequestParams params;
  params.prompt = {2, 3, 4};
  params.max_tokens = 4;
  std::atomic<bool> finished{false};
  ASSERT_TRUE((*engine)->submit(*validate_request(params, (*engine)->limits()),
                                [&](Event&& event) { finished = finished || event.finish; }));
  hold.wait_until_collecting();
  const Result<void> rested = (*engine)->rest({.mode = RestMode::kWait, .refusal = {}}, 20'000);
  ASSERT_FALSE(rested);
  EXPECT_EQ(rested.error().code, ErrorCode::kTimeout);
  hold.let_go();
  while (!finished) std::this_thread::yield();
  EXPECT_TRUE((*engine)->rest({.mode = RestMode::kWait, .refusal = {}}, 60'000'000));
  (*engine)->resume(std::nullopt);
}

}  // namespace rudder::engine
