#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <numeric>

#include "report/statistics.h"
#include "report/svg_plot.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

struct Metric {
  std::string key;    // "ttft"
  std::string title;  // "Time to First Token"
  std::vector<double> milliseconds;
};

struct Totals {
  int64_t completed = 0;
  int64_t input = 0;
  int64_t output = 0;
};

Totals totals_of(const ServeReport& report) {
  Totals totals;
  for (const RequestTiming& request : report.requests) {
    if (!request.error.empty()) continue;
    ++totals.completed;
    totals.input += request.input_len;
    totals.output += request.output_len;
  }
  return totals;
}

std::vector<Metric> metrics_of(const ServeReport& report) {
  Metric ttft{"ttft", "Time to First Token", {}};
  Metric tpot{"tpot", "Time per Output Token (excl. 1st token)", {}};
  Metric itl{"itl", "Inter-token Latency", {}};
  Metric e2el{"e2el", "End-to-end Latency", {}};
  for (const RequestTiming& request : report.requests) {
    if (!request.error.empty()) continue;
    ttft.milliseconds.push_back(request.ttft * 1e3);
    e2el.milliseconds.push_back(request.latency * 1e3);
    if (request.output_len > 1) {
      tpot.milliseconds.push_back((request.latency - request.ttft) / (request.output_len - 1) *
                                  1e3);
    }
    for (const double gap : request.itl) itl.milliseconds.push_back(gap * 1e3);
  }
  return {std::move(ttft), std::move(tpot), std::move(itl), std::move(e2el)};
}

// The most requests that were open at one time.
int64_t peak_concurrency(const ServeReport& report) {
  std::vector<std::pair<double, int>> edges;
  for (const RequestTiming& request : report.requests) {
    edges.emplace_back(request.start, 1);
    edges.emplace_back(request.start + request.latency, -1);
  }
  std::sort(edges.begin(), edges.end());
  int64_t open = 0;
  int64_t peak = 0;
  for (const auto& [time, change] : edges) peak = std::max(peak, open += change);
  return peak;
}

std::string rate_text(double rate) {
  return rate > 0 ? fmt::format("{:.2f}", rate) : "inf";
}

}  // namespace

std::string ServeReport::to_text() const {
  const Totals totals = totals_of(*this);
  const double seconds = std::max(duration, 1e-9);
  std::string text = fmt::format("{:=^60}\n", " Serving Benchmark Result ");
  const auto row = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<45}{:>15}\n", name, value);
  };
  const auto number = [](double value) { return fmt::format("{:.2f}", value); };
  row("Successful requests:", std::to_string(totals.completed));
  row("Failed requests:", std::to_string(static_cast<int64_t>(requests.size()) - totals.completed));
  if (settings.max_concurrency > 0) {
    row("Maximum request concurrency:", std::to_string(settings.max_concurrency));
  }
  row("Request rate configured (RPS):", rate_text(settings.request_rate));
  row("Benchmark duration (s):", number(duration));
  row("Total input tokens:", std::to_string(totals.input));
  row("Total generated tokens:", std::to_string(totals.output));
  row("Request throughput (req/s):", number(static_cast<double>(totals.completed) / seconds));
  row("Output token throughput (tok/s):", number(static_cast<double>(totals.output) / seconds));
  row("Peak concurrent requests:", std::to_string(peak_concurrency(*this)));
  row("Total token throughput (tok/s):",
      number(static_cast<double>(totals.input + totals.output) / seconds));
  for (const Metric& metric : metrics_of(*this)) {
    const Summary summary = summarize(metric.milliseconds, settings.percents);
    std::string upper = metric.key;
    std::transform(upper.begin(), upper.end(), upper.begin(), ::toupper);
    text += fmt::format("{:-^60}\n", metric.title);
    row(fmt::format("Mean {} (ms):", upper), number(summary.mean));
    row(fmt::format("Median {} (ms):", upper), number(summary.median));
    for (size_t i = 0; i < settings.percents.size(); ++i) {
      std::string name = percent_name(settings.percents[i]);
      name[0] = 'P';
      row(fmt::format("{} {} (ms):", name, upper), number(summary.percentiles[i]));
    }
  }
  return text + std::string(60, '=') + "\n";
}

json::object ServeReport::to_json() const {
  const Totals totals = totals_of(*this);
  const double seconds = std::max(duration, 1e-9);
  json::object out;
  out["endpoint_type"] = "openai";
  out["model_id"] = settings.model;
  out["num_prompts"] = requests.size();
  out["request_rate"] = settings.request_rate > 0 ? json::value(settings.request_rate) : "inf";
  out["burstiness"] = settings.burstiness;
  out["max_concurrency"] =
      settings.max_concurrency > 0 ? json::value(settings.max_concurrency) : nullptr;
  out["duration"] = duration;
  out["completed"] = totals.completed;
  out["failed"] = static_cast<int64_t>(requests.size()) - totals.completed;
  out["total_input_tokens"] = totals.input;
  out["total_output_tokens"] = totals.output;
  out["request_throughput"] = static_cast<double>(totals.completed) / seconds;
  out["output_throughput"] = static_cast<double>(totals.output) / seconds;
  out["total_token_throughput"] = static_cast<double>(totals.input + totals.output) / seconds;
  out["max_concurrent_requests"] = peak_concurrency(*this);
  json::array input_lens, output_lens, ttfts, itls, start_times, errors;
  for (const RequestTiming& request : requests) {
    input_lens.push_back(request.input_len);
    output_lens.push_back(request.output_len);
    ttfts.push_back(request.ttft);
    itls.push_back(json::value_from(request.itl));
    start_times.push_back(request.start);
    errors.push_back(json::value(request.error));
  }
  out["input_lens"] = std::move(input_lens);
  out["output_lens"] = std::move(output_lens);
  out["ttfts"] = std::move(ttfts);
  out["itls"] = std::move(itls);
  out["start_times"] = std::move(start_times);
  out["errors"] = std::move(errors);
  for (const Metric& metric : metrics_of(*this)) {
    const Summary summary = summarize(metric.milliseconds, settings.percents);
    out["mean_" + metric.key + "_ms"] = summary.mean;
    out["median_" + metric.key + "_ms"] = summary.median;
    out["std_" + metric.key + "_ms"] = summary.deviation;
    for (size_t i = 0; i < settings.percents.size(); ++i) {
      out[percent_name(settings.percents[i]) + "_" + metric.key + "_ms"] = summary.percentiles[i];
    }
  }
  return out;
}

std::string ServeReport::to_svg() const {
  std::vector<PlotLine> lines;
  for (Metric& metric : metrics_of(*this)) {
    if (metric.key != "ttft" && metric.key != "itl") continue;
    std::sort(metric.milliseconds.begin(), metric.milliseconds.end());
    PlotLine line{metric.title, {}};
    for (int percent = 0; percent <= 100; ++percent) {
      line.points.emplace_back(percentile(metric.milliseconds, percent), percent);
    }
    lines.push_back(std::move(line));
  }
  return svg_plot({.title = fmt::format("{}: latency distribution", settings.model),
                   .x_label = "milliseconds",
                   .y_label = "percent of samples",
                   .log_x = true},
                  lines);
}

Result<void> write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.flush();
  if (!file) return fail(ErrorCode::kIo, "cannot be written", path);
  return {};
}

}  // namespace rudder::apps
