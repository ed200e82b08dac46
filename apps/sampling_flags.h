// Sampling options as command-line flags, for the commands that generate without HTTP.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/settings.h"
#include "rudder/engine/request.h"
#include "rudder/server/model.h"

namespace rudder::apps {

struct SamplingFlags {
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  int32_t top_k = 0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  int64_t seed = 0;
  int32_t max_tokens = 256;
  int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;

  void declare(SettingsTable& table);
  // Applies the model's own defaults (generation_config.json) to flags that `table` has not set.
  void take_defaults(const server::SamplingDefaults& defaults, const SettingsTable& table);
  engine::RequestParams params(std::vector<int32_t> prompt) const;
  // Adds to the body of a request each field that it does not have.
  void fill(boost::json::object* body) const;
  // Fields of a request: of those flags that `table` has set.
  boost::json::object given(const SettingsTable& table) const;
};

}  // namespace rudder::apps
