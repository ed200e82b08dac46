// Engine with its thread: what several threads see at once.
#include "rudder/engine/engine.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::engine {
namespace {

using std::chrono::steady_clock;
using testing::ScriptedExecutor;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr int64_t kPatienceUs = std::chrono::microseconds(kPatience).count();

// Counts the last events of several requests.
class Finishes {
 public:
  EventSink sink() {
    return [this](Event&& event) {
      if (!event.finish) return;
      std::lock_guard lock(mutex_);
      reasons_.push_back(*event.finish);
      changed_.notify_all();
    };
  }
  bool wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return reasons_.size() >= count; });
  }
  std::vector<FinishReason> reasons() {
    std::lock_guard lock(mutex_);
    return reasons_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<FinishReason> reasons_;
};

class EngineTest : public ::testing::Test {
 protected:
  void start(EngineSettings settings = {}, std::shared_ptr<const Clock> clock = nullptr,
             step::Capacity capacity = ScriptedExecutor::default_capacity()) {
    auto executor = std::make_unique<ScriptedExecutor>(std::vector<int32_t>{2, 3, 4}, capacity);
    executor_ = executor.get();
    auto engine = Engine::start({.executor = std::move(executor),
                                 .tokenizer = testing::tiny_tokenizer(),
                                 .clock = clock ? clock : std::make_shared<SteadyClock>(),
                                 .model_identity = "test",
                                 .eos_ids = {0}},
                                settings);
    ASSERT_TRUE(engine) << engine.error().to_string();
    engine_ = std::move(*engine);
  }
  Request request(int32_t max_tokens = 8) {
    RequestParams params;
    params.prompt = {2, 3, 4};
    params.max_tokens = max_tokens;
    auto made = validate_request(std::move(params), engine_->limits());
    EXPECT_TRUE(made);
    return std::move(*made);
  }
  ScriptedExecutor* executor_ = nullptr;
  std::unique_ptr<Engine> engine_;
  Finishes finishes_;
};

TEST_F(EngineTest, ServesManyThreadsWhileSomeCancel) {
  start();
  constexpr int kThreads = 4, kRequests = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        const auto id = engine_->submit(request(20), finishes_.sink());
        ASSERT_TRUE(id);
        if ((i + t) % 3 == 0) engine_->cancel(*id);
        if (i % 10 == 0) engine_->reset_prefix_cache();
        EXPECT_GE(engine_->stats().num_blocks, 1);
        EXPECT_TRUE(engine_->health());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(finishes_.wait_for(kThreads * kRequests));
  EXPECT_TRUE(engine_->drain(kPatienceUs));
  EXPECT_EQ(finishes_.reasons().size(), static_cast<size_t>(kThreads * kRequests));
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.finished_length + stats.finished_cancelled,
            static_cast<uint64_t>(kThreads * kRequests));
}

TEST_F(EngineTest, IdleCostsNoProcessorTimeAndStaysHealthy) {
  start();
  const auto cpu_us = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * int64_t{1'000'000} +
           usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
  };
  const int64_t before = cpu_us();
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  EXPECT_LT(cpu_us() - before, 50'000);
  EXPECT_TRUE(engine_->health()) << "the heartbeat";
}

TEST_F(EngineTest, AStuckStepFailsHealthUntilItMoves) {
  auto clock = std::make_shared<testing::VirtualClock>();
  start({}, clock);
  ScriptedExecutor::Hold hold = executor_->hold();
  ASSERT_TRUE(engine_->submit(request(), finishes_.sink()));
  hold.wait_until_collecting();
  clock->advance(4'900'000);
  EXPECT_TRUE(engine_->health());
  clock->advance(100'000);
  ASSERT_FALSE(engine_->health());
  EXPECT_EQ(engine_->health().error().code, ErrorCode::kUnavailable);
  EXPECT_GE(engine_->stats().num_blocks, 1) << "stats do not wait for the step";
  hold.let_go();
  ASSERT_TRUE(finishes_.wait_for(1));
  const auto recovered = steady_clock::now() + kPatience;
  while (!engine_->health() && steady_clock::now() < recovered) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(engine_->health());
}

TEST_F(EngineTest, ADeadExecutorIsToldToAll) {
  start();
  ScriptedExecutor::Hold hold = executor_->hold();
  ASSERT_TRUE(engine_->submit(request(), finishes_.sink()));
  ASSERT_TRUE(engine_->submit(request(), finishes_.sink()));
  hold.wait_until_collecting();
  executor_->fail_collects();
  hold.let_go();
  ASSERT_TRUE(finishes_.wait_for(2));
  for (const FinishReason reason : finishes_.reasons()) EXPECT_EQ(reason, FinishReason::kError);
  EXPECT_FALSE(engine_->health());
  const auto refused = engine_->submit(request(), finishes_.sink());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(engine_->drain(kPatienceUs));
}

TEST_F(EngineTest, DrainFinishesWhatRunsAndGivesUpInTime) {
  start();
  ScriptedExecutor::Hold hold = executor_->hold();
  ASSERT_TRUE(engine_->submit(request(), finishes_.sink()));
  EXPECT_FALSE(engine_->drain(20'000)) << "the device hangs";
  EXPECT_EQ(engine_->submit(request(), finishes_.sink()).error().code, ErrorCode::kUnavailable);
  hold.let_go();
  EXPECT_TRUE(engine_->drain(kPatienceUs));
  EXPECT_EQ(finishes_.reasons(), std::vector{FinishReason::kLength});
}

TEST_F(EngineTest, DestructionCancelsWhatIsOpen) {
  step::Capacity long_contexts = ScriptedExecutor::default_capacity();
  long_contexts.block_size = 1 << 16;
  long_contexts.max_seq_len = 1 << 20;
  start({}, nullptr, long_contexts);
  ScriptedExecutor::Hold hold = executor_->hold();
  // None ends of its own accord within the time of a test.
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(engine_->submit(request(1'000'000), finishes_.sink()));
  hold.wait_until_collecting();
  std::thread later([&hold] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    hold.let_go();
  });
  engine_.reset();
  later.join();
  EXPECT_EQ(finishes_.reasons(), std::vector(20, FinishReason::kCancelled));
}

}  // namespace
}  // namespace rudder::engine
