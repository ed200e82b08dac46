#include "rudder/fleet/held_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>

namespace rudder::fleet {
namespace {

constexpr int32_t kBlockSize = 2;

struct Known {
  std::optional<uint64_t> parent = {};
  std::array<int32_t, kBlockSize> tokens = {};
  bool operator==(const Known&) const = default;
};
using Mirror = std::map<std::pair<int32_t, uint64_t>, Known>;

// A subscriber that keeps what it is told.
void tell(Mirror& mirror, const EventBatch& batch) {
  size_t at = 0;
  for (const BlockEvent& event : batch.events) {
    const std::pair key = {event.group, event.hash};
    if (event.kind == BlockEvent::Kind::kCleared) mirror.clear();
    if (event.kind == BlockEvent::Kind::kRemoved) mirror.erase(key);
    if (event.kind != BlockEvent::Kind::kStored) continue;
    Known known = {.tokens = {batch.tokens.at(at), batch.tokens.at(at + 1)}};
    if (event.has_parent) known.parent = event.parent;
    mirror[key] = known;
    at += kBlockSize;
  }
  EXPECT_EQ(at, batch.tokens.size());
}

EventBatch random_batch(std::mt19937& rng, int blocks) {
  EventBatch batch;
  for (int i = 0; i < 8; ++i) {
    const auto hash = static_cast<uint64_t>(rng() % static_cast<unsigned>(blocks));
    const auto group = static_cast<int32_t>(rng() % 2);
    const unsigned kind = rng() % 64;
    if (kind == 0) {
      batch.events.push_back({.kind = BlockEvent::Kind::kCleared});
    } else if (kind < 24) {
      batch.events.push_back({.kind = BlockEvent::Kind::kRemoved, .group = group, .hash = hash});
    } else {
      batch.events.push_back(
          {.has_parent = hash > 0, .group = group, .hash = hash, .parent = hash / 2});
      for (int token = 0; token < kBlockSize; ++token) {
        batch.tokens.push_back(static_cast<int32_t>(rng() % 1000));
      }
    }
  }
  return batch;
}

TEST(HeldBlocks, WhoKnewNothingKnowsWhatOthersKnow) {
  std::mt19937 rng(7);
  for (int round = 0; round < 100; ++round) {
    std::vector<EventBatch> published(rng() % 60);
    for (EventBatch& batch : published)
      batch = random_batch(rng, 1 + static_cast<int>(rng() % 300));
    HeldBlocks held(kBlockSize);
    Mirror others;
    for (const EventBatch& batch : published) {
      held.apply(batch);
      tell(others, batch);
    }
    ASSERT_EQ(held.size(), others.size());
    Mirror late = {{{0, 999'999}, {}}};  // what it had from before
    for (const EventBatch& batch : held.batches(3.5)) {
      EXPECT_EQ(batch.time_s, 3.5);
      tell(late, batch);
    }
    ASSERT_EQ(late, others);
  }
}

TEST(HeldBlocks, ABlockComesBehindItsParent) {
  std::mt19937 rng(8);
  HeldBlocks held(kBlockSize);
  std::vector<EventBatch> published(400);
  for (EventBatch& batch : published) {
    batch = random_batch(rng, 5000);
    held.apply(batch);
  }
  Mirror last;
  for (const EventBatch& batch : published) tell(last, batch);
  std::set<std::pair<int32_t, uint64_t>> told;
  for (const EventBatch& batch : held.batches(0)) {
    for (const BlockEvent& event : batch.events) {
      if (event.kind == BlockEvent::Kind::kCleared) continue;
      const std::pair parent = {event.group, event.parent};
      EXPECT_TRUE(!event.has_parent || !last.contains(parent) || told.contains(parent));
      told.insert({event.group, event.hash});
    }
  }
  EXPECT_EQ(told.size(), last.size());
}

TEST(HeldBlocks, ABatchHasABound) {
  HeldBlocks held(1);
  EventBatch many;
  for (uint64_t hash = 0; hash < 2 * kMaxBatchEvents + 5; ++hash) {
    many.events.push_back({.hash = hash});
    many.tokens.push_back(1);
  }
  held.apply(many);
  size_t events = 0;
  const auto batches = held.batches(0);
  for (const EventBatch& batch : batches) {
    EXPECT_LE(batch.events.size(), kMaxBatchEvents);
    events += batch.events.size();
  }
  EXPECT_EQ(events, many.events.size() + 1) << "and that all was cleared";
  EXPECT_EQ(batches.size(), 3u);
}

}  // namespace
}  // namespace rudder::fleet
