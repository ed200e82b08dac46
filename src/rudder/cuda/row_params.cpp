#include "rudder/cuda/row_params.h"

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/linear.h"

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
  params.lets_next_begin = fetches_ahead(args.next, params.rows);
  return params;
}

EmbedParams embed_params(const ops::EmbedArgs& args, const ops::View& table) {
  EmbedParams params;
  params.table = table.data;
  params.element = element_of(table.dtype);
  params.stride = table.shape[1];
  params.ids = pointer<int32_t>(args.ids);
  params.scale = args.scale;
  params.rows = args.out.shape[0];
  params.hidden = args.out.shape[1];
  params.out = args.out.data;
  return params;
}

EmbedFp8Params embed_params(const ops::EmbedArgs& args, const ops::View& table,
                            const ops::View& scale) {
  EmbedFp8Params params;
  params.table = table.data;
  params.w_scale = pointer<float>(scale);
  params.ids = pointer<int32_t>(args.ids);
  params.scale = args.scale;
  params.rows = args.out.shape[0];
  params.hidden = args.out.shape[1];
  params.out = args.out.data;
  return params;
}

EmbedLowBitsParams embed_params(const ops::EmbedArgs& args, const CudaWeight& weight) {
  EmbedLowBitsParams params;
  params.table = weight.weight.data;
  params.row_factor = pointer<float>(weight.scale);
  params.form = weight.low;
  params.ids = pointer<int32_t>(args.ids);
  params.scale = args.scale;
  params.rows = args.out.shape[0];
  params.hidden = args.out.shape[1];
  params.out = args.out.data;
  return params;
}

ResidualNormParams residual_norm_params(const ops::ResidualNormArgs& args) {
  ResidualNormParams params;
  params.x = args.x.data;
  params.delta = args.delta.data;
  params.delta_norm = pointer<float>(args.delta_norm.weight);
  params.delta_alpha = pointer<float>(args.delta_norm.alpha);
  params.delta_eps = args.delta_norm.eps;
  params.delta_scale = args.delta_scale;
  params.sum_scale = args.sum_scale;
  params.norm = pointer<float>(args.norm.weight);
  params.norm_alpha = pointer<float>(args.norm.alpha);
  params.eps = args.norm.eps;
  params.rows = args.x.shape[0];
  params.hidden = args.x.shape[1];
  params.out = args.out.data;
  params.out_scale = pointer<float>(args.out_scale);
  params.out_act = args.out_act.data;
  params.lets_next_begin = fetches_ahead(args.next, params.rows);
  return params;
}

GatedActParams gated_act_params(const ops::GatedActArgs& args) {
  GatedActParams params;
  params.x = args.x.data;
  params.activation = args.activation;
  params.rows = args.out.shape[0];
  params.width = args.out.shape[1];
  params.out = args.out.data;
  params.out_scale = pointer<float>(args.out_scale);
  params.lets_next_begin = fetches_ahead(args.next, params.rows);
  return params;
}

}  // namespace rudder::cuda
