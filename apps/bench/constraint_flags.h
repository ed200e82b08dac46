// The constraint that `rudder bench latency` and `throughput` put on every request, to measure the
// cost of constraints.
#pragma once

#include <string>
#include <vector>

#include "model_session.h"
#include "rudder/base/result.h"
#include "rudder/base/settings.h"
#include "rudder/constraint/constraint_spec.h"
#include "rudder/engine/forms.h"

namespace rudder::apps {

// Of every request of a run.
struct BenchConstraint {
  std::vector<constraint::ConstraintSpec> specs;
  engine::FormLease lease;  // while requests are submitted
};

struct ConstraintFlags {
  bool constrain = false;
  double mask_us = 0;
  std::string regex;

  void declare(SettingsTable& table);
  // For the session that the constraint is made in; empty unless one is asked for.
  GrammarFactory grammars() const;
  // Empty unless asked for. Waits for the compile.
  Result<BenchConstraint> make(const ModelSession& session) const;
};

}  // namespace rudder::apps
