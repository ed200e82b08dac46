#include "rudder/server/admin/vllm_series.h"

#include <array>
#include <string>
#include <string_view>

#include "rudder/base/settings.h"

namespace rudder::server {
namespace {

using Stats = engine::EngineStats;

void write_cache_config(Exposition& out, const ServerContext& context, Replicas replicas) {
  struct Told {
    std::string_view label, setting;
  };
  constexpr std::array<Told, 4> kTold = {{{"cache_dtype", "kv-cache-dtype"},
                                          {"enable_prefix_caching", "enable-prefix-caching"},
                                          {"gpu_memory_utilization", "gpu-memory-utilization"},
                                          {"kv_offloading_size", "kv-host-gib"}}};
  std::string told;
  for (const Told& each : kTold) {
    const SettingsTable* const settings = context.parts.all_settings;
    const Setting* const setting = settings == nullptr ? nullptr : settings->find(each.setting);
    if (setting != nullptr) told += "," + label(each.label, setting->get());
  }
  out.begin("cache_config_info", "gauge", "The KV cache's shape and its flags, as labels.");
  for (size_t i = 0; i < replicas.size(); ++i) {
    const Stats& stats = replicas[i].stats;
    out.sample(engine_label(i) + "," + label("block_size", std::to_string(stats.block_size)) + "," +
                   label("num_gpu_blocks", std::to_string(stats.num_blocks)) + told,
               1);
  }
}

void write_sleep(Exposition& out, const ModelRest& rest, Replicas replicas) {
  const int32_t level = rest.state() == ModelRest::State::kAsleep ? rest.level() : 0;
  out.begin("engine_sleep_state", "gauge",
            "1 for the state that the engine is in: awake, asleep with its weights in host memory "
            "(weights_offloaded), or without any (discard_all).");
  constexpr std::array<std::string_view, 3> kStates = {"awake", "weights_offloaded", "discard_all"};
  for (size_t i = 0; i < replicas.size(); ++i) {
    for (size_t state = 0; state < kStates.size(); ++state) {
      out.sample(engine_label(i) + "," + label("sleep_state", kStates[state]),
                 static_cast<size_t>(level) == state ? 1 : 0);
    }
  }
}

void write_cached_by_source(const ByReplica& by, Exposition& out) {
  out.begin("prompt_tokens_cached_by_source_total", "counter",
            "Prompt tokens that a cache had, by where it was.");
  by.samples(label("source", "device"), [](const Stats& stats) {
    const engine::TierStats& tiers = stats.prefix.tiers;
    return stats.prefix.hits - tiers.host_hits - tiers.disk_hits;
  });
  by.samples(label("source", "host"),
             [](const Stats& stats) { return stats.prefix.tiers.host_hits; });
  by.samples(label("source", "disk"),
             [](const Stats& stats) { return stats.prefix.tiers.disk_hits; });
}

void write_older_names(const ByReplica& by) {
  by.gauge("gpu_cache_usage_perc", "kv_cache_usage_perc by its older name.",
           [](const Stats& stats) { return kv_usage(stats); });
  by.counter("gpu_prefix_cache_queries_total", "prefix_cache_queries_total by its older name.",
             [](const Stats& stats) { return stats.prefix.queries; });
  by.counter("gpu_prefix_cache_hits_total", "prefix_cache_hits_total by its older name.",
             [](const Stats& stats) { return stats.prefix.hits; });
  by.histogram("time_per_output_token_seconds",
               "Between tokens of a sequence: inter_token_latency_seconds by its older name.",
               &Stats::inter_token_latency);
  const auto none = [](const Stats&) { return 0; };
  by.gauge("num_requests_swapped", "None: what has to make room is computed again.", none);
  by.gauge("cpu_cache_usage_perc", "None: nothing is swapped to host memory.", none);
}

}  // namespace

void write_vllm_series(Exposition& out, const ServerContext& context, Replicas replicas) {
  const ByReplica by(out, replicas);
  write_cache_config(out, context, replicas);
  write_sleep(out, context.rest, replicas);
  write_cached_by_source(by, out);
  write_older_names(by);
}

}  // namespace rudder::server
