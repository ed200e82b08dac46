// Weights: the tensors of one model on one device, in the backend's formats. Filled by loader.h,
// read by the decoder.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/ops/args.h"

namespace rudder::model {

struct LayerWeights {
  ops::NormSpec attn_pre_norm;  // empty parts are not in this model
  ops::NormSpec attn_post_norm;
  ops::NormSpec mlp_pre_norm;
  ops::NormSpec mlp_post_norm;
  ops::NormSpec q_norm;
  ops::NormSpec k_norm;
  ops::LinearWeight qkv;  // q, k, v stacked
  ops::LinearWeight attn_out;
  ops::LinearWeight gate_up;  // gate, up stacked
  ops::LinearWeight down;
  ops::View k_scale;  // [num_kv_heads] f32, of an fp8 KV cache; empty: 1
  ops::View v_scale;
};

struct Weights {
  ops::View embedding;  // [vocab, hidden]; empty when tied: rows are read from `head`
  std::vector<LayerWeights> layers;
  ops::NormSpec final_norm;
  ops::LinearWeight head;  // [vocab, hidden]
  int64_t bytes = 0;       // of device memory, all of it
};

}  // namespace rudder::model
