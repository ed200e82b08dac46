// The bytes of a batch as vLLM 0.33 publishes KV events: a MessagePack array of time, events and
// rank, each event a map. Blocks of one prefix that follow each other are one event. A pure
// function; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/fleet/event_batch.h"

namespace rudder::fleet {

struct CacheShape {
  int32_t block_size = 16;
  std::vector<int32_t> windows = {0};  // one a KV group; 0: its layers see all tokens
  int32_t rank = 0;                    // data_parallel_rank of the replica whose cache it is

  // Stored blocks name their group and its window, unless there is but one, without a window.
  bool names_groups() const { return windows.size() != 1 || windows[0] != 0; }
};

std::string encode_batch(const EventBatch& batch, const CacheShape& shape);

}  // namespace rudder::fleet
