// The serving report: vLLM's table and JSON keys, from per-request timings.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::apps {

// One request as the client saw it. Times in seconds; a token's time is when its chunk arrived.
struct RequestTiming {
  double start = 0;  // since the bench began
  double ttft = 0;   // to the first chunk that carries a token
  double latency = 0;
  std::vector<double> itl;  // gaps between token chunks
  int32_t input_len = 0;
  int32_t output_len = 0;
  std::string error;  // empty when the request completed
};

struct ReportSettings {
  std::vector<double> percents;
  int32_t max_concurrency = 0;  // 0 = not limited
  double request_rate = 0;      // 0 = all at once
  double burstiness = 1;
  std::string model;
};

struct ServeReport {
  ReportSettings settings;
  double duration = 0;
  std::vector<RequestTiming> requests;

  std::string to_text() const;
  boost::json::object to_json() const;
  // Distribution of TTFT and ITL as one SVG picture.
  std::string to_svg() const;
};

Result<void> write_file(const std::string& path, const std::string& text);

}  // namespace rudder::apps
