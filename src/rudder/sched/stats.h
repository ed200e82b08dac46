// The scheduler's gauges and counters as a plain snapshot.
#pragma once

#include <cstdint>
#include <vector>

namespace rudder::sched {

// Of what sequences keep besides blocks.
struct StateStats {
  int32_t copies_in_flight = 0;  // gauge: that outlast their steps, those of records too
  uint64_t checkpoints = 0;      // planned
  // What SchedStats::prefix_hits were if no state were needed to go on from a prefix; as many where
  // there are none.
  uint64_t hits_without = 0;
};

// Of cached prefixes behind the device, all 0 where there are no tiers. Hits are tokens of prompts.
struct TierStats {
  bool exist = false;
  int32_t host_records = 0;  // gauges
  int32_t disk_records = 0;
  int64_t disk_bytes = 0;
  uint64_t host_hits = 0;
  uint64_t disk_hits = 0;
  uint64_t host_stored = 0;  // records
  uint64_t disk_stored = 0;
  uint64_t host_evictions = 0;
  uint64_t disk_evictions = 0;
  uint64_t bad_records = 0;       // not what they should be: misses
  uint64_t failed_loads = 0;      // of sequences, which then were computed
  uint64_t failed_writes = 0;     // of files
  uint64_t computed_instead = 0;  // tokens that were there, and that computing takes less time for
};

// Of the prefix cache.
struct CacheStats {
  uint64_t evictions = 0;  // cached blocks given to another use
  TierStats tiers = {};
};

struct SchedStats {
  // Gauges.
  int32_t num_running = 0;     // hold a slot, not ended
  int32_t num_waiting = 0;     // new or preempted
  int32_t num_retiring = 0;    // ended or preempted, still named by a step in flight
  int64_t waiting_tokens = 0;  // prompt (and recomputed output) tokens of those waiting
  int32_t steps_in_flight = 0;
  int32_t num_blocks = 0;     // = in use + cached + free
  int32_t blocks_in_use = 0;  // referenced by a sequence
  int32_t blocks_cached = 0;  // unreferenced, hold a reusable prefix
  int32_t blocks_free = 0;
  // Counters; they only grow.
  uint64_t steps = 0;              // planned
  uint64_t iterations = 0;         // of them
  uint64_t planned_tokens = 0;     // sum of q_len over iterations
  uint64_t drafts = 0;             // sequences of steps that had any
  uint64_t draft_tokens = 0;       // planned, in all of them
  uint64_t accepted_tokens = 0;    // drafts that were right
  uint64_t generation_tokens = 0;  // handed out
  uint64_t preemptions = 0;
  uint64_t prefix_queries = 0;  // prompt tokens looked up, at a sequence's first admission
  uint64_t prefix_hits = 0;     // of them found
  uint64_t overtakes = 0;       // small prompts begun past a large one that waited for blocks
  StateStats states = {};
  CacheStats cached = {};
  uint64_t late_results = 0;  // in flight when their sequence ended
  // Of accepted_tokens, those that were first in their draft, second, and so on; empty
  // where there are no drafts.
  std::vector<uint64_t> accepted_by_position;
};

}  // namespace rudder::sched
