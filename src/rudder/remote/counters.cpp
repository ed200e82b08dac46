#include "rudder/remote/counters.h"

#include <boost/pfr/core.hpp>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace rudder::remote {
namespace {

template <typename T>
bool have_same(const T& one, const T& other) {
  if constexpr (std::is_same_v<T, engine::Histogram>) {
    return one.bounds == other.bounds && one.counts.size() == other.counts.size();
  } else {
    return true;
  }
}

template <size_t... I>
bool have_same_in(const engine::EngineStats& one, const engine::EngineStats& other,
                  std::index_sequence<I...> /*fields*/) {
  return (have_same(boost::pfr::get<I>(one), boost::pfr::get<I>(other)) && ...);
}

}  // namespace

bool have_same_buckets(const engine::EngineStats& all, const engine::EngineStats& other) {
  return have_same_in(all, other,
                      std::make_index_sequence<boost::pfr::tuple_size_v<engine::EngineStats>>());
}

void add_counters(engine::EngineStats& all, const engine::EngineStats& other) {
  const engine::EngineStats gauges = all;
  engine::add_stats(all, other);
  all.num_running = gauges.num_running;
  all.num_waiting = gauges.num_waiting;
  all.max_running = gauges.max_running;
  all.queued_tokens = gauges.queued_tokens;
  all.expected_wait_us = gauges.expected_wait_us;
  all.num_blocks = gauges.num_blocks;
  all.blocks_in_use = gauges.blocks_in_use;
  all.blocks_cached = gauges.blocks_cached;
  all.blocks_free = gauges.blocks_free;
  all.block_size = gauges.block_size;
  all.waiting_for_taps = gauges.waiting_for_taps;
  all.tap_rows = gauges.tap_rows;
  all.prefix.tiers.has_tiers = gauges.prefix.tiers.has_tiers;
  all.prefix.tiers.host_records = gauges.prefix.tiers.host_records;
  all.prefix.tiers.disk_records = gauges.prefix.tiers.disk_records;
  all.prefix.tiers.disk_bytes = gauges.prefix.tiers.disk_bytes;
}

}  // namespace rudder::remote
