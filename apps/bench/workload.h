// Workload: prompts and output lengths for a bench, made from a seed. Token ids are random but
// never special ones, so that any model of the same vocabulary does the same work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/settings.h"
#include "rudder/text/tokenizer.h"

namespace rudder::apps {

struct WorkloadSettings {
  std::string dataset_name = "random";
  int32_t num_prompts = 100;
  int32_t random_input_len = 128;
  int32_t random_output_len = 128;
  double random_range_ratio = 0;  // lengths uniform in [len * (1 - r), len * (1 + r)]
  int32_t random_prefix_len = 0;  // the same tokens in front of every prompt
  int64_t seed = 0;

  void declare(SettingsTable& table);
};

struct WorkItem {
  std::vector<int32_t> prompt;
  int32_t output_len = 0;
};

// `max_len` bounds prompt and output together. "sharegpt-like" draws log-normal lengths with the
// means and medians of the ShareGPT conversations that vLLM's benches use (prompt mean 215, output
// mean 200, long tails, both at least 4).
std::vector<WorkItem> make_workload(const WorkloadSettings& settings,
                                    const text::Tokenizer& tokenizer, int32_t max_len);

}  // namespace rudder::apps
