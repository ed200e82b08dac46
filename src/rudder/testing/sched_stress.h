// run_stress: runs a random workload on a random small machine, from one seed. It checks every
// invariant after every plan and every commit, and compares every output with that of a lone
// request. The stress test and the mutation test of sched compile it.
#pragma once

#include <cstdint>
#include <string>

namespace rudder::testing {

struct StressTotals {
  uint64_t steps = 0;
  uint64_t repeats = 0;  // iterations behind a step's first
  uint64_t preemptions = 0;
  uint64_t prefix_hits = 0;
  uint64_t evictions = 0;
  uint64_t host_hits = 0;  // tokens, in tiers behind the device
  uint64_t disk_hits = 0;
  uint64_t bad_records = 0;
  uint64_t failed_loads = 0;
  uint64_t windowed_hits = 0;
  uint64_t late_results = 0;
  uint64_t sequences = 0;
  uint64_t blocks_told = 0;      // to who watches the prefix cache
  uint64_t blocks_withheld = 0;  // for their salt or steering
  uint64_t draft_tokens = 0;
  uint64_t accepted_tokens = 0;
  uint64_t numerical = 0;
  uint64_t finished_by_host = 0;
  uint64_t steered = 0;   // sequences
  uint64_t captured = 0;  // tokens
};

// The first thing that went wrong, in words, a failed RUDDER_CHECK included; empty when all is
// well.
std::string run_stress(uint64_t seed, StressTotals* totals = nullptr);

}  // namespace rudder::testing
