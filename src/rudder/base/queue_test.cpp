#include "rudder/base/queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace rudder {
namespace {

TEST(BoundedQueue, RefusesWhenFullAndDrainsAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_TRUE(queue.try_push(2));
  EXPECT_FALSE(queue.try_push(3));
  queue.close();
  EXPECT_FALSE(queue.push(4));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, ManyProducersOneConsumerLosesNothing) {
  BoundedQueue<int> queue(4);
  std::vector<std::thread> producers;
  for (int p = 0; p < 4; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < 1000; ++i) queue.push(p * 1000 + i);
    });
  }
  int64_t sum = 0;
  for (int i = 0; i < 4000; ++i) sum += *queue.pop();
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(sum, int64_t{3999} * 4000 / 2);
}

}  // namespace
}  // namespace rudder
