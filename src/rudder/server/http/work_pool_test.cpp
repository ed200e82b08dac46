#include "rudder/server/http/work_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "rudder/base/log.h"

namespace rudder::server {
namespace {

constexpr size_t kShort = 100;
constexpr size_t kLong = WorkPool::kLongBytes + 1;

// Within the patience of a test: what never comes fails it, and does not hang it.
bool comes(const std::shared_future<void>& future) {
  return future.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
}

// Work that runs until it is let go.
struct Gate {
  std::promise<void> open;
  std::shared_future<void> opened = open.get_future().share();
  std::function<void()> wait() const {
    return [future = opened] { EXPECT_TRUE(comes(future)) << "nobody opened the gate"; };
  }
};

TEST(WorkPool, AJobThatThrowsLeavesItsThreadToTheNext) {
  set_log_level(LogLevel::kOff);
  WorkPool pool(1, 10);
  std::promise<void> ran;
  ASSERT_TRUE(pool.run(kShort, [] { throw std::runtime_error("job"); }));
  ASSERT_TRUE(pool.run(kShort, [&] { ran.set_value(); }));
  EXPECT_TRUE(comes(ran.get_future().share()));
  set_log_level(LogLevel::kInfo);
}

TEST(WorkPool, LongWorkLeavesAThreadToShortWork) {
  Gate gate;
  WorkPool pool(2, 100);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(pool.run(kLong, gate.wait()));
  std::promise<void> ran;
  ASSERT_TRUE(pool.run(kShort, [&] { ran.set_value(); }));
  EXPECT_TRUE(comes(ran.get_future().share())) << "while all the long work is still there";
  gate.open.set_value();
}

// One look may say still: a thread of the pool that holds the lock just then is not waited for.
bool becomes_still(WorkPool& pool, bool is_still) {
  for (int i = 0; i < 1000; ++i) {
    if (pool.is_still() == is_still) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST(WorkPool, IsStillWhereAJobDoesNotEndAndNoneBegins) {
  Gate gate;
  WorkPool pool(1, 10);
  EXPECT_TRUE(becomes_still(pool, false)) << "it has nothing to do";
  std::promise<void> began, ran;
  ASSERT_TRUE(pool.run(kShort, [&] { began.set_value(); }));
  ASSERT_TRUE(comes(began.get_future().share()));
  ASSERT_TRUE(pool.run(kShort, gate.wait()));
  ASSERT_TRUE(pool.run(kShort, [&] { ran.set_value(); }));
  EXPECT_TRUE(becomes_still(pool, true));
  gate.open.set_value();
  EXPECT_TRUE(comes(ran.get_future().share()));
  EXPECT_TRUE(becomes_still(pool, false));
}

TEST(WorkPool, OneThreadRunsAllInOrder) {
  WorkPool pool(1, 100);
  std::vector<int> order;
  std::promise<void> done;
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(pool.run(i % 2 == 0 ? kLong : kShort, [&order, &done, i] {
      order.push_back(i);
      if (i == 5) done.set_value();
    }));
  }
  ASSERT_TRUE(comes(done.get_future().share()));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST(WorkPool, AFullOrClosedPoolRefusesAndWhatIsQueuedIsDropped) {
  Gate gate;
  auto held = std::make_shared<int>(0);
  WorkPool pool(1, 2);
  std::promise<void> begun;
  ASSERT_TRUE(pool.run(kShort, [&begun, wait = gate.wait()] {
    begun.set_value();
    wait();
  }));
  ASSERT_TRUE(comes(begun.get_future().share()));
  EXPECT_TRUE(pool.run(kShort, [held] {}));
  EXPECT_TRUE(pool.run(kLong, [held] {}));
  EXPECT_FALSE(pool.run(kShort, [held] {}));
  gate.open.set_value();
  pool.close();
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(pool.run(kShort, [] {}));
}

}  // namespace
}  // namespace rudder::server
