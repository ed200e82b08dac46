// The sample macro-op of every CPU backend. Formulas and their order: step/sampling.h.
#pragma once

#include "rudder/ops/sample_args.h"

namespace rudder::cpu {

void sample_rows(const ops::SampleArgs& args);

}  // namespace rudder::cpu
