// GET /metrics: the engine's snapshot and the HTTP side's counters under vLLM's names. Asks nobody
// and waits for nothing.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ctime>
#include <set>
#include <string>
#include <vector>

#include "rudder/base/log.h"
#include "rudder/server/admin/by_replica.h"
#include "rudder/server/admin/exposition.h"
#include "rudder/server/admin/http_series.h"
#include "rudder/server/admin/process_stats.h"
#include "rudder/server/admin/vllm_series.h"
#include "rudder/server/context.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/exchange.h"

namespace rudder::server {
namespace {

using Stats = engine::EngineStats;

void write_gauges(Exposition& out, Replicas replicas) {
  const ByReplica by(out, replicas);
  out.begin("engine_up", "gauge", "1: the engine makes progress.");
  for (size_t i = 0; i < replicas.size(); ++i) {
    out.sample(engine_label(i), replicas[i].health ? 1 : 0);
  }
  out.begin("engine_process_crashes_total", "counter", "Ends of engine processes.");
  for (size_t i = 0; i < replicas.size(); ++i) {
    out.sample(engine_label(i), static_cast<double>(replicas[i].num_crashes));
  }
  by.gauge("num_requests_running", "Sequences in the running batch.", &Stats::num_running);
  by.gauge("num_requests_waiting", "Sequences waiting to be scheduled.", &Stats::num_waiting);
  out.begin("num_requests_waiting_by_reason", "gauge",
            "Sequences that wait for room in a step or in the cache (capacity), requests that wait "
            "for rows of the steering table or a capture set (deferred).");
  by.samples(label("reason", "capacity"), &Stats::num_waiting);
  by.samples(label("reason", "deferred"), &Stats::waiting_for_taps);
  by.gauge("num_queued_tokens", "Prompt tokens of what waits.", &Stats::queued_tokens);
  by.gauge("expected_queue_seconds", "How long what waits takes to begin, as it was served lately.",
           [](const Stats& stats) { return static_cast<double>(stats.expected_wait_us) * 1e-6; });
  by.gauge("kv_cache_usage_perc", "KV blocks in use, 1 is all of them.", kv_usage);
  out.begin("kv_blocks", "gauge", "KV blocks by state; their sum is num_gpu_blocks.");
  by.samples(label("state", "in_use"), &Stats::blocks_in_use);
  by.samples(label("state", "cached"), &Stats::blocks_cached);
  by.samples(label("state", "free"), &Stats::blocks_free);
}

void write_counters(Exposition& out, Replicas replicas) {
  const ByReplica by(out, replicas);
  by.counter("engine_steps_total", "Steps the engine has run.", &Stats::steps);
  by.counter("engine_iterations_total", "Iterations of the steps that the engine has run.",
             &Stats::iterations);
  by.counter("engine_graph_steps_total",
             "Steps replayed from a captured graph; the others ran op by op.", &Stats::graph_steps);
  by.counter(
      "engine_captured_graphs_total",
      "Steps behind the start for which a graph was captured: with taps, prompts or guesses.",
      &Stats::captured_graphs);
  by.counter("num_preemptions_total", "Sequences put back to make room.", &Stats::preemptions);
  by.counter("prompt_tokens_total", "Prompt tokens processed.", &Stats::prompt_tokens);
  by.counter("prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
             &Stats::prompt_tokens_cached);
  out.begin("prompt_tokens_by_source_total", "counter",
            "Prompt tokens that were computed, and that the prefix cache had.");
  by.samples(label("source", "local_compute"),
             [](const Stats& stats) { return stats.prompt_tokens - stats.prompt_tokens_cached; });
  by.samples(label("source", "local_cache_hit"), &Stats::prompt_tokens_cached);
  by.counter("generation_tokens_total", "Tokens generated.", &Stats::generation_tokens);
  const auto of_prefix = [](uint64_t engine::PrefixStats::*count) {
    return [count](const Stats& stats) { return stats.prefix.*count; };
  };
  by.counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
             of_prefix(&engine::PrefixStats::queries));
  by.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
             of_prefix(&engine::PrefixStats::hits));
  by.counter(
      "prefix_cache_hits_without_states_total",
      "Prompt tokens that were found, had no checkpoint of a state been needed to go on from "
      "them; more than prefix_cache_hits_total where layers keep states alone.",
      of_prefix(&engine::PrefixStats::hits_without_states));
  by.counter("requests_rejected_total",
             "Requests refused because the queue was full or they would have waited for too long.",
             &Stats::rejected);
  by.counter("requests_displaced_total", "Waiting requests ended for one of higher priority.",
             &Stats::displaced);
  by.counter("requests_expired_total", "Waiting requests ended at their deadlines.",
             &Stats::expired);
  by.counter("late_results_total", "Results computed for a sequence that had ended.",
             &Stats::late_results);
  by.counter("constrained_steps_total", "Steps with rows that were sampled under a mask.",
             &Stats::constrained_steps);
  by.counter("constrained_sequences_total", "Sequences of steps that were sampled under a mask.",
             &Stats::constrained_sequences);
  out.begin("request_success_total", "counter", "Finished sequences by reason.");
  by.samples(label("finished_reason", "stop"), &Stats::finished_stop);
  by.samples(label("finished_reason", "length"), &Stats::finished_length);
  by.samples(label("finished_reason", "abort"), &Stats::finished_cancelled);
  by.samples(label("finished_reason", "error"), &Stats::finished_error);
}

// Of cached prefixes behind the device; nothing where there are no tiers.
void write_tiers(Exposition& out, Replicas replicas) {
  if (replicas.front().stats.prefix.tiers.has_tiers == 0) return;
  const ByReplica by(out, replicas);
  const auto of = [](uint64_t engine::TierStats::*count) {
    return [count](const Stats& stats) { return stats.prefix.tiers.*count; };
  };
  const auto by_tier = [&](std::string_view name, std::string_view kind, std::string_view help,
                           uint64_t engine::TierStats::*host, uint64_t engine::TierStats::*disk) {
    out.begin(name, kind, help);
    by.samples(label("tier", "host"), of(host));
    by.samples(label("tier", "disk"), of(disk));
  };
  using Tiers = engine::TierStats;
  by_tier("kv_tier_records", "gauge", "Blocks of cached prefixes in a tier behind the device.",
          &Tiers::host_records, &Tiers::disk_records);
  by_tier("kv_tier_hit_tokens_total", "counter",
          "Prompt tokens that were fetched from a tier; part of prefix_cache_hits_total.",
          &Tiers::host_hits, &Tiers::disk_hits);
  by_tier("kv_tier_stored_total", "counter", "Blocks that a tier was given.", &Tiers::host_stored,
          &Tiers::disk_stored);
  by_tier("kv_tier_evictions_total", "counter", "Blocks that a tier forgot for others.",
          &Tiers::host_evictions, &Tiers::disk_evictions);
  by.counter("kv_tier_bad_records_total",
             "Records that were not what they should be, and so were misses.",
             of(&Tiers::bad_records));
  by.counter("kv_tier_failed_loads_total",
             "Prefixes that could not be fetched whole, and were computed.",
             of(&Tiers::failed_loads));
  by.counter("kv_tier_failed_writes_total", "Files that could not be written.",
             of(&Tiers::failed_writes));
  by.counter("kv_tier_computed_instead_tokens_total",
             "Prompt tokens that a tier had and that were computed, since that took less time.",
             of(&Tiers::computed_instead));
}

// By vLLM's names; nothing where the server does not speculate.
void write_speculation(Exposition& out, Replicas replicas) {
  const size_t longest = replicas.front().stats.accepted_by_position.size();
  if (longest == 0) return;
  const ByReplica by(out, replicas);
  by.counter("spec_decode_num_drafts_total", "Drafts that steps verified, one a sequence and step.",
             &Stats::drafts);
  by.counter("spec_decode_num_draft_tokens_total", "Tokens of those.", &Stats::draft_tokens);
  by.counter("spec_decode_num_accepted_tokens_total", "Of those tokens, the ones that were right.",
             &Stats::accepted_tokens);
  out.begin("spec_decode_num_accepted_tokens_per_pos_total", "counter",
            "Tokens that were right, by their position in the draft.");
  for (size_t i = 0; i < longest; ++i) {
    by.samples(label("position", fmt::format("{}", i)),
               [i](const Stats& stats) { return stats.accepted_by_position[i]; });
  }
}

void write_histograms(Exposition& out, Replicas replicas) {
  const ByReplica by(out, replicas);
  by.histogram("time_to_first_token_seconds", "From arrival to the first token.",
               &Stats::time_to_first_token);
  by.histogram("inter_token_latency_seconds", "Between tokens of a sequence.",
               &Stats::inter_token_latency);
  by.histogram("e2e_request_latency_seconds", "From arrival to the last token.",
               &Stats::e2e_latency);
  by.histogram("request_queue_time_seconds", "Waiting before the first step.", &Stats::queue_time);
  by.histogram("request_prefill_time_seconds", "From the first step to the first token.",
               &Stats::prefill_time);
  by.histogram("request_decode_time_seconds", "From the first to the last token.",
               &Stats::decode_time);
  by.histogram("request_inference_time_seconds", "From the first step to the last token.",
               &Stats::inference_time);
  by.histogram("request_time_per_output_token_seconds",
               "The mean of a sequence, over its tokens behind the first.",
               &Stats::time_per_output_token);
  by.histogram("mask_seconds", "Writing the masks of a constrained step, as the model runs it.",
               &Stats::mask_time);
  by.histogram("iteration_tokens_total", "Tokens of a step.", &Stats::iteration_tokens);
  by.histogram("request_prompt_tokens", "Prompt tokens of a request.",
               &Stats::request_prompt_tokens);
  by.histogram("request_generation_tokens", "Tokens generated for a request.",
               &Stats::request_generation_tokens);
  by.histogram("request_max_num_generation_tokens",
               "Tokens generated for the longest choice of a request.",
               &Stats::request_most_generation_tokens);
  by.histogram("request_prefill_kv_computed_tokens",
               "Prompt tokens that were computed, not found in the prefix cache.",
               &Stats::request_prefill_computed_tokens);
  by.histogram("request_params_max_tokens", "max_tokens of a request.", &Stats::request_max_tokens);
  by.histogram("request_params_n", "Choices of a request.", &Stats::request_n);
}

void write_steering(Exposition& out, Replicas replicas) {
  const ByReplica by(out, replicas);
  using Rows = steer::RowTable::Stats;
  const auto of_rows = [](const auto& value) {
    return [value](const Stats& stats) { return std::invoke(value, stats.tap_rows); };
  };
  out.begin("steering_rows", "gauge",
            "Rows of the steering table by state; pinned ones that no "
            "request uses are cached.");
  by.samples(label("state", "in_use"), of_rows(&Rows::held));
  by.samples(label("state", "cached"), of_rows(&Rows::cached));
  by.samples(label("state", "free"),
             of_rows([](const Rows& rows) { return rows.rows - rows.held - rows.cached; }));
  by.gauge("steering_pinned_programs", "Programs of registered modules and global steering.",
           of_rows(&Rows::pinned));
  by.gauge("steering_pinned_resident", "Of those, on the device.", of_rows(&Rows::pinned_resident));
  by.gauge("steering_vector_bytes", "Bytes of the vectors on the device.",
           of_rows([](const Rows& rows) {
             return static_cast<double>(rows.floats_used) * sizeof(float);
           }));
  by.gauge("steering_requests_waiting", "Requests that wait for rows or for a capture set.",
           &Stats::waiting_for_taps);
  by.counter("steering_hits_total", "Programs that a request found on the device.",
             of_rows(&Rows::hits));
  by.counter("steering_uploads_total", "Programs uploaded.", of_rows(&Rows::uploads));
  by.counter("steering_upload_bytes_total", "Bytes of those.", of_rows(&Rows::upload_bytes));
  by.counter("steering_evictions_total", "Programs that made room for others.",
             of_rows(&Rows::evictions));
  by.counter("steering_clipped_samples_total",
             "Samples of prompts' scores beyond 2^18 in magnitude, which were clipped to it.",
             &Stats::clipped_samples);
}

void write_feature_reader(Exposition& out, const features::FeatureReaderStats& stats) {
  out.begin("capture_feature_rows_total", "counter", "Rows read as features of a dictionary.");
  for (const bool on_device : {true, false}) {
    const bool is_here = stats.on_device == on_device;
    out.sample(label("reader", on_device ? "device" : "host"),
               is_here ? static_cast<double>(stats.rows) : 0);
  }
  out.counter("capture_feature_batches_total", "Passes over an encoder that these rows took.",
              static_cast<double>(stats.batches));
  out.counter("capture_feature_loads_total", "Encoders put on the device to read rows by.",
              static_cast<double>(stats.loads));
  out.counter("capture_feature_load_bytes_total", "Bytes of those.",
              static_cast<double>(stats.load_bytes));
  out.counter("capture_feature_evictions_total", "Of those that made room for others.",
              static_cast<double>(stats.evictions));
  out.gauge("capture_feature_bytes", "That encoders take on the device now.",
            static_cast<double>(stats.held_bytes));
}

void write_captures(Exposition& out, const steer::capture::CaptureStats& stats) {
  out.counter("capture_tokens_total", "Tokens captured.", static_cast<double>(stats.tokens));
  out.counter("capture_lost_tokens_total", "Tokens whose captured rows found no buffer.",
              static_cast<double>(stats.lost_tokens));
  out.gauge("capture_requests_open", "Choices that capture.",
            static_cast<double>(stats.open_requests));
  out.counter("capture_block_seconds_total", "Time that steps waited for slow consumers.",
              static_cast<double>(stats.block_us) * 1e-6);
  using Consumer = steer::capture::ConsumerStats;
  const auto by_consumer = [&](std::string_view name, std::string_view type, std::string_view help,
                               const auto& value) {
    out.begin(name, type, help);
    for (const Consumer& consumer : stats.consumers) {
      out.sample(label("consumer", consumer.name), static_cast<double>(value(consumer)));
    }
  };
  by_consumer("capture_rows_total", "counter", "Rows handed to a consumer.",
              [](const Consumer& c) { return c.rows; });
  by_consumer("capture_bytes_total", "counter", "Bytes of those.",
              [](const Consumer& c) { return c.bytes; });
  by_consumer("capture_dropped_rows_total", "counter", "Rows that a consumer was too slow for.",
              [](const Consumer& c) { return c.dropped_rows; });
  by_consumer("capture_spilled_bytes_total", "counter", "Bytes that went over the disk.",
              [](const Consumer& c) { return c.spilled_bytes; });
  by_consumer("capture_queued_bytes", "gauge", "Bytes that wait for a consumer.",
              [](const Consumer& c) { return c.queued_bytes; });
  write_feature_reader(out, stats.features);
}

void write_grammars(Exposition& out, const constraint::GrammarStats& stats) {
  const auto counter = [&](std::string_view name, std::string_view help, uint64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  counter("grammar_cache_queries_total", "Forms of outputs that were asked for.",
          stats.hits + stats.misses);
  counter("grammar_cache_hits_total", "Of those, found compiled or being compiled.", stats.hits);
  counter("grammar_compile_failures_total", "Compiles of forms that are at fault.", stats.failures);
  counter("grammar_compile_timeouts_total", "Compiles that took longer than a request waits.",
          stats.timeouts);
  out.counter("grammar_compile_seconds_total", "Time spent compiling forms.",
              stats.compile_seconds);
  out.gauge("grammar_cache_entries", "Forms kept, the refused ones included.",
            static_cast<double>(stats.cache_entries));
  out.gauge("grammar_cache_bytes", "Bytes of those.", static_cast<double>(stats.cache_bytes));
  counter("grammar_mask_lookups_total", "States of outputs that masks were looked up for.",
          stats.masks.lookups);
  counter("grammar_mask_hits_total", "Of those, where the mask of an equal state was known.",
          stats.masks.hits);
  out.gauge("grammar_mask_bytes", "Bytes of the masks that are kept.",
            static_cast<double>(stats.masks.bytes));
}

void write_tokens(Exposition& out, const TokenCache::Stats& stats) {
  out.counter("token_cache_queries_total", "Prompts looked up among those tokenised lately.",
              static_cast<double>(stats.queries));
  out.counter("token_cache_hits_total", "Prompts found among those tokenised lately.",
              static_cast<double>(stats.hits));
  out.gauge("token_cache_bytes", "Bytes of the ids of prompts tokenised lately.",
            static_cast<double>(stats.bytes));
}

// One publisher a replica.
void write_kv_events(Exposition& out, const std::vector<const fleet::EventPublisher*>& publishers) {
  using Published = fleet::PublisherStats;
  std::vector<Published> all;
  all.reserve(publishers.size());
  for (const fleet::EventPublisher* publisher : publishers) all.push_back(publisher->stats());
  const auto samples = [&](const std::string& labels, const auto& value) {
    for (size_t i = 0; i < all.size(); ++i) {
      out.sample(engine_label(i) + (labels.empty() ? "" : ",") + labels,
                 static_cast<double>(all[i].*value));
    }
  };
  const auto counter = [&](std::string_view name, std::string_view help,
                           uint64_t Published::*value) {
    out.begin(name, "counter", help);
    samples("", value);
  };
  out.begin("kv_event_subscribers", "gauge", "Subscribers to KV events, by their topic.");
  samples("", &Published::subscribers);
  counter("kv_event_batches_total", "Batches of KV events published, empty ones included.",
          &Published::batches);
  counter("kv_event_batches_dropped_total", "Batches of KV events that found the queue full.",
          &Published::dropped);
  out.begin("kv_event_blocks_total", "counter",
            "KV blocks of which an event tells, or that are withheld for their salt or steering.");
  samples(label("event", "stored"), &Published::stored);
  samples(label("event", "removed"), &Published::removed);
  samples(label("event", "withheld"), &Published::withheld);
  counter("kv_event_clears_total", "Times that KV events told of an empty cache.",
          &Published::cleared);
  counter("kv_event_replays_total", "Replays of KV events that subscribers asked for.",
          &Published::replays);
  counter("kv_event_batches_replayed_total", "Batches of KV events that were sent again.",
          &Published::replayed);
}

void write_process(Exposition& out) {
  const ProcessStats process = read_process_stats();
  out.plain("process_resident_memory_bytes", "gauge", "Resident memory.",
            static_cast<double>(process.resident_bytes));
  out.plain("process_cpu_seconds_total", "counter", "User and system time.", process.cpu_seconds);
  out.plain("process_open_fds", "gauge", "Open file descriptors.",
            static_cast<double>(process.open_fds));
  out.plain("process_max_fds", "gauge", "Bound on open file descriptors.",
            static_cast<double>(process.max_fds));
  out.plain("process_start_time_seconds", "gauge", "Start of the process since the epoch.",
            process.start_time_seconds);
}

// As vLLM's: the adapters are labels, the value is a time, so that the newest sample counts.
void write_adapters(Exposition& out, const lora::Library& library) {
  std::set<std::string> running;
  std::set<std::string> waiting;
  for (const auto& adapter : library.in_use()) {
    if (adapter->running > 0) running.insert(adapter->name);
    if (adapter->waiting > 0) waiting.insert(adapter->name);
  }
  out.begin("lora_requests_info", "gauge", "Adapters of requests that run and that wait.");
  out.sample(label("max_lora", std::to_string(library.max_loras())) + "," +
                 label("running_lora_adapters", fmt::format("{}", fmt::join(running, ","))) + "," +
                 label("waiting_lora_adapters", fmt::format("{}", fmt::join(waiting, ","))),
             static_cast<double>(std::time(nullptr)));
}

}  // namespace

void handle_metrics(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const std::vector<engine::ReplicaState> replicas = context.engine().replicas();
  Exposition out(context.settings.metrics_prefix, label("model_name", context.model().ids.front()));
  write_gauges(out, replicas);
  write_counters(out, replicas);
  write_speculation(out, replicas);
  write_tiers(out, replicas);
  write_histograms(out, replicas);
  write_vllm_series(out, context, replicas);
  if (context.parts.steering != nullptr) write_steering(out, replicas);
  if (context.model().adapters != nullptr) write_adapters(out, *context.model().adapters);
  if (auto* captures = context.engine().captures()) write_captures(out, captures->stats());
  write_grammars(out, context.engine().grammar_stats());
  write_tokens(out, context.tokens->stats());
  if (!context.parts.kv_events.empty()) write_kv_events(out, context.parts.kv_events);
  write_http_series(out, context);
  write_process(out);
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = out.take();
  exchange->respond(std::move(response));
}

}  // namespace rudder::server
