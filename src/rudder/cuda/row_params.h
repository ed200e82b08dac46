// Converts the arguments of ops that work row by row into the structs of kernels: pointers instead
// of views. Called by CudaOps.
#pragma once

#include "rudder/cuda/kernels/products/linear_epilogue.h"
#include "rudder/cuda/kernels/rows/pack_low_bits.h"
#include "rudder/cuda/kernels/rows/rows.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

struct CudaWeight;

GatherRowsParams gather_rows_params(const ops::GatherRowsArgs& args);
PlaceRowsParams place_rows_params(const ops::PlaceRowsArgs& args);
SpreadLogitsParams spread_logits_params(const ops::SpreadLogitsArgs& args);
ResidualActParams residual_act_params(const ops::ResidualActArgs& args);
QuantiseParams quantise_params(const ops::QuantiseArgs& args);
// Of a table that is not fp8, of one that is, with its scales, and of one of LowBits.
EmbedParams embed_params(const ops::EmbedArgs& args, const ops::View& table);
EmbedFp8Params embed_params(const ops::EmbedArgs& args, const ops::View& table,
                            const ops::View& scale);
EmbedLowBitsParams embed_params(const ops::EmbedArgs& args, const CudaWeight& weight);
// Without the scales that the product before has left.
ResidualNormParams residual_norm_params(const ops::ResidualNormArgs& args);
GatedActParams gated_act_params(const ops::GatedActArgs& args);

}  // namespace rudder::cuda
