#include "rudder/cuda/latent_ops.h"

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/latents/latent_product.h"
#include "rudder/cuda/kernels/latents/latent_rows.h"
#include "rudder/cuda/linear.h"

namespace rudder::cuda {
namespace {

LatentRowsParams rows_params(const ops::LatentPrepArgs& args) {
  const ops::LatentShape& shape = args.shape;
  RUDDER_CHECK(args.kv.parts == 1 && args.kv.num_kv_heads == 1 && args.kv.head_dim == shape.row() &&
                   args.norm.alpha.empty(),
               "latent_prep of {}", shapes({&args.q, &args.latent, &args.kv.storage}));
  LatentRowsParams params;
  params.q = args.q.data;
  params.latent = args.latent.data;
  params.tokens = static_cast<int32_t>(args.q.shape[0]);
  params.num_heads = shape.num_heads;
  params.nope_dim = shape.nope_dim;
  params.rope_dim = shape.rope_dim;
  params.rank = shape.rank;
  params.norm = pointer<float>(args.norm.weight);
  params.eps = args.norm.eps;
  params.rope = pointer<float>(args.rope);
  params.half = args.rope.empty() ? 0 : static_cast<int32_t>(args.rope.shape[2]);
  params.rope_row = pointer<int32_t>(args.rope_row);
  params.neighbours = args.neighbours;
  params.q_scale = pointer<float>(args.q_scale);
  params.kv_slot = pointer<int32_t>(args.kv_slot);
  params.kv = args.kv.storage.data;
  params.kv_type = kv_type_of(args.kv);
  params.scales.k = pointer<float>(args.kv.k_scale);
  params.scales.tokens = pointer<float>(args.kv.token_scales);
  if (!args.kv.token_scales.empty()) params.scales.token_pitch = args.kv.token_scales.shape[1];
  params.block_size = args.kv.block_size;
  params.q_out = args.q_out.data;
  return params;
}

// Of the weight that keys and values are made of.
LatentProductParams product_params(const ops::LatentShape& shape, const ops::LinearWeight& up) {
  const CudaWeight& weight = cuda_weight(up);
  RUDDER_CHECK(weight.low.code == LowCode::kNone && up.in == shape.rank &&
                   up.out == int64_t{shape.num_heads} * (shape.nope_dim + shape.value_dim),
               "a latent weight of [{}, {}]", up.out, up.in);
  LatentProductParams params;
  params.num_heads = shape.num_heads;
  params.weight = weight.weight.data;
  params.weight_scale = pointer<float>(weight.scale);
  params.head_rows = shape.nope_dim + shape.value_dim;
  return params;
}

}  // namespace

void LatentOps::latent_prep(const ops::LatentPrepArgs& args) {
  const ops::LatentShape& shape = args.shape;
  const LatentRowsParams rows = rows_params(args);
  LatentProductParams absorb = product_params(shape, *args.up);
  absorb.absorbs = true;
  absorb.tokens = rows.tokens;
  absorb.inner = shape.nope_dim;
  absorb.outer = shape.rank;
  absorb.x = args.q.data;
  absorb.x_token = shape.num_heads * shape.query_dim();
  absorb.x_head = shape.query_dim();
  absorb.out = args.q_out.data;
  absorb.out_token = shape.num_heads * shape.row();
  absorb.out_head = shape.row();
  absorb.token_scale = pointer<float>(args.q_scale);
  absorb.token_scale_row = pointer<int32_t>(args.rope_row);
  run_("latent_prep", {&args.q, &args.latent, &args.kv.storage, &args.q_out},
       [&](cudaStream_t stream) { return launch_latent_prep(absorb, rows, stream); });
}

void LatentOps::latent_values(const ops::LatentValuesArgs& args) {
  const ops::LatentShape& shape = args.shape;
  LatentProductParams values = product_params(shape, *args.up);
  values.tokens = static_cast<int32_t>(args.read.shape[0]);
  values.inner = shape.rank;
  values.outer = shape.value_dim;
  values.first_row = shape.nope_dim;
  values.x = args.read.data;
  values.x_token = shape.num_heads * shape.row();
  values.x_head = shape.row();
  values.out = args.out.data;
  values.out_token = int64_t{shape.num_heads} * shape.value_dim;
  values.out_head = shape.value_dim;
  run_("latent_values", {&args.read, &args.out},
       [&](cudaStream_t stream) { return launch_latent_product(values, stream); });
}

}  // namespace rudder::cuda
