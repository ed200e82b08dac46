// GET /load: how many generation requests are in progress, as vLLM words it. GET /v1/loads: the
// scheduler's load, as SGLang's routers read it. POST /reset_prefix_cache: forgets every cached
// prefix that nobody uses.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <chrono>
#include <ctime>
#include <utility>
#include <vector>

#include "rudder/base/json.h"

#include "rudder/server/context.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/exchange.h"
#include "rudder/server/http/ignored_fields.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {

void handle_load(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.body = fmt::format("{{\"server_load\":{}}}", context.activity.count());
  exchange->respond(std::move(response));
}

namespace {

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[sizeof("2026-01-01T00:00:00Z")] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

double share(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

double usage_of(const engine::EngineStats& stats) {
  return share(stats.blocks_in_use, stats.num_blocks);
}

double utilization_of(const engine::EngineStats& stats) {
  return share(stats.num_running, stats.max_running);
}

boost::json::object load_of(size_t replica, const engine::EngineStats& stats, double rate) {
  return {{"dp_rank", replica},
          {"num_running_reqs", stats.num_running},
          {"num_waiting_reqs", stats.num_waiting},
          {"num_waiting_uncached_tokens", stats.queued_tokens},
          {"num_total_reqs", stats.num_running + stats.num_waiting},
          {"num_used_tokens", int64_t{stats.blocks_in_use} * stats.block_size},
          {"max_total_num_tokens", int64_t{stats.num_blocks} * stats.block_size},
          {"token_usage", usage_of(stats)},
          {"gen_throughput", rate},
          {"cache_hit_rate", share(static_cast<double>(stats.prefix.hits),
                                   static_cast<double>(stats.prefix.queries))},
          {"utilization", utilization_of(stats)},
          {"max_running_requests", stats.max_running}};
}

}  // namespace

void handle_loads(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const std::vector<engine::ReplicaState> replicas = context.engine().replicas();
  const int64_t now_us = context.clock.now_us();
  engine::EngineStats all = replicas.front().stats;
  double total_rate = 0;
  boost::json::array loads;
  for (size_t i = 0; i < replicas.size(); ++i) {
    const engine::EngineStats& stats = replicas[i].stats;
    if (i > 0) engine::add_stats(all, stats);
    const double rate = context.generation_rates[i].at(now_us, stats.generation_tokens);
    total_rate += rate;
    loads.push_back(load_of(i, stats, rate));
  }
  // Averages are over ranks, as in SGLang.
  const boost::json::object aggregate = {
      {"total_running_reqs", all.num_running},
      {"total_waiting_reqs", all.num_waiting},
      {"total_reqs", all.num_running + all.num_waiting},
      {"avg_token_usage", usage_of(all)},
      {"avg_throughput", total_rate / static_cast<double>(replicas.size())},
      {"avg_utilization", utilization_of(all)}};
  HttpResponse response;
  response.body = to_json_text(boost::json::object{{"timestamp", utc_now()},
                                                   {"version", context.parts.version},
                                                   {"dp_rank_count", replicas.size()},
                                                   {"loads", std::move(loads)},
                                                   {"aggregate", aggregate}});
  exchange->respond(std::move(response));
}

void handle_reset_prefix_cache(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const auto ignored = unread_fields(exchange->body.text);
  if (!ignored) return exchange->respond(error_response(ignored.error()));
  context.engine().reset_prefix_cache();
  HttpResponse response;
  response.body = "{\"status\":\"ok\"}";
  name_ignored_fields(*ignored, &response);
  exchange->respond(std::move(response));
}

}  // namespace rudder::server
