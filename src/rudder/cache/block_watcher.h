// BlockWatcher: is told which blocks the prefix cache can be continued from, as that changes.
// Called on the engine thread, which it must not hold up. `fleet` has the implementation that
// publishes what it is told; CachedKeys keeps it for other threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace rudder::cache {

// Where a cached block lies. The device's are the prefix cache's own; the others are tiers behind
// it (tier_index.h), which may have the same blocks.
enum class Medium : uint8_t { kDevice, kHost, kDisk };

struct CachedBlock {
  uint64_t hash = 0;                    // the low half of the block's key
  std::optional<uint64_t> parent = {};  // likewise of the block before it; none for a first block
  int32_t group = 0;
  std::span<const int32_t> tokens = {};  // [block_size]; valid during the call
  // Any request can hit it: neither it nor the blocks before it have a salt or steering.
  bool is_public = true;
  Medium medium = Medium::kDevice;
};

class BlockWatcher {
 public:
  virtual ~BlockWatcher() = default;

  // The cache has this block from now on. There is at most one of a hash, group and medium, unless
  // two prefixes have one hash.
  virtual void stored(const CachedBlock& block) = 0;
  // It was stored and is there no more.
  virtual void removed(const CachedBlock& block) = 0;
  // There is no block any more, those removed a moment ago included.
  virtual void cleared() = 0;
  // What was said so far is committed, and may be passed on.
  virtual void step_done() = 0;
};

}  // namespace rudder::cache
