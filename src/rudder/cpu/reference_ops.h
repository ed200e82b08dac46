// The readable CPU backend: every macro-op as its formula, fp32 storage, one thread, sums in double
// and in a fixed order. Golden tests and the model's author read this one; users run fast_ops.h.
#pragma once

#include <memory>

#include "rudder/ops/ops.h"

namespace rudder::cpu {

// act_dtype, kv_dtype and weights are f32.
std::unique_ptr<ops::Ops> make_reference_ops();

}  // namespace rudder::cpu
