// Mean, deviation and percentiles of a list of samples, with numpy's default definitions.
#pragma once

#include <string>
#include <vector>

namespace rudder::apps {

struct Summary {
  double mean = 0;
  double median = 0;
  double deviation = 0;             // population
  std::vector<double> percentiles;  // as asked
};

// Linear interpolation between closest ranks; 0 for no samples. `percent` in [0, 100].
double percentile(const std::vector<double>& sorted, double percent);
Summary summarize(std::vector<double> samples, const std::vector<double>& percents);

// "50,90,99" -> {50, 90, 99}; what is not a number in [0, 100] is left out.
std::vector<double> parse_percents(const std::string& text);
// "p99", "p99.9": as vLLM's JSON keys spell it.
std::string percent_name(double percent);

}  // namespace rudder::apps
