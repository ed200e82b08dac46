#include "report/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace rudder::apps {

double percentile(const std::vector<double>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double rank = percent / 100.0 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Summary summarize(std::vector<double> samples, const std::vector<double>& percents) {
  Summary summary;
  std::sort(samples.begin(), samples.end());
  if (!samples.empty()) {
    const auto count = static_cast<double>(samples.size());
    summary.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count;
    double squares = 0;
    for (const double sample : samples)
      squares += (sample - summary.mean) * (sample - summary.mean);
    summary.deviation = std::sqrt(squares / count);
  }
  summary.median = percentile(samples, 50);
  for (const double percent : percents) summary.percentiles.push_back(percentile(samples, percent));
  return summary;
}

std::vector<double> parse_percents(const std::string& text) {
  std::vector<double> percents;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    double value = 0;
    const auto [rest, ec] = std::from_chars(at, end, value);
    if (ec == std::errc() && value >= 0 && value <= 100) percents.push_back(value);
    at = std::find(rest, end, ',');
    if (at < end) ++at;
  }
  return percents;
}

std::string percent_name(double percent) {
  return fmt::format("p{:g}", percent);
}

}  // namespace rudder::apps
