// The bounded queue: its bounds, who is displaced, and how long a request is expected to wait.
#include "rudder/engine/bounded_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <string>

namespace rudder::engine {
namespace {

constexpr int64_t kSecond = 1'000'000;

BoundedQueue::Taken take(BoundedQueue& queue, uint64_t id, const PlaceAsk& ask,
                         int64_t now_us = 0) {
  auto taken = queue.take(ask, RequestId(id), now_us);
  EXPECT_TRUE(taken) << taken.error().to_string();
  return taken ? std::move(*taken) : BoundedQueue::Taken();
}

TEST(BoundedQueueTest, AHigherPriorityDisplacesTheLastOfTheLowest) {
  BoundedQueue queue(3, 1000);
  auto low = take(queue, 1, {.tokens = 10, .priority = 5});
  auto lowest = take(queue, 2, {.tokens = 10, .priority = 9});
  auto last_lowest = take(queue, 3, {.tokens = 10, .priority = 9});
  EXPECT_FALSE(queue.would_accept({.tokens = 10, .priority = 9}, 0));  // its like is not lower
  EXPECT_TRUE(queue.would_accept({.tokens = 10, .priority = 8}, 0));
  auto high = take(queue, 4, {.tokens = 10, .priority = 0});
  EXPECT_EQ(high.displaced, std::vector<RequestId>{RequestId(3)});
  EXPECT_FALSE(last_lowest.place.is_held());
  EXPECT_TRUE(lowest.place.is_held());
  EXPECT_EQ(queue.load().requests, 3);
  last_lowest.place.release();  // is no longer its own
  last_lowest.place.start(5);
  EXPECT_EQ(queue.load().requests, 3);
  high.place.release();
  EXPECT_EQ(queue.load().requests, 2);
  EXPECT_EQ(queue.load().tokens, 20);
}

TEST(BoundedQueueTest, AsManyAreDisplacedAsItTakesOrNone) {
  BoundedQueue queue(10, 100);
  std::vector<BoundedQueue::Taken> taken;
  for (uint64_t id = 1; id <= 5; ++id) {
    taken.push_back(take(queue, id, {.tokens = 20, .priority = static_cast<int32_t>(id)}));
  }
  // Without 4 and 5 there would be room for 40 tokens.
  EXPECT_FALSE(queue.take({.tokens = 41, .priority = 3}, RequestId(6), 0));
  EXPECT_EQ(queue.load().requests, 5);
  const auto large = take(queue, 7, {.tokens = 40, .priority = 3});
  EXPECT_EQ(large.displaced, (std::vector{RequestId(5), RequestId(4)}));
  EXPECT_EQ(queue.load().tokens, 100);
}

TEST(BoundedQueueTest, AWaitIsExpectedAsTheQueueWasServed) {
  BoundedQueue queue(1000, 1'000'000);
  std::deque<BoundedQueue::Taken> waiting;
  uint64_t id = 0;
  const auto fill = [&](int64_t now_us) {
    while (waiting.size() < 100) {
      waiting.push_back(take(queue, ++id, {.tokens = 50}, now_us));
    }
  };
  fill(0);
  // Nothing is known yet, so nothing is refused.
  EXPECT_EQ(queue.expected_wait_us(kSecond), 0);
  EXPECT_TRUE(queue.would_accept({.tokens = 50, .max_wait_us = 1}, 0));
  int64_t now_us = 0;
  for (int i = 0; i < 400; ++i) {  // 20 a second
    now_us += kSecond / 20;
    waiting.front().place.start(now_us);
    waiting.pop_front();
    fill(now_us);
  }
  EXPECT_NEAR(static_cast<double>(queue.expected_wait_us(now_us)), 5e6, 0.1e6);
  EXPECT_TRUE(queue.would_accept({.tokens = 50, .max_wait_us = 6 * kSecond}, now_us));
  const auto refused = queue.would_accept({.tokens = 50, .max_wait_us = 4 * kSecond}, now_us);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
  // What it may wait for is more than what is expected, but not by the margin: the text says so.
  const auto close =
      queue.would_accept({.tokens = 50, .max_wait_us = 5 * kSecond + kSecond / 4}, now_us);
  ASSERT_FALSE(close);
  EXPECT_NE(close.error().message.find("give or take an eighth"), std::string::npos);
  // Ahead of those of lower priority nothing waits; beside other tenants it has its turn.
  EXPECT_TRUE(queue.would_accept({.tokens = 50, .priority = -1, .max_wait_us = kSecond}, now_us));
  EXPECT_TRUE(queue.would_accept({.tokens = 50, .tenant = 1, .max_wait_us = kSecond}, now_us));
  // The longer nothing begins, the longer the wait.
  EXPECT_GT(queue.expected_wait_us(now_us + 20 * kSecond), 10 * kSecond);
  // Four times as fast for a while.
  for (int i = 0; i < 1600; ++i) {
    now_us += kSecond / 80;
    waiting.front().place.start(now_us);
    waiting.pop_front();
    fill(now_us);
  }
  EXPECT_NEAR(static_cast<double>(queue.expected_wait_us(now_us)), 1.25e6, 0.3e6);
  // An hour without requests changes nothing.
  waiting.clear();
  EXPECT_EQ(queue.load().requests, 0);
  now_us += 3600 * kSecond;
  fill(now_us);
  EXPECT_NEAR(static_cast<double>(queue.expected_wait_us(now_us)), 1.25e6, 0.3e6);
}

// Random takes and ends: the load is that of the places that are held, and no bound is passed.
TEST(BoundedQueueTest, TheLoadIsThatOfTheHeldPlaces) {
  std::mt19937_64 random(1);
  BoundedQueue queue(20, 200);
  struct Held {
    BoundedQueue::Place place;
    int64_t tokens = 0;
  };
  std::map<uint64_t, Held> held;
  int64_t now_us = 0;
  uint64_t num_displaced = 0;
  for (uint64_t id = 1; id <= 20'000; ++id) {
    now_us += static_cast<int64_t>(random() % 1000);
    const PlaceAsk ask = {.tokens = static_cast<int64_t>(random() % 40) + 1,
                          .tenant = static_cast<int32_t>(random() % 3),
                          .priority = static_cast<int32_t>(random() % 4),
                          .max_wait_us = random() % 4 == 0 ? 500 : 0};
    const bool would = queue.would_accept(ask, now_us).has_value();
    auto taken = queue.take(ask, RequestId(id), now_us);
    ASSERT_EQ(taken.has_value(), would);
    if (taken) {
      for (const RequestId displaced : taken->displaced) {
        ASSERT_FALSE(held.at(displaced.value).place.is_held());
        held.erase(displaced.value);
        ++num_displaced;
      }
      held[id] = {std::move(taken->place), ask.tokens};
    }
    if (!held.empty() && random() % 3 == 0) {
      const auto it = std::next(held.begin(), static_cast<int64_t>(random() % held.size()));
      if (random() % 2 == 0) it->second.place.start(now_us);
      held.erase(it);
    }
    int64_t tokens = 0;
    for (const auto& [other, entry] : held) {
      ASSERT_TRUE(entry.place.is_held());
      tokens += entry.tokens;
    }
    ASSERT_EQ(queue.load().requests, std::ssize(held));
    ASSERT_EQ(queue.load().tokens, tokens);
    ASSERT_LE(std::ssize(held), 20);
    ASSERT_LE(tokens, 200);
  }
  EXPECT_GT(num_displaced, 1000u);
}

}  // namespace
}  // namespace rudder::engine
