// Chooses the backend that runs a model; only this file names the backends. A backend that is asked
// for and not available is an Error; no other backend takes its turn.
#pragma once

#include <memory>

#include "rudder/base/result.h"
#include "rudder/exec/make_executor.h"
#include "rudder/exec/settings.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

#if RUDDER_HAS_CUDA
#include "rudder/cuda/cuda_ops.h"
#endif

namespace rudder::apps {

// The settings with "auto" replaced where the device decides: the device itself, and the share of
// its memory.
exec::ExecSettings resolve_device(exec::ExecSettings settings);

// The ranks of the settings' tensor-parallel-size. `settings` are resolved. On a CPU dtype "auto"
// is float32 for a checkpoint stored in float32, else bfloat16; a GPU computes in bfloat16.
Result<exec::Ranks> make_ranks(const exec::ExecSettings& settings,
                               const weights::Checkpoint& checkpoint);

#if RUDDER_HAS_CUDA
// The GPU backend's part of the settings. An Error: a dtype that it does not compute in.
Result<cuda::CudaOpsSettings> cuda_settings(const exec::ExecSettings& settings);
#endif

}  // namespace rudder::apps
