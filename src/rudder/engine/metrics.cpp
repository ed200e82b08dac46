#include "rudder/engine/metrics.h"

#include <algorithm>

namespace rudder::engine {
namespace {

double seconds(int64_t us) {
  return static_cast<double>(us) * 1e-6;
}

int32_t most_tokens(const OpenRequest& request) {
  int32_t most = 0;
  for (const OpenChoice& choice : request.choices) {
    most = std::max(most, output_tokens(request, choice));
  }
  return most;
}

TierStats tier_stats(const sched::TierStats& tiers) {
  return {.has_tiers = tiers.exist ? 1U : 0U,
          .host_records = static_cast<uint64_t>(tiers.host_records),
          .disk_records = static_cast<uint64_t>(tiers.disk_records),
          .disk_bytes = static_cast<uint64_t>(tiers.disk_bytes),
          .host_hits = tiers.host_hits,
          .disk_hits = tiers.disk_hits,
          .host_stored = tiers.host_stored,
          .disk_stored = tiers.disk_stored,
          .host_evictions = tiers.host_evictions,
          .disk_evictions = tiers.disk_evictions,
          .bad_records = tiers.bad_records,
          .failed_loads = tiers.failed_loads,
          .failed_writes = tiers.failed_writes,
          .computed_instead = tiers.computed_instead};
}

}  // namespace

EngineMetrics::EngineMetrics(int32_t max_seq_len, int32_t block_size)
    : live_(make_engine_stats(max_seq_len)) {
  live_.block_size = block_size;
}

EngineStats EngineMetrics::snapshot() const {
  EngineStats stats;
  {
    std::lock_guard lock(mutex_);
    stats = published_;
  }
  stats.rejected = num_rejected_.load(std::memory_order_relaxed);
  return stats;
}

void EngineMetrics::note_admitted(const OpenRequest& request) {
  live_.request_n.observe(request.num_open);
  live_.request_prompt_tokens.observe(request.prompt_tokens);
  live_.request_max_tokens.observe(request.max_tokens);
}

void EngineMetrics::note_launched(int32_t num_tokens, int32_t repeat) {
  live_.iteration_tokens.observe(num_tokens, static_cast<uint64_t>(repeat));
}

void EngineMetrics::note_collected(const step::StepResult& result, bool decodes) {
  if (result.iteration != 0) return;
  live_.graph_steps += result.from_graph ? 1 : 0;
  live_.captured_graphs += result.captured_graph ? 1 : 0;
  live_.eager_decodes += decodes && !result.from_graph ? 1 : 0;
}

void EngineMetrics::note_first_planned(const OpenRequest& request, int64_t now_us) {
  live_.queue_time.observe(seconds(now_us - request.arrival_us));
}

void EngineMetrics::note_tokens(const OpenRequest& request, OpenChoice& choice, size_t count,
                                int64_t now_us) {
  if (count == 0 || request.max_tokens == 0) return;
  live_.generation_tokens += count;
  size_t gaps = count;
  if (!choice.first_token_us) {
    choice.first_token_us = now_us;
    choice.last_token_us = now_us;
    gaps -= 1;
    count_prompt(request, choice);
    live_.time_to_first_token.observe(seconds(now_us - request.arrival_us));
    live_.prefill_time.observe(seconds(now_us - request.first_planned_us.value_or(now_us)));
  }
  if (gaps == 0) return;
  const double gap = seconds(now_us - choice.last_token_us) / static_cast<double>(gaps);
  live_.inter_token_latency.observe(gap, gaps);
  choice.last_token_us = now_us;
}

void EngineMetrics::count_prompt(const OpenRequest& request, const OpenChoice& choice) {
  live_.prompt_tokens += static_cast<uint64_t>(request.prompt_tokens);
  live_.prompt_tokens_cached += static_cast<uint64_t>(choice.cached_tokens);
  live_.request_prefill_computed_tokens.observe(request.prompt_tokens - choice.cached_tokens);
}

void EngineMetrics::note_finish(const OpenRequest& request, const OpenChoice& choice,
                                FinishReason reason, int64_t now_us) {
  switch (reason) {
    case FinishReason::kStop:
      live_.finished_stop += 1;
      break;
    case FinishReason::kLength:
      live_.finished_length += 1;
      break;
    case FinishReason::kCancelled:
      live_.finished_cancelled += 1;
      break;
    case FinishReason::kError:
      live_.finished_error += 1;
      break;
  }
  live_.e2e_latency.observe(seconds(now_us - request.arrival_us));
  const int32_t tokens = output_tokens(request, choice);
  live_.request_generation_tokens.observe(tokens);
  if (request.num_sequences == 1)
    live_.request_most_generation_tokens.observe(most_tokens(request));
  const bool ran_out = reason == FinishReason::kStop || reason == FinishReason::kLength;
  if (!choice.first_token_us) {
    if (ran_out) count_prompt(request, choice);  // its prompt was all that was asked for
    return;
  }
  const double decode_s = seconds(choice.last_token_us - *choice.first_token_us);
  live_.decode_time.observe(decode_s);
  live_.inference_time.observe(
      seconds(choice.last_token_us - request.first_planned_us.value_or(*choice.first_token_us)));
  if (tokens > 1) live_.time_per_output_token.observe(decode_s / (tokens - 1));
}

void EngineMetrics::note_masks(size_t num_sequences, int64_t spent_us) {
  live_.constrained_steps += 1;
  live_.constrained_sequences += num_sequences;
  live_.mask_time.observe(seconds(spent_us));
}

void EngineMetrics::publish(const sched::SchedStats& sched, size_t num_waiting_for_taps,
                            const steer::RowTable::Stats& tap_rows) {
  live_.num_running = sched.num_running;
  live_.num_waiting = sched.num_waiting;
  live_.num_blocks = sched.num_blocks;
  live_.blocks_in_use = sched.blocks_in_use;
  live_.blocks_cached = sched.blocks_cached;
  live_.blocks_free = sched.blocks_free;
  live_.steps = sched.steps;
  live_.iterations = sched.iterations;
  live_.preemptions = sched.preemptions;
  live_.prefix = {.queries = sched.prefix_queries,
                  .hits = sched.prefix_hits,
                  .hits_without_states = sched.states.hits_without,
                  .tiers = tier_stats(sched.cached.tiers)};
  live_.late_results = sched.late_results;
  live_.drafts = sched.drafts;
  live_.draft_tokens = sched.draft_tokens;
  live_.accepted_tokens = sched.accepted_tokens;
  live_.accepted_by_position = sched.accepted_by_position;
  live_.waiting_for_taps = static_cast<int32_t>(num_waiting_for_taps);
  live_.tap_rows = tap_rows;
  std::lock_guard lock(mutex_);
  published_ = live_;  // same sizes: no allocation after the first
}

}  // namespace rudder::engine
