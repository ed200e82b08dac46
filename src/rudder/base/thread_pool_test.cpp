#include "rudder/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
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

}  // namespace
}  // namespace rudder
