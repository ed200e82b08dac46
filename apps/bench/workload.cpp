#include "bench/workload.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "rudder/base/philox.h"

namespace rudder::apps {
namespace {

enum Stream : uint64_t { kInputLength = 1, kOutputLength, kTokens, kPrefix };

double uniform(const WorkloadSettings& settings, Stream stream, uint64_t index) {
  return philox_uniform(static_cast<uint64_t>(settings.seed), index, stream);
}

// Log-normal with the given mean and median, by Box-Muller.
double log_normal(const WorkloadSettings& settings, Stream stream, uint64_t index, double mean,
                  double median) {
  const double u1 = 1.0 - uniform(settings, stream, 2 * index);
  const double u2 = uniform(settings, stream, 2 * index + 1);
  const double normal = std::sqrt(-2.0 * std::log(u1)) * std::cos(2.0 * std::numbers::pi * u2);
  const double sigma = std::sqrt(2.0 * std::log(mean / median));
  return std::exp(std::log(median) + sigma * normal);
}

int32_t draw_length(const WorkloadSettings& settings, Stream stream, uint64_t index,
                    int32_t fixed) {
  if (settings.dataset_name == "sharegpt-like") {
    const bool input = stream == kInputLength;
    const double drawn =
        log_normal(settings, stream, index, input ? 215.0 : 200.0, input ? 90.0 : 135.0);
    return static_cast<int32_t>(std::clamp(drawn, 4.0, 1024.0));
  }
  const double spread =
      settings.random_range_ratio * (2.0 * uniform(settings, stream, index) - 1.0);
  return std::max(1, static_cast<int32_t>(std::lround(fixed * (1.0 + spread))));
}

std::vector<int32_t> ordinary_ids(const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id) && !tokenizer.token_bytes(id).empty()) ids.push_back(id);
  }
  return ids;
}

}  // namespace

void WorkloadSettings::declare(SettingsTable& table) {
  table.section("workload");
  table.add_choice("dataset-name", &dataset_name, {"random", "sharegpt-like"},
                   "How lengths are drawn.");
  table.add("num-prompts", &num_prompts, 1, 1 << 24, "Requests in all.");
  table.add("random-input-len", &random_input_len, 1, 1 << 24, "Prompt tokens.");
  table.add("random-output-len", &random_output_len, 1, 1 << 24, "Output tokens.");
  table.add("random-range-ratio", &random_range_ratio, 0, 1, "Lengths vary by this share.");
  table.add("random-prefix-len", &random_prefix_len, 0, 1 << 24,
            "Tokens that every prompt begins with, on top of its own.");
  table.add("seed", &seed, 0, INT64_MAX, "The same seed draws the same workload.");
}

std::vector<WorkItem> make_workload(const WorkloadSettings& settings,
                                    const text::Tokenizer& tokenizer, int32_t max_len) {
  const std::vector<int32_t> ids = ordinary_ids(tokenizer);
  const auto token = [&](Stream stream, uint64_t index) {
    return ids[static_cast<size_t>(uniform(settings, stream, index) *
                                   static_cast<double>(ids.size()))];
  };
  std::vector<WorkItem> items(static_cast<size_t>(settings.num_prompts));
  uint64_t next_token = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    WorkItem& item = items[i];
    const int32_t input = settings.random_prefix_len +
                          draw_length(settings, kInputLength, i, settings.random_input_len);
    item.output_len = draw_length(settings, kOutputLength, i, settings.random_output_len);
    item.output_len = std::min(item.output_len, std::max(1, max_len - 1));
    item.prompt.resize(static_cast<size_t>(std::clamp(input, 1, max_len - item.output_len)));
    for (size_t t = 0; t < item.prompt.size(); ++t) {
      const bool prefix = t < static_cast<size_t>(settings.random_prefix_len);
      item.prompt[t] = prefix ? token(kPrefix, t) : token(kTokens, next_token++);
    }
  }
  return items;
}

}  // namespace rudder::apps
