// The simulator: the real scheduler, KV bookkeeping and EngineCore over FakeExecutor, with a
// virtual clock and one 64-bit seed. Clients arrive, cancel and leave at random on small machines
// with little memory. After every step it checks every invariant, and compares each client's
// output, token by token and byte by byte, with that of a lone request. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace rudder::testing {

struct SimOptions {
  uint64_t seed = 1;
  uint64_t steps = 1'000'000;  // engine steps to run, over as many episodes as it takes
};

// What happened: a run that never preempted or never stopped on a string proves nothing of them.
struct SimCoverage {
  uint64_t episodes = 0;
  uint64_t requests = 0;
  uint64_t tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t windowed_hits = 0;  // prefixes gone on from whose first blocks a window had passed
  uint64_t cancels = 0;
  uint64_t rejections = 0;
  uint64_t displaced = 0;  // for a request of higher priority
  uint64_t expired = 0;    // at their deadlines, waiting
  uint64_t preemptions = 0;
  uint64_t evictions = 0;
  uint64_t host_hits = 0;  // tokens, in tiers behind the device
  uint64_t disk_hits = 0;
  uint64_t bad_records = 0;
  uint64_t failed_loads = 0;
  uint64_t stop_strings = 0;
  uint64_t stop_rows = 0;  // ends by `stop_when`
  uint64_t stop_ids = 0;
  uint64_t numerical = 0;
  uint64_t late_results = 0;
  uint64_t repeats = 0;  // iterations of steps behind their first
  uint64_t drafts = 0;
  uint64_t accepted_drafts = 0;
  uint64_t constrained_sequences = 0;
  uint64_t constraint_failures = 0;
  uint64_t executor_deaths = 0;
  uint64_t differing_ranks = 0;           // of groups: one sampled other tokens
  uint64_t cohorts_beside = 0;            // steps launched beside others, of a pipeline
  uint64_t steered = 0;                   // requests that ran to their end
  uint64_t captured = 0;                  // tokens of such requests
  uint64_t scored = 0;                    // tokens of prompts
  uint64_t waited_for_taps = 0;           // steps before which some request did
  uint64_t tap_evictions = 0;             // of programs, for others
  uint64_t overtakes = 0;                 // small prompts begun past a large one
  uint64_t waited_for_copies = 0;         // steps before which some sequence did
  uint64_t rests = 0;                     // from which it went on under another name
  uint64_t most_overtaken = 0;            // how often one request was passed over by later ones
  uint64_t most_overtaken_by_others = 0;  // the first of a tenant, by those of others
  uint64_t longest_silence = 0;           // steps between two signs of progress of a request
};

struct SimReport {
  uint64_t steps = 0;
  SimCoverage coverage;
  uint64_t trace_hash = 0;  // of every event: the same seed gives the same
  // Empty when every invariant held. Else the run ended at it; `seed` of the failing episode
  // repeats it at once.
  std::string violation;
  uint64_t episode_seed = 0;
  uint64_t episode_step = 0;
  std::vector<std::string> last_notes;
};

// Installs a RUDDER_CHECK hook for its duration, so that a failed check is a violation.
SimReport run_simulation(const SimOptions& options);

}  // namespace rudder::testing
