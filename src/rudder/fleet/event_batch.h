// EventBatch: what changed in the prefix cache since the last one, in order. Plain data.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rudder/cache/block_watcher.h"

namespace rudder::fleet {

// Events of one batch: a step with more becomes several. Consumers have bounds of their own
// (vllm-router takes 4,096).
inline constexpr size_t kMaxBatchEvents = 1024;

struct BlockEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };

  Kind kind = Kind::kStored;
  bool has_parent = false;  // kStored
  int32_t group = 0;
  cache::Medium medium = cache::Medium::kDevice;
  uint64_t hash = 0;
  uint64_t parent = 0;  // where it has one
};

struct EventBatch {
  static double now_s() {
    using Seconds = std::chrono::duration<double>;
    return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  // Of memory.
  int64_t bytes() const {
    return static_cast<int64_t>(sizeof(EventBatch) + events.size() * sizeof(BlockEvent) +
                                tokens.size() * sizeof(int32_t));
  }

  double time_s = 0;  // since the epoch
  std::vector<BlockEvent> events = {};
  std::vector<int32_t> tokens = {};  // [stored blocks, block_size], in the order of the events
  uint64_t dropped_before = 0;       // batches between the one before and this one
};

}  // namespace rudder::fleet
