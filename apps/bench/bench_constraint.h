// The constraint that `rudder bench latency` and `throughput` put on every request to measure what
// constraints cost: it allows every token, so that the tokens are those of the run without it.
#pragma once

#include <cstdint>
#include <memory>

#include "rudder/base/settings.h"
#include "rudder/constraint/constraint.h"

namespace rudder::apps {

struct BenchConstraintSettings {
  bool constrain = false;
  double mask_us = 0;

  void declare(SettingsTable& table);
  // Null unless asked for.
  std::shared_ptr<const constraint::Constraint> make() const;
};

}  // namespace rudder::apps
