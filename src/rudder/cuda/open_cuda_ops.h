// The one way to a CudaOps, for make_cuda_devices.cpp.
#pragma once

#include <memory>

#include "rudder/base/result.h"
#include "rudder/cuda/cuda_ops.h"
#include "rudder/cuda/peer_comm.h"
#include "rudder/ops/ops.h"

namespace rudder::cuda {

// On `settings.device`. `comm`: null, or what a rank knows of its group. A stage tells its
// progress.
Result<std::unique_ptr<ops::Ops>> open_cuda_ops(const CudaOpsSettings& settings,
                                                std::shared_ptr<PeerComm> comm, bool is_stage);

}  // namespace rudder::cuda
