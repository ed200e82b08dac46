#include "sampling_flags.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <utility>

namespace rudder::apps {

void SamplingFlags::declare(SettingsTable& table) {
  table.section("sampling");
  table.add("temperature", &temperature, 0, 2, "Divides the logits; 0 is greedy.");
  table.add("top-p", &top_p, 0, 1, "Keep the most likely tokens up to this probability.");
  table.add("min-p", &min_p, 0, 1, "Drop tokens below this share of the most likely one.");
  table.add("top-k", &top_k, 0, INT32_MAX, "Keep this many tokens; 0 keeps all.");
  table.add("repetition-penalty", &repetition_penalty, 0, 2, "On prompt and output; 1 is off.");
  table.add("presence-penalty", &presence_penalty, -2, 2, "On tokens in the output.");
  table.add("frequency-penalty", &frequency_penalty, -2, 2, "On tokens by count in the output.");
  table.add("seed", &seed, 0, INT64_MAX, "The same seed gives the same tokens.");
  table.add("max-tokens", &max_tokens, 1, INT32_MAX, "Output tokens at most.");
  table.add("min-tokens", &min_tokens, 0, INT32_MAX, "Output tokens at least.");
  table.add("ignore-eos", &ignore_eos, "Go on past the end-of-sequence token.");
  table.add("stop", &stop, "Ends the output at this text; may be repeated.");
}

void SamplingFlags::take_defaults(const server::SamplingDefaults& defaults,
                                  const SettingsTable& table) {
  if (!table.is_set("temperature")) temperature = defaults.temperature.value_or(temperature);
  if (!table.is_set("top-p")) top_p = defaults.top_p.value_or(top_p);
  if (!table.is_set("min-p")) min_p = defaults.min_p.value_or(min_p);
  if (!table.is_set("top-k")) top_k = static_cast<int32_t>(defaults.top_k.value_or(top_k));
  if (!table.is_set("repetition-penalty")) {
    repetition_penalty = defaults.repetition_penalty.value_or(repetition_penalty);
  }
}

engine::RequestParams SamplingFlags::params(std::vector<int32_t> prompt) const {
  engine::RequestParams params;
  params.prompt = std::move(prompt);
  params.sampling.temperature = static_cast<float>(temperature);
  params.sampling.top_p = static_cast<float>(top_p);
  params.sampling.min_p = static_cast<float>(min_p);
  params.sampling.top_k = top_k;
  params.sampling.repetition_penalty = static_cast<float>(repetition_penalty);
  params.sampling.presence_penalty = static_cast<float>(presence_penalty);
  params.sampling.frequency_penalty = static_cast<float>(frequency_penalty);
  params.sampling.min_tokens = min_tokens;
  params.seed = static_cast<uint64_t>(seed);
  params.max_tokens = max_tokens;
  params.ignore_eos = ignore_eos;
  params.stop = stop;
  return params;
}

void SamplingFlags::fill(boost::json::object* body) const {
  const auto add = [&](const char* name, boost::json::value value) {
    const boost::json::value* given = body->if_contains(name);
    if (given == nullptr || given->is_null()) (*body)[name] = std::move(value);
  };
  add("temperature", temperature);
  add("top_p", top_p);
  add("min_p", min_p);
  add("top_k", top_k);
  add("repetition_penalty", repetition_penalty);
  add("presence_penalty", presence_penalty);
  add("frequency_penalty", frequency_penalty);
  add("seed", seed);
  if (!body->contains("max_completion_tokens")) add("max_tokens", max_tokens);
  add("min_tokens", min_tokens);
  add("ignore_eos", ignore_eos);
  if (!stop.empty()) add("stop", boost::json::value_from(stop));
}

boost::json::object SamplingFlags::given(const SettingsTable& table) const {
  boost::json::object all;
  fill(&all);
  boost::json::object given;
  for (const auto& [name, value] : all) {
    std::string flag(name);
    std::ranges::replace(flag, '_', '-');
    if (table.is_set(flag)) given[name] = value;
  }
  return given;
}

}  // namespace rudder::apps
