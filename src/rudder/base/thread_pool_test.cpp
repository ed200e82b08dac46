#include "rudder/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace rudder {
namespace {

TEST(ThreadPool, EachIndexOnceManyTimes) {
  ThreadPool pool(4);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::atomic<int>> hits(round % 37);
    pool.parallel_for(static_cast<int64_t>(hits.size()), [&](int64_t i) { ++hits[i]; });
    for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1);
  }
}

// Loops of changing length one after another, more threads than cores: a worker that comes late to
// one loop must not take an item of the next.
TEST(ThreadPool, LateWorkersTakeNothingTwice) {
  ThreadPool pool(9);
  for (int64_t round = 0; round < 20000; ++round) {
    std::atomic<int64_t> sum{0};
    const int64_t count = 2 + round % 5;
    pool.parallel_for(count, [&](int64_t i) { sum += i + 1; });
    ASSERT_EQ(sum.load(), count * (count + 1) / 2) << round;
  }
}

// Whichever thread throws, and with a pool that goes on working.
TEST(ThreadPool, AnExceptionOfABodyReachesTheCaller) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int64_t bad = 0; bad < 40; ++bad) {
      const auto body = [&](int64_t i) {
        if (i == bad) throw std::runtime_error("body");
      };
      EXPECT_THROW(pool.parallel_for(40, body), std::runtime_error) << bad;
      std::atomic<int> runs{0};
      pool.parallel_for(40, [&](int64_t) { ++runs; });
      ASSERT_EQ(runs.load(), 40);
    }
  }
}

TEST(ThreadPool, StartsAndStopsIdle) {
  for (int round = 0; round < 50; ++round) ThreadPool pool(3);
}

}  // namespace
}  // namespace rudder
