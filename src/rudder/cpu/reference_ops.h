// The readable CPU backend: every macro-op as its formula, with fp32 storage, one thread, and sums
// in double in a fixed order. Golden tests run on it, and authors of models read it; users run
// fast_ops.h.
#pragma once

#include <memory>

#include "rudder/cpu/host_comm.h"
#include "rudder/ops/ops.h"

namespace rudder::cpu {

// act_dtype, the KV cache and weights are f32.
std::unique_ptr<ops::Ops> make_reference_ops();
// A rank of a group.
std::unique_ptr<ops::Ops> make_reference_rank(std::shared_ptr<HostComm> comm);

}  // namespace rudder::cpu
