// Converts the arguments of ops that copy rows into the structs of kernels: pointers instead of
// views. Called by CudaOps.
#pragma once

#include "rudder/cuda/kernels/rows.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

GatherRowsParams gather_rows_params(const ops::GatherRowsArgs& args);
PlaceRowsParams place_rows_params(const ops::PlaceRowsArgs& args);
SpreadLogitsParams spread_logits_params(const ops::SpreadLogitsArgs& args);
ResidualActParams residual_act_params(const ops::ResidualActArgs& args);
QuantiseParams quantise_params(const ops::QuantiseArgs& args);

}  // namespace rudder::cuda
