#include "rudder/cuda/row_params.h"

#include "rudder/base/check.h"

namespace rudder::cuda {
namespace {

// The kernels copy elements of two bytes.
int64_t halves(int64_t width, tensor::DType dtype) {
  return width * static_cast<int64_t>(tensor::dtype_bytes(dtype)) / 2;
}

}  // namespace

GatherRowsParams gather_rows_params(const ops::GatherRowsArgs& args) {
  GatherRowsParams params;
  params.x = args.x.data;
  params.from = static_cast<const int32_t*>(args.rows.data);
  params.rows = args.out.shape[0];
  params.width = halves(args.out.shape[1], args.out.dtype);
  params.out = args.out.data;
  return params;
}

PlaceRowsParams place_rows_params(const ops::PlaceRowsArgs& args) {
  RUDDER_CHECK(args.column + args.x.shape[1] <= args.out.shape[1]);
  PlaceRowsParams params;
  params.x = args.x.data;
  params.rows = static_cast<const int32_t*>(args.rows.data);
  params.count = args.x.shape[0];
  params.width = halves(args.x.shape[1], args.x.dtype);
  params.out = args.out.data;
  params.out_width = halves(args.out.shape[1], args.out.dtype);
  params.column = halves(args.column, args.out.dtype);
  params.block_size = args.block_size;
  params.group_layers = args.group_layers;
  return params;
}

SpreadLogitsParams spread_logits_params(const ops::SpreadLogitsArgs& args) {
  SpreadLogitsParams params;
  params.x = static_cast<const float*>(args.x.data);
  params.ids = static_cast<const int32_t*>(args.ids.data);
  params.rows = args.x.shape[0];
  params.count = args.ids.num_rows();
  params.out = static_cast<float*>(args.out.data);
  params.vocab = args.out.shape[1];
  return params;
}

ResidualActParams residual_act_params(const ops::ResidualActArgs& args) {
  ResidualActParams params;
  params.x = args.x.data;
  params.y = args.y.data;
  params.rows = args.x.shape[0];
  params.width = args.x.shape[1];
  return params;
}

QuantiseParams quantise_params(const ops::QuantiseArgs& args) {
  QuantiseParams params;
  params.x = args.x.data;
  params.rows = args.x.shape[0];
  params.width = args.x.shape[1];
  params.out = args.out.data;
  params.out_scale = static_cast<float*>(args.out_scale.data);
  return params;
}

}  // namespace rudder::cuda
