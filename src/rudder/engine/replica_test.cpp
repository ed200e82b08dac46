// The engine thread sleeps while it has nothing to do, and is woken.
#include "rudder/engine/replica.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"

namespace rudder::engine {
namespace {

constexpr auto kWakePatience = std::chrono::seconds(60);
constexpr int64_t kNoHeartbeatUs = int64_t{3600} * 1'000'000;

std::unique_ptr<EngineCore> small_core() {
  auto core = EngineCore::create(
      {.executor = std::make_unique<testing::ScriptedExecutor>(std::vector<int32_t>{2, 3, 4}),
       .tokenizer = testing::tiny_tokenizer(),
       .clock = std::make_shared<SteadyClock>(),
       .model_identity = "test",
       .eos_ids = {0}},
      {}, {});
  EXPECT_TRUE(core);
  return std::move(*core);
}

Request small_request(const EngineCore& core) {
  RequestParams params;
  params.prompt = {2, 3, 4};
  params.max_tokens = 2;
  return validate_request(std::move(params), core.limits()).value();
}

// Without the wake a request would wait for the heartbeat, an hour here.
TEST(ReplicaTest, ASubmissionWakesAnIdleEngine) {
  Replica replica(small_core(), kNoHeartbeatUs);
  for (int i = 0; i < 20; ++i) {
    // The engine thread goes to sleep meanwhile, most times: a submission in front of that is seen
    // without a wake.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const auto finished = std::make_shared<std::promise<void>>();
    ASSERT_TRUE(replica.core().submit(small_request(replica.core()), [finished](Event&& event) {
      if (event.finish) finished->set_value();
    }));
    ASSERT_EQ(finished->get_future().wait_for(kWakePatience), std::future_status::ready) << i;
  }
}

TEST(ReplicaTest, AStopWakesAnIdleEngine) {
  for (int i = 0; i < 5; ++i) {
    auto replica = std::make_unique<Replica>(small_core(), kNoHeartbeatUs);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    auto stopped = std::async(std::launch::async, [&] { replica->stop(); });
    ASSERT_EQ(stopped.wait_for(kWakePatience), std::future_status::ready) << i;
  }
}

}  // namespace
}  // namespace rudder::engine
