#include "rudder/cuda/qkv_params.h"

#include "rudder/cuda/elements.h"

namespace rudder::cuda {

QkvPrepParams qkv_params(const ops::QkvPrepArgs& args) {
  const ops::KvLayer& kv = args.kv;
  // All heads of a rank may be one head, whose weights are as many as those of a norm per head.
  const auto is_wide = [&](const ops::NormSpec& norm) {
    return !norm.empty() && (args.norms_span_ranks || norm.weight.shape[0] != kv.head_dim);
  };
  QkvPrepParams params;
  params.qkv = args.qkv.data;
  params.rows = args.qkv.shape[0];
  params.num_heads = args.num_heads;
  params.num_kv_heads = kv.num_kv_heads;
  params.head_dim = kv.head_dim;
  params.q_norm = pointer<float>(args.q_norm.weight);
  params.q_alpha = pointer<float>(args.q_norm.alpha);
  params.q_eps = args.q_norm.eps;
  params.k_norm = pointer<float>(args.k_norm.weight);
  params.k_alpha = pointer<float>(args.k_norm.alpha);
  params.k_eps = args.k_norm.eps;
  params.v_norm = {pointer<float>(args.v_norm.weight), pointer<float>(args.v_norm.alpha),
                   args.v_norm.eps};
  params.q_norm_is_wide = is_wide(args.q_norm);
  params.k_norm_is_wide = is_wide(args.k_norm);
  params.rope = pointer<float>(args.rope);
  params.half_rot = args.rope.empty() ? 0 : static_cast<int32_t>(args.rope.shape[2]);
  params.rope_row = pointer<int32_t>(args.rope_row);
  params.norms_rotated = args.norms_rotated;
  params.q_scale = pointer<float>(args.q_scale);
  params.kv_slot = pointer<int32_t>(args.kv_slot);
  params.kv_cache = kv.storage.data;
  params.kv_type = kv_type_of(kv);
  params.scales.k = pointer<float>(kv.k_scale);
  params.scales.v = pointer<float>(kv.v_scale);
  params.scales.tokens = pointer<float>(kv.token_scales);
  if (!kv.token_scales.empty()) params.scales.token_pitch = kv.token_scales.shape[1];
  params.block_size = kv.block_size;
  params.q_out = args.q_out.data;
  return params;
}

}  // namespace rudder::cuda
