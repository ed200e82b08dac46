// GET /metrics: the engine's snapshot and the HTTP side's counters under vLLM's names. Asks nobody
// and waits for nothing.
#include <fmt/format.h>

#include "rudder/base/log.h"
#include "rudder/server/admin/exposition.h"
#include "rudder/server/admin/process_stats.h"
#include "rudder/server/context.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/exchange.h"

namespace rudder::server {
namespace {

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

void write_gauges(Exposition& out, const engine::EngineStats& stats) {
  out.gauge("num_requests_running", "Sequences in the running batch.", stats.num_running);
  out.gauge("num_requests_waiting", "Sequences waiting to be scheduled.", stats.num_waiting);
  out.gauge("num_queued_tokens", "Prompt tokens of what waits.",
            static_cast<double>(stats.queued_tokens));
  out.gauge("expected_queue_seconds",
            "How long what waits takes to begin, as it was served lately.",
            static_cast<double>(stats.expected_wait_us) * 1e-6);
  out.gauge("kv_cache_usage_perc", "KV blocks in use, 1 is all of them.",
            ratio(stats.blocks_in_use, stats.num_blocks));
  out.begin("kv_blocks", "gauge", "KV blocks by state; their sum is num_gpu_blocks.");
  out.sample(label("state", "in_use"), stats.blocks_in_use);
  out.sample(label("state", "cached"), stats.blocks_cached);
  out.sample(label("state", "free"), stats.blocks_free);
}

void write_counters(Exposition& out, const engine::EngineStats& stats) {
  const auto counter = [&](std::string_view name, std::string_view help, uint64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  counter("engine_steps_total", "Steps the engine has run.", stats.steps);
  counter("engine_iterations_total", "Iterations of the steps that the engine has run.",
          stats.iterations);
  counter("engine_graph_steps_total",
          "Steps replayed from a captured graph; the others ran op by op.", stats.graph_steps);
  counter("num_preemptions_total", "Sequences put back to make room.", stats.preemptions);
  counter("prompt_tokens_total", "Prompt tokens processed.", stats.prompt_tokens);
  counter("prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
          stats.prompt_tokens_cached);
  counter("generation_tokens_total", "Tokens generated.", stats.generation_tokens);
  counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
          stats.prefix_queries);
  counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", stats.prefix_hits);
  counter("requests_rejected_total",
          "Requests refused because the queue was full or they would have waited for too long.",
          stats.rejected);
  counter("requests_displaced_total", "Waiting requests ended for one of higher priority.",
          stats.displaced);
  counter("requests_expired_total", "Waiting requests ended at their deadlines.", stats.expired);
  counter("late_results_total", "Results computed for a sequence that had ended.",
          stats.late_results);
  counter("constrained_steps_total", "Steps with rows that were sampled under a mask.",
          stats.constrained_steps);
  counter("constrained_sequences_total", "Sequences of steps that were sampled under a mask.",
          stats.constrained_sequences);
  out.begin("request_success_total", "counter", "Finished sequences by reason.");
  const auto finished = [&](std::string_view reason, uint64_t value) {
    out.sample(label("finished_reason", reason), static_cast<double>(value));
  };
  finished("stop", stats.finished_stop);
  finished("length", stats.finished_length);
  finished("abort", stats.finished_cancelled);
  finished("error", stats.finished_error);
}

// By vLLM's names; nothing where the server does not speculate.
void write_speculation(Exposition& out, const engine::EngineStats& stats) {
  if (stats.accepted_by_position.empty()) return;
  const auto counter = [&](std::string_view name, std::string_view help, uint64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  counter("spec_decode_num_drafts_total", "Drafts that steps verified, one a sequence and step.",
          stats.drafts);
  counter("spec_decode_num_draft_tokens_total", "Tokens of those.", stats.draft_tokens);
  counter("spec_decode_num_accepted_tokens_total", "Of those tokens, the ones that were right.",
          stats.accepted_tokens);
  out.begin("spec_decode_num_accepted_tokens_per_pos_total", "counter",
            "Tokens that were right, by their place in the draft.");
  for (size_t i = 0; i < stats.accepted_by_position.size(); ++i) {
    out.sample(label("position", fmt::format("{}", i)),
               static_cast<double>(stats.accepted_by_position[i]));
  }
}

void write_histograms(Exposition& out, const engine::EngineStats& stats) {
  out.histogram("time_to_first_token_seconds", "From arrival to the first token.",
                stats.time_to_first_token);
  out.histogram("inter_token_latency_seconds", "Between tokens of a sequence.",
                stats.inter_token_latency);
  out.histogram("e2e_request_latency_seconds", "From arrival to the last token.",
                stats.e2e_latency);
  out.histogram("request_queue_time_seconds", "Waiting before the first step.", stats.queue_time);
  out.histogram("request_prefill_time_seconds", "From the first step to the first token.",
                stats.prefill_time);
  out.histogram("request_decode_time_seconds", "From the first to the last token.",
                stats.decode_time);
  out.histogram("mask_seconds", "Writing the masks of a constrained step, as the model runs it.",
                stats.mask_time);
  out.histogram("iteration_tokens_total", "Tokens of a step.", stats.iteration_tokens);
  out.histogram("request_prompt_tokens", "Prompt tokens of a request.",
                stats.request_prompt_tokens);
  out.histogram("request_generation_tokens", "Tokens generated for a request.",
                stats.request_generation_tokens);
  out.histogram("request_params_max_tokens", "max_tokens of a request.", stats.request_max_tokens);
  out.histogram("request_params_n", "Choices of a request.", stats.request_n);
}

void write_steering(Exposition& out, const engine::EngineStats& stats) {
  const steer::RowTable::Stats& rows = stats.tap_rows;
  out.begin("steering_rows", "gauge",
            "Rows of the steering table by state; pinned ones that no "
            "request uses are cached.");
  out.sample(label("state", "in_use"), rows.held);
  out.sample(label("state", "cached"), rows.cached);
  out.sample(label("state", "free"), rows.rows - rows.held - rows.cached);
  out.gauge("steering_pinned_programs", "Programs of registered modules and global steering.",
            rows.pinned);
  out.gauge("steering_pinned_resident", "Of those, on the device.", rows.pinned_resident);
  out.gauge("steering_vector_bytes", "Bytes of the vectors on the device.",
            static_cast<double>(rows.floats_used) * sizeof(float));
  out.gauge("steering_requests_waiting", "Requests that wait for rows or for a capture set.",
            stats.waiting_for_taps);
  const auto counter = [&](std::string_view name, std::string_view help, int64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  counter("steering_hits_total", "Programs that a request found on the device.", rows.hits);
  counter("steering_uploads_total", "Programs uploaded.", rows.uploads);
  counter("steering_upload_bytes_total", "Bytes of those.", rows.upload_bytes);
  counter("steering_evictions_total", "Programs that made room for others.", rows.evictions);
  counter("steering_clipped_samples_total",
          "Samples of prompts' scores beyond 2^18 in magnitude, which were clipped to it.",
          static_cast<int64_t>(stats.clipped_samples));
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
  counter("grammar_mask_lookups_total", "Places of outputs that masks were looked up for.",
          stats.masks.lookups);
  counter("grammar_mask_hits_total", "Of those, where the mask of an equal place was known.",
          stats.masks.hits);
  out.gauge("grammar_mask_bytes", "Bytes of the masks that are kept.",
            static_cast<double>(stats.masks.bytes));
}

void write_http(Exposition& out, const ServerContext& context) {
  const HttpCounters& http = context.counters;
  out.begin("http_requests_total", "counter", "Answered HTTP requests by route and status class.");
  const auto write_row = [&](std::string_view method, std::string_view path, size_t row) {
    for (size_t i = 0; i < http.responses[row].size(); ++i) {
      const uint64_t count = http.responses[row][i].load(std::memory_order_relaxed);
      if (count == 0) continue;
      out.sample(label("method", method) + "," + label("handler", path) + "," +
                     label("status", fmt::format("{}xx", i + 1)),
                 static_cast<double>(count));
    }
  };
  for (size_t row = 0; row < routes().size(); ++row) {
    write_row(routes()[row].method, routes()[row].path, row);
  }
  write_row("other", "other", kMaxRoutes);
  const auto load = [](const auto& counter) {
    return static_cast<double>(counter.load(std::memory_order_relaxed));
  };
  out.counter("http_connections_total", "Accepted connections.", load(http.connections_accepted));
  out.counter("http_connections_refused_total", "Connections for which there was no place.",
              load(http.connections_refused));
  out.gauge("http_connections_open", "Open connections.", load(http.connections_open));
  out.gauge("http_generations_open", "Generation requests in progress.",
            static_cast<double>(context.activity.count()));
  out.gauge("http_body_bytes", "Bytes of request bodies held.", load(*context.body_bytes));
  out.gauge("http_output_bytes", "Bytes of answers held, stored responses among them.",
            load(*context.output_bytes));
  out.counter("log_lines_dropped_total", "Log lines that nobody read in time.",
              static_cast<double>(log_lines_dropped()));
  out.counter("http_client_disconnects_total",
              "Clients that went before their answer was complete.", load(http.client_disconnects));
  out.counter("http_slow_readers_total", "Requests cancelled because the client did not read.",
              load(http.slow_readers));
  out.counter("http_malformed_requests_total", "Requests the HTTP parser refused.",
              load(http.malformed_requests));
}

void write_tokens(Exposition& out, const TokenCache::Stats& stats) {
  out.counter("token_cache_queries_total", "Prompts looked up among those tokenised lately.",
              static_cast<double>(stats.queries));
  out.counter("token_cache_hits_total", "Prompts found among those tokenised lately.",
              static_cast<double>(stats.hits));
  out.gauge("token_cache_bytes", "Bytes of the ids of prompts tokenised lately.",
            static_cast<double>(stats.bytes));
}

void write_kv_events(Exposition& out, const fleet::PublisherStats& stats) {
  const auto counter = [&](std::string_view name, std::string_view help, uint64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  out.gauge("kv_event_subscribers", "Subscribers to KV events, by their topic.",
            static_cast<double>(stats.subscribers));
  counter("kv_event_batches_total", "Batches of KV events published, empty ones included.",
          stats.batches);
  counter("kv_event_batches_dropped_total", "Batches of KV events that found the queue full.",
          stats.dropped);
  out.begin("kv_event_blocks_total", "counter",
            "KV blocks of which an event tells, or that are withheld for their salt or steering.");
  out.sample(label("event", "stored"), static_cast<double>(stats.stored));
  out.sample(label("event", "removed"), static_cast<double>(stats.removed));
  out.sample(label("event", "withheld"), static_cast<double>(stats.withheld));
  counter("kv_event_clears_total", "Times that KV events told of an empty cache.", stats.cleared);
  counter("kv_event_replays_total", "Replays of KV events that subscribers asked for.",
          stats.replays);
  counter("kv_event_batches_replayed_total", "Batches of KV events that were sent again.",
          stats.replayed);
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

}  // namespace

void handle_metrics(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const engine::EngineStats stats = context.engine().stats();
  Exposition out(context.settings.metrics_prefix, label("model_name", context.model().ids.front()));
  write_gauges(out, stats);
  write_counters(out, stats);
  write_speculation(out, stats);
  write_histograms(out, stats);
  out.begin("cache_config_info", "gauge", "The KV cache's shape, as labels.");
  out.sample(label("block_size", std::to_string(stats.block_size)) + "," +
                 label("num_gpu_blocks", std::to_string(stats.num_blocks)) + "," +
                 label("cache_dtype", context.model().dtype),
             1);
  if (context.parts.steering != nullptr) write_steering(out, stats);
  if (auto* captures = context.engine().captures()) write_captures(out, captures->stats());
  write_grammars(out, context.engine().grammar_stats());
  write_tokens(out, context.tokens->stats());
  if (context.parts.kv_events != nullptr) write_kv_events(out, context.parts.kv_events->stats());
  write_http(out, context);
  write_process(out);
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = out.take();
  exchange->respond(std::move(response));
}

}  // namespace rudder::server
