// EventBatch: what changed in the prefix cache since the last one, in order. Plain data.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace rudder::fleet {

struct BlockEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };

  Kind kind = Kind::kStored;
  bool has_parent = false;  // kStored
  int32_t group = 0;
  uint64_t hash = 0;
  uint64_t parent = 0;  // where it has one
};

struct EventBatch {
  static double now_s() {
    using Seconds = std::chrono::duration<double>;
    return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  double time_s = 0;  // since the epoch
  std::vector<BlockEvent> events = {};
  std::vector<int32_t> tokens = {};  // [stored blocks, block_size], in the order of the events
  uint64_t dropped_before = 0;       // batches between the one before and this one
};

}  // namespace rudder::fleet
