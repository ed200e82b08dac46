// Converts the taps of an op into the struct of its kernel: pointers instead of views. Called by
// CudaOps.
#pragma once

#include "rudder/cuda/kernels/experts/route_tapped.h"
#include "rudder/cuda/kernels/features/encode.h"
#include "rudder/cuda/kernels/streams/streams.h"
#include "rudder/cuda/kernels/taps/tapped_rows.h"
#include "rudder/ops/args.h"
#include "rudder/ops/expert_args.h"
#include "rudder/ops/stream_args.h"

namespace rudder::cuda {

GatherTapsParams gather_params(const ops::TapTable& table, const ops::TapBatch& batch);

// Whether any of an op's points is tapped; if not, it runs the plain kernel.
bool is_tapped(const ops::ResidualNormArgs& args);
TapParams<kResidualPoints> tap_params(const ops::ResidualNormArgs& args);

bool is_tapped(const ops::GatedActArgs& args);
TapParams<1> tap_params(const ops::GatedActArgs& args);

TapParams<kRouterPoints> tap_params(const ops::RouteTappedArgs& args);

// Of ops that may have none: every point is -1 then.
TapParams<kStreamPoints> tap_params(const ops::ConnectStreamsArgs& args);
TapParams<1> tap_params(const ops::GateStreamsArgs& args);

// Of launch_encode(), and of the residual norm that is nothing but what stands behind it.
EncodeParams encode_params(const ops::EncodeArgs& args, int num_blocks);
ResidualNormParams rows_of(const ops::EncodeArgs& args);
TapParams<kResidualPoints> params_behind_encode(const ops::EncodeArgs& args);

}  // namespace rudder::cuda
