#include "rudder/engine/stats.h"

#include <algorithm>
#include <boost/pfr/core.hpp>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::engine {
namespace {

Histogram with_bounds(std::vector<double> bounds) {
  Histogram histogram;
  histogram.counts.resize(bounds.size() + 1);
  histogram.bounds = std::move(bounds);
  return histogram;
}

// 1, 2, 5, 10, 20, 50, ... up to the largest that is not above `max`.
std::vector<double> one_two_five(int32_t max) {
  std::vector<double> bounds;
  for (int64_t decade = 1; decade <= max; decade *= 10) {
    for (const int64_t digit : {1, 2, 5}) {
      if (digit * decade <= max) bounds.push_back(static_cast<double>(digit * decade));
    }
  }
  return bounds;
}

template <typename T>
void add_number(T& all, T other) {
  all = static_cast<T>(all + other);
}

void add_histogram(Histogram& all, const Histogram& other) {
  RUDDER_CHECK(all.bounds == other.bounds, "histograms of different buckets");
  for (size_t i = 0; i < all.counts.size(); ++i) all.counts[i] += other.counts[i];
  all.sum += other.sum;
  all.count += other.count;
}

void add_list(std::vector<uint64_t>& all, const std::vector<uint64_t>& other) {
  all.resize(std::max(all.size(), other.size()));
  for (size_t i = 0; i < other.size(); ++i) all[i] += other[i];
}

// Every field, one added later included.
template <typename T>
void add_fields(T& all, const T& other) {
  if constexpr (std::is_arithmetic_v<T>) {
    add_number(all, other);
  } else if constexpr (std::is_same_v<T, Histogram>) {
    add_histogram(all, other);
  } else if constexpr (std::is_same_v<T, std::vector<uint64_t>>) {
    add_list(all, other);
  } else {
    [&]<size_t... I>(std::index_sequence<I...> /*fields*/) {
      (add_fields(boost::pfr::get<I>(all), boost::pfr::get<I>(other)), ...);
    }
    (std::make_index_sequence<boost::pfr::tuple_size_v<T>>());
  }
}

}  // namespace

void add_stats(EngineStats& all, const EngineStats& other) {
  const int32_t block_size = all.block_size;
  const int64_t wait_us = std::max(all.expected_wait_us, other.expected_wait_us);
  add_fields(all, other);
  all.block_size = block_size;
  all.expected_wait_us = wait_us;
}

void Histogram::observe(double value, uint64_t times) {
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
  counts[static_cast<size_t>(bucket)] += times;
  sum += value * static_cast<double>(times);
  count += times;
}

EngineStats make_engine_stats(int32_t max_seq_len) {
  EngineStats stats;
  stats.time_to_first_token =
      with_bounds({0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                   1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0});
  stats.inter_token_latency = with_bounds({0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                           0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0});
  const Histogram request_latency =
      with_bounds({0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                   30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0});
  stats.e2e_latency = request_latency;
  stats.queue_time = request_latency;
  stats.prefill_time = request_latency;
  stats.decode_time = request_latency;
  stats.inference_time = request_latency;
  stats.time_per_output_token = stats.inter_token_latency;
  stats.mask_time = with_bounds({0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025,
                                 0.005, 0.01, 0.025, 0.05, 0.1});
  stats.iteration_tokens =
      with_bounds({1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384});
  const Histogram length = with_bounds(one_two_five(max_seq_len));
  stats.request_prompt_tokens = length;
  stats.request_generation_tokens = length;
  stats.request_most_generation_tokens = length;
  stats.request_prefill_computed_tokens = length;
  stats.request_max_tokens = length;
  stats.request_n = with_bounds({1, 2, 5, 10, 20});
  return stats;
}

}  // namespace rudder::engine
