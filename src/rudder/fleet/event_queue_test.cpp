#include "rudder/fleet/event_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace rudder::fleet {
namespace {

constexpr std::array<int32_t, 2> kTokens = {1, 2};

cache::CachedBlock block(uint64_t hash) {
  return {.hash = hash, .tokens = kTokens};
}

TEST(EventQueue, AStepIsABatch) {
  int woken = 0;
  EventQueue queue({}, [&] { ++woken; });
  queue.step_done();
  EXPECT_FALSE(queue.take().has_value()) << "nothing has changed";
  queue.stored(block(5));
  queue.removed({.hash = 6, .group = 1});
  queue.stored({.hash = 7, .tokens = kTokens, .is_public = false});
  queue.removed({.hash = 7, .is_public = false});
  EXPECT_FALSE(queue.take().has_value()) << "nothing is told before it is committed";
  EXPECT_EQ(woken, 0);
  queue.step_done();
  EXPECT_EQ(woken, 1);
  const auto batch = queue.take();
  ASSERT_TRUE(batch);
  ASSERT_EQ(batch->events.size(), 2u);
  EXPECT_EQ(batch->events[0].hash, 5u);
  EXPECT_EQ(batch->events[1].group, 1);
  EXPECT_EQ(batch->tokens, std::vector<int32_t>(kTokens.begin(), kTokens.end()));
  EXPECT_GT(batch->time_s, 1.7e9);
  EXPECT_EQ(queue.counts().stored, 1u);
  EXPECT_EQ(queue.counts().withheld, 1u);
}

TEST(EventQueue, WhatIsClearedNeedNotBeTold) {
  EventQueue queue({}, [] {});
  queue.stored(block(1));
  queue.removed(block(1));
  queue.cleared();
  queue.stored(block(2));
  queue.step_done();
  const auto batch = queue.take();
  ASSERT_EQ(batch->events.size(), 2u);
  EXPECT_EQ(batch->events[0].kind, BlockEvent::Kind::kCleared);
  EXPECT_EQ(batch->events[1].hash, 2u);
  EXPECT_EQ(batch->tokens.size(), kTokens.size());
}

TEST(EventQueue, AFullQueueDropsAndSaysSo) {
  EventQueue queue({.max_batches = 2}, [] {});
  for (uint64_t hash = 1; hash <= 5; ++hash) {
    queue.stored(block(hash));
    queue.step_done();
  }
  EXPECT_EQ(queue.counts().dropped_batches, 3u);
  EXPECT_EQ(queue.take()->events[0].hash, 1u);
  EXPECT_EQ(queue.take()->dropped_before, 0u);
  EXPECT_FALSE(queue.take());
  queue.stored(block(6));
  queue.step_done();
  const auto batch = queue.take();
  EXPECT_EQ(batch->events[0].hash, 6u);
  EXPECT_EQ(batch->dropped_before, 3u);
}

TEST(EventQueue, BytesAreBoundedToo) {
  EventQueue queue({.max_bytes = 4096}, [] {});
  for (uint64_t hash = 0; hash < 1000; ++hash) {
    queue.stored(block(hash));
    queue.step_done();
  }
  uint64_t taken = 0;
  while (queue.take()) ++taken;
  EXPECT_GT(taken, 0u);
  EXPECT_LE(taken * sizeof(EventBatch), 4096u);
  EXPECT_EQ(taken + queue.counts().dropped_batches, 1000u);
}

TEST(EventQueue, ALongStepIsSeveralBatches) {
  EventQueue queue({}, [] {});
  for (uint64_t hash = 0; hash < 2 * kMaxBatchEvents + 1; ++hash) queue.stored(block(hash));
  queue.step_done();
  size_t events = 0;
  int batches = 0;
  while (const auto batch = queue.take()) {
    EXPECT_LE(batch->events.size(), kMaxBatchEvents);
    EXPECT_EQ(batch->tokens.size(), batch->events.size() * kTokens.size());
    events += batch->events.size();
    ++batches;
  }
  EXPECT_EQ(events, 2 * kMaxBatchEvents + 1);
  EXPECT_EQ(batches, 3);
}

TEST(EventQueue, ATakerOnAnotherThreadMissesNothing) {
  EventQueue queue({.max_batches = 8}, [] {});
  constexpr uint64_t kSteps = 5000;
  std::atomic<bool> done{false};
  uint64_t seen = 0;
  std::thread taker([&] {
    for (;;) {
      const bool last = done;
      while (const auto batch = queue.take()) seen += batch->events.size() + batch->dropped_before;
      if (last) return;
    }
  });
  for (uint64_t hash = 0; hash < kSteps; ++hash) {
    queue.stored(block(hash));
    queue.step_done();
  }
  done = true;
  taker.join();
  // The last ones may have been dropped behind the last batch that was taken.
  EXPECT_LE(seen, kSteps);
  EXPECT_GE(seen + queue.counts().dropped_batches, kSteps);
}

}  // namespace
}  // namespace rudder::fleet
