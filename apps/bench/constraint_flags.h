// The constraint that `rudder bench latency` and `throughput` put on every request, to measure the
// cost of constraints.
#pragma once

#include <memory>
#include <string>

#include "model_session.h"
#include "rudder/base/result.h"
#include "rudder/base/settings.h"
#include "rudder/constraint/constraint.h"

namespace rudder::apps {

struct ConstraintFlags {
  bool constrain = false;
  double mask_us = 0;
  std::string regex;

  void declare(SettingsTable& table);
  // Null unless asked for.
  Result<std::shared_ptr<const constraint::Constraint>> make(const ModelSession& session) const;
};

}  // namespace rudder::apps
