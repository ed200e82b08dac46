// RecentConfigs: the configs of requests that clamp features of dictionaries and do nothing else.
// Many requests clamp the same ones, and a program of theirs is megabytes of a dictionary's rows:
// those who ask again neither copy nor hash them. Where a request has vectors of its own, nothing
// equal comes again, so such a config is not kept. Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/config.h"
#include "rudder/steer/op_spec.h"

namespace rudder::steer {

class RecentConfigs {
 public:
  static constexpr size_t kMost = 16;

  // As Config::build: the config that is kept of equal ops, or a new one.
  Result<std::shared_ptr<const Config>> config_of(const std::shared_ptr<const Model>& model,
                                                  std::vector<OpSpec> specs);

 private:
  std::shared_ptr<const Config> find(const std::vector<OpSpec>& specs);
  void keep(std::shared_ptr<const Config> config);

  std::mutex mutex_;
  std::vector<std::shared_ptr<const Config>> configs_;  // the one that was asked for last behind
};

}  // namespace rudder::steer
