#include "rudder/server/generation/request_log.h"

#include "rudder/base/log.h"

namespace rudder::server {

void log_request_end(const RequestEnd& end) {
  if (!log_enabled(LogLevel::kInfo)) return;
  const double total_ms = static_cast<double>(end.ended_us - end.received_us) / 1e3;
  const std::string ttft =
      end.first_token_us == 0
          ? "-"
          : fmt::format("{:.1f}", static_cast<double>(end.first_token_us - end.received_us) / 1e3);
  log_info("request {} {} {} {}: prompt {} (cached {}), completion {}, ttft {} ms, total {:.1f} ms",
           end.request_id, end.path, end.status, end.outcome, end.prompt_tokens, end.cached_tokens,
           end.completion_tokens, ttft, total_ms);
}

void log_request_start(std::string_view request_id, const GenerationRequest& request) {
  for (const Prompt& prompt : request.prompts) {
    const engine::RequestParams& params = prompt.request.params();
    const step::SamplingParams& sampling = params.sampling;
    log_info(
        "request {} accepted: prompt {} tokens, at most {} more, n {}, stream {}, temperature {}, "
        "top_p {}, top_k {}, min_p {}, stops {}, priority {}",
        request_id, params.prompt.size(),
        prompt.request.max_len() - static_cast<int64_t>(params.prompt.size()), params.n,
        request.answer.stream, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p,
        params.stop.size(), params.priority);
  }
}

void StatsLog::write(const engine::EngineStats& stats, double seconds_since_last) {
  const uint64_t prompt = stats.prompt_tokens - prompt_tokens_;
  const uint64_t generated = stats.generation_tokens - generation_tokens_;
  const uint64_t queries = stats.prefix.queries - prefix_queries_;
  const uint64_t hits = stats.prefix.hits - prefix_hits_;
  prompt_tokens_ = stats.prompt_tokens;
  generation_tokens_ = stats.generation_tokens;
  prefix_queries_ = stats.prefix.queries;
  prefix_hits_ = stats.prefix.hits;
  if (prompt + generated == 0 && stats.num_running + stats.num_waiting == 0) return;
  const double blocks = stats.num_blocks > 0 ? stats.num_blocks : 1;
  log_info(
      "prompt throughput: {:.1f} tokens/s, generation throughput: {:.1f} tokens/s, running: {}, "
      "waiting: {}, KV cache usage: {:.1f}%, prefix cache hit rate: {:.1f}%",
      static_cast<double>(prompt) / seconds_since_last,
      static_cast<double>(generated) / seconds_since_last, stats.num_running, stats.num_waiting,
      100.0 * stats.blocks_in_use / blocks,
      queries > 0 ? 100.0 * static_cast<double>(hits) / static_cast<double>(queries) : 0.0);
}

}  // namespace rudder::server
