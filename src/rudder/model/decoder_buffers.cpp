#include "rudder/model/decoder_buffers.h"

#include <algorithm>

#include "rudder/model/rope.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;

struct Sizes {  // in elements
  int64_t hidden = 0;
  int64_t qkv = 0;
  int64_t q = 0;
  int64_t mlp = 0;  // one [T, width]
  int64_t rows = 0;
  int64_t logits = 0;
  int64_t scales = 0;
  int64_t rope = 0;  // all tables

  int64_t branch() const { return std::max(qkv + 2 * q, 3 * mlp); }
};

// Every part of a shared buffer starts on a 64-byte line, whatever the dtype.
int64_t aligned(int64_t elements) {
  return (elements + 63) / 64 * 64;
}

Sizes sizes_of(const ModelSpec& spec, const DecoderLimits& limits) {
  Sizes sizes;
  for (const LayerSpec& layer : spec.layers) {
    sizes.qkv = std::max(sizes.qkv, aligned(limits.max_tokens * layer.attention.qkv_width()));
    sizes.q = std::max(sizes.q, aligned(limits.max_tokens * layer.attention.q_width()));
    sizes.mlp = std::max(sizes.mlp, aligned(int64_t{limits.max_tokens} * layer.mlp.width));
  }
  sizes.hidden = int64_t{limits.max_tokens} * spec.hidden;
  sizes.rows = int64_t{limits.max_logits_rows} * spec.hidden;
  sizes.logits = int64_t{limits.max_logits_rows} * spec.vocab;
  sizes.scales = limits.max_tokens;
  for (const RopeSpec& rope : spec.ropes) {
    sizes.rope += int64_t{limits.max_seq_len} * rope.rotary_dim;
  }
  return sizes;
}

}  // namespace

Result<DecoderBuffers> DecoderBuffers::allocate(const ModelSpec& spec, const DecoderLimits& limits,
                                                ops::Ops& ops) {
  const Sizes sizes = sizes_of(spec, limits);
  const DType act = ops.act_dtype();
  DecoderBuffers buffers;
  RUDDER_TRY(buffers.residual, ops.allocate(act, {sizes.hidden}));
  RUDDER_TRY(buffers.rows_residual, ops.allocate(act, {sizes.rows}));
  RUDDER_TRY(buffers.normed, ops.allocate(act, {sizes.hidden}));
  RUDDER_TRY(buffers.delta, ops.allocate(act, {sizes.hidden}));
  RUDDER_TRY(buffers.scale, ops.allocate(DType::kF32, {sizes.scales}));
  RUDDER_TRY(buffers.logits, ops.allocate(DType::kF32, {sizes.logits}));
  RUDDER_TRY(const View branch, ops.allocate(act, {sizes.branch()}));
  buffers.qkv = branch.rows(0, sizes.qkv);
  buffers.q = branch.rows(sizes.qkv, sizes.q);
  buffers.attended = branch.rows(sizes.qkv + sizes.q, sizes.q);
  buffers.gate_up = branch.rows(0, 2 * sizes.mlp);
  buffers.activated = branch.rows(2 * sizes.mlp, sizes.mlp);
  for (const RopeSpec& rope : spec.ropes) {
    std::vector<float> table = rope_table(rope, limits.max_seq_len);
    const View host{table.data(), DType::kF32, {limits.max_seq_len, 2, rope.rotary_dim / 2}};
    RUDDER_TRY(const View device, ops.upload(host, DType::kF32));
    buffers.ropes.push_back(device);
  }
  return buffers;
}

int64_t DecoderBuffers::bytes(const ModelSpec& spec, const DecoderLimits& limits, DType act) {
  const Sizes sizes = sizes_of(spec, limits);
  const int64_t act_elements = 3 * sizes.hidden + sizes.rows + sizes.branch();
  return act_elements * static_cast<int64_t>(tensor::dtype_bytes(act)) +
         (sizes.logits + sizes.scales + sizes.rope) *
             static_cast<int64_t>(tensor::dtype_bytes(DType::kF32));
}

}  // namespace rudder::model
