// EngineStats: gauges, counters and histograms as a plain snapshot; the server writes them out as
// Prometheus text. Counters only grow.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "rudder/steer/row_table.h"

namespace rudder::engine {

// Cumulative histogram with fixed upper bounds; the last bucket is +Inf.
struct Histogram {
  std::vector<double> bounds;
  std::vector<uint64_t> counts;  // bounds.size() + 1, not cumulative
  double sum = 0;
  uint64_t count = 0;

  void observe(double value, uint64_t times = 1);
};

// Of cached prefixes behind the device; all 0 where there are no tiers. Hits in tokens of prompts,
// the rest in records of a block.
struct TierStats {
  uint64_t has_tiers = 0;     // replicas that have any
  uint64_t host_records = 0;  // gauges
  uint64_t disk_records = 0;
  uint64_t disk_bytes = 0;
  uint64_t host_hits = 0;
  uint64_t disk_hits = 0;
  uint64_t host_stored = 0;
  uint64_t disk_stored = 0;
  uint64_t host_evictions = 0;
  uint64_t disk_evictions = 0;
  uint64_t bad_records = 0;
  uint64_t failed_loads = 0;
  uint64_t failed_writes = 0;
  uint64_t computed_instead = 0;
};

// Of the prefix cache, in tokens of prompts.
struct PrefixStats {
  uint64_t queries = 0;              // looked up
  uint64_t hits = 0;                 // found
  uint64_t hits_without_states = 0;  // had no state been needed to go on from there
  TierStats tiers;
};

struct EngineStats {
  // Gauges.
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  int32_t max_running = 0;  // sequences
  int64_t queued_tokens = 0;
  int64_t expected_wait_us = 0;  // of what waits, as the queue was served lately
  int32_t num_blocks = 0;
  int32_t blocks_in_use = 0;  // referenced by a sequence
  int32_t blocks_cached = 0;  // free to evict, holding a reusable prefix
  int32_t blocks_free = 0;
  int32_t block_size = 0;
  int32_t waiting_for_taps = 0;     // requests, for rows of the tap table or a capture set
  steer::RowTable::Stats tap_rows;  // gauges and counters of its own
  // Counters.
  uint64_t steps = 0;
  uint64_t iterations = 0;       // of them: one each, but for steps that are repeated
  uint64_t graph_steps = 0;      // collected ones that were replayed from a captured graph
  uint64_t captured_graphs = 0;  // behind the start, for one of all steps
  uint64_t eager_decodes = 0;    // others of one token a sequence
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0;
  uint64_t prompt_tokens_cached = 0;
  uint64_t generation_tokens = 0;
  PrefixStats prefix;
  uint64_t finished_stop = 0;
  uint64_t finished_length = 0;
  uint64_t finished_cancelled = 0;
  uint64_t finished_error = 0;
  uint64_t rejected = 0;
  uint64_t displaced = 0;        // ended waiting, for one of higher priority
  uint64_t expired = 0;          // ended waiting, for as long as they might
  uint64_t late_results = 0;     // late results: computed for a sequence that had ended
  uint64_t clipped_samples = 0;  // of prompts' scores, by the latches
  uint64_t constrained_steps = 0;
  uint64_t constrained_sequences = 0;  // of them
  // Speculation: sequences of steps that had drafts, their tokens, and those that were right; of
  // these, by their position in the draft. Empty where nothing speculates.
  uint64_t drafts = 0;
  uint64_t draft_tokens = 0;
  uint64_t accepted_tokens = 0;
  std::vector<uint64_t> accepted_by_position;
  // Seconds, per request, per token or, of masks, per constrained step.
  Histogram time_to_first_token;
  Histogram inter_token_latency;
  Histogram e2e_latency;
  Histogram queue_time;
  Histogram prefill_time;
  Histogram decode_time;
  Histogram inference_time;         // from the first step to the last token
  Histogram time_per_output_token;  // of a choice, behind its first one
  Histogram mask_time;
  // Tokens.
  Histogram iteration_tokens;
  Histogram request_prompt_tokens;
  Histogram request_generation_tokens;
  Histogram request_most_generation_tokens;   // of the choice of a request that has the most
  Histogram request_prefill_computed_tokens;  // of the prompt, not found in the prefix cache
  Histogram request_max_tokens;
  Histogram request_n;
};

// Adds up counters, histograms and gauges of another replica. The wait is the longer one, and the
// size of a block that of both.
void add_stats(EngineStats& all, const EngineStats& other);

// Zeros, with vLLM's bucket bounds; those of lengths end at max_seq_len.
EngineStats make_engine_stats(int32_t max_seq_len);

}  // namespace rudder::engine
