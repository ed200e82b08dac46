// Chooses the backend that runs a model; only this file names the backends. A backend that is asked
// for and not available is an Error; no other backend takes its turn.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/make_executor.h"
#include "rudder/exec/settings.h"
#include "rudder/model/own_kv_decoder.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

#if RUDDER_HAS_CUDA
#include "rudder/cuda/cuda_ops.h"
#endif

namespace rudder::apps {

// The settings with "auto" replaced where the device decides: the device itself, and the share of
// its memory.
exec::ExecSettings resolve_device(exec::ExecSettings settings);

// The share of the machine that each of several replicas has: threads and memory of a CPU, or GPUs
// of its own. kInvalidArgument ("data-parallel-size"): the machine does not have so many.
Result<exec::ExecSettings> share_of_replica(exec::ExecSettings settings, int32_t num_replicas);

// For each replica the ranks of the settings' tensor-parallel-size, or the devices of the stages of
// their pipeline-parallel-size. `settings` are resolved and are
// of one replica. On a CPU dtype "auto" is float32 for a checkpoint stored in float32, else
// bfloat16; a GPU computes in bfloat16.
Result<std::vector<exec::Ranks>> make_replicas(const exec::ExecSettings& settings,
                                               int32_t num_replicas,
                                               const weights::Checkpoint& checkpoint);

// What makes the decoder of that device; empty: the executor's own.
model::MakeOwnKvDecoder decoder_of(const exec::ExecSettings& settings);

#if RUDDER_HAS_CUDA
// The GPU backend's part of the settings. An Error: a dtype that it does not compute in.
Result<cuda::CudaOpsSettings> cuda_settings(const exec::ExecSettings& settings);
#endif

}  // namespace rudder::apps
