// LoadClient: drives an OpenAI-compatible server with streaming completions and times every chunk.
// One thread, one event loop, a connection a request in flight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/workload.h"
#include "report/report.h"
#include "rudder/base/progress.h"
#include "rudder/base/result.h"

namespace rudder::apps {

struct LoadTarget {
  std::string host = "127.0.0.1";
  std::string port = "8000";
  std::string api_key;
  std::string model;
  bool ignore_eos = true;
  double temperature = 0;
  bool text_prompts = false;  // send text, not token ids: for servers that take no ids
};

struct LoadShape {
  int32_t max_concurrency = 0;  // 0 = not limited
  double request_rate = 0;      // requests a second; 0 = all at once
  double burstiness = 1;        // 1 = Poisson arrivals; gamma-distributed gaps otherwise
  uint64_t seed = 0;
};

// "http://host:port" with nothing behind it but an optional slash.
Result<void> parse_base_url(const std::string& url, LoadTarget* target);

// The first model the server lists.
Result<std::string> first_model(const LoadTarget& target);

// The body of one streaming completions request.
std::string completion_body(const LoadTarget& target, const WorkItem& item,
                            const std::string& prompt_text);

// Runs every body; timings in the order of `bodies`. A request that fails has its error set.
std::vector<RequestTiming> run_load(const LoadTarget& target, const LoadShape& shape,
                                    const std::vector<std::string>& bodies,
                                    const ProgressFn& progress, double* duration);

}  // namespace rudder::apps
