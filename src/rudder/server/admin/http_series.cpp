#include "rudder/server/admin/http_series.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "rudder/base/log.h"

namespace rudder::server {
namespace {

constexpr double kMicro = 1e-6;

// The rows of the counters: of each route, and behind them of what matched none.
size_t counter_row(size_t row) {
  return row < routes().size() ? row : kMaxRoutes;
}

std::string row_labels(size_t row) {
  const bool is_route = row < routes().size();
  return label("method", is_route ? routes()[row].method : "other") + "," +
         label("handler", is_route ? routes()[row].path : "other");
}

void write_requests(Exposition& out, const HttpCounters& http, size_t row) {
  const auto& responses = http.responses[counter_row(row)];
  for (size_t i = 0; i < responses.size(); ++i) {
    const uint64_t count = responses[i].load(std::memory_order_relaxed);
    if (count == 0) continue;
    out.sample(row_labels(row) + "," + label("status", fmt::format("{}xx", i + 1)),
               static_cast<double>(count));
  }
}

// What asks how the server is, rather than for something.
bool is_probe(size_t row) {
  if (row >= routes().size()) return false;
  constexpr std::array<std::string_view, 4> kScraped = {"/metrics", "/load", "/v1/loads",
                                                        "/server_info"};
  const Route& route = routes()[row];
  return route.access == Access::kPublic ||
         std::find(kScraped.begin(), kScraped.end(), route.path) != kScraped.end();
}

void write_shared(Exposition& out, const HttpCounters& http) {
  out.begin_shared("http_requests_total", "counter",
                   "Answered HTTP requests by route and status class, without probes.");
  for (size_t row = 0; row <= routes().size(); ++row) {
    if (!is_probe(row)) write_requests(out, http, row);
  }
  out.begin_shared("http_request_duration_seconds", "histogram",
                   "From a request's header to the end of its answer, streams included.");
  for (size_t row = 0; row <= routes().size(); ++row) {
    if (is_probe(row)) continue;
    const HttpCounters::Durations& durations = http.durations[counter_row(row)];
    engine::Histogram histogram;
    histogram.bounds.assign(kDurationBounds.begin(), kDurationBounds.end());
    for (const auto& count : durations.counts) {
      histogram.counts.push_back(count.load(std::memory_order_relaxed));
      histogram.count += histogram.counts.back();
    }
    histogram.sum = static_cast<double>(durations.sum_us.load(std::memory_order_relaxed)) * kMicro;
    if (histogram.count > 0) out.buckets(row_labels(row), histogram);
  }
}

void write_own(Exposition& out, const ServerContext& context) {
  const HttpCounters& http = context.counters;
  out.begin("http_requests_total", "counter", "Answered HTTP requests by route and status class.");
  for (size_t row = 0; row <= routes().size(); ++row) write_requests(out, http, row);
  const auto load = [](const auto& counter) {
    return static_cast<double>(counter.load(std::memory_order_relaxed));
  };
  out.counter("http_connections_total", "Accepted connections.", load(http.connections_accepted));
  out.counter("http_connections_refused_total",
              "Connections that were refused because too many were open.",
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

}  // namespace

void write_http_series(Exposition& out, const ServerContext& context) {
  write_own(out, context);
  write_shared(out, context.counters);
}

}  // namespace rudder::server
