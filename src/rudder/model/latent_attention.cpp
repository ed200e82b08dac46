#include "rudder/model/latent_attention.h"

#include "rudder/model/attention.h"
#include "rudder/model/branch.h"
#include "rudder/model/tensors.h"

namespace rudder::model {

using tensor::View;

void list_tensors(const LatentAttention& mixer, int64_t hidden, const LatentAttention::Names& names,
                  LatentAttention::Weights* weights, LayerTensors& out) {
  using Weights = LatentAttention::Weights;
  const ops::LatentShape& shape = mixer.shape;
  const Extent heads{shape.num_heads, ops::equal_share(shape.num_heads, out.rank)};
  const auto of_heads = [&](int64_t dim) {
    return Extent{heads.stored * dim, {heads.share.begin * dim, heads.count() * dim}};
  };
  const auto add_norm = [&](std::string_view name, int64_t width, ops::NormSpec Weights::*member) {
    out.add_norm(name, width, RmsNorm{}, target_in(weights, member));
    out.norms.back().has_offset = false;
    out.norms.back().eps = mixer.latent_eps;
  };
  const Extent queries = of_heads(shape.query_dim());
  if (mixer.query_rank > 0) {
    add_norm(names.q_norm, mixer.query_rank, &Weights::q_norm);
    out.add_linear({names.q_down}, {mixer.query_rank}, hidden, mixer.bias,
                   target_in(weights, &Weights::q_down));
    out.add_linear({names.q_up}, {queries}, mixer.query_rank, false,
                   target_in(weights, &Weights::q));
  } else {
    out.add_linear({names.q}, {queries}, hidden, false, target_in(weights, &Weights::q));
  }
  add_norm(names.kv_norm, shape.rank, &Weights::kv_norm);
  out.add_linear({names.kv_down}, {shape.row()}, hidden, mixer.bias,
                 target_in(weights, &Weights::kv_down));
  out.add_linear({names.kv_up}, {of_heads(int64_t{shape.nope_dim} + shape.value_dim)}, shape.rank,
                 false, target_in(weights, &Weights::kv_up));
  out.linears.back().use = ops::ProductUse::kHeads;
  if (mixer.out_gate) {
    out.add_linear({names.gate}, {of_heads(shape.value_dim)}, hidden, false,
                   target_in(weights, &Weights::gate));
  }
  if (mixer.sinks) out.add_vector(names.sinks, heads, target_in(weights, &Weights::sinks));
  out.add_linear({names.out}, {hidden}, of_heads(shape.value_dim), mixer.bias,
                 target_in(weights, &Weights::out));
}

std::array<int64_t, 10> scratch_widths(const LatentAttention& mixer) {
  return {mixer.query_rank,    mixer.query_rank,
          mixer.shape.row(),   mixer.hidden,
          mixer.query_width(), mixer.read_width(),
          mixer.read_width(),  mixer.value_width(),
          mixer.value_width(), mixer.out_gate ? mixer.value_width() : 0};
}

namespace {

enum Piece : uint8_t {
  kQDown,
  kQNormed,
  kKvDown,
  kInput,
  kQ,
  kAbsorbed,
  kRead,
  kOut,
  kFree,
  kGate
};

// The products of the input come before its scales are written over.
View project_queries(const LatentAttention::Weights& weights, const View& q_down, const Operand& in,
                     const LayerStep& step, const Scratch<10>& scratch) {
  if (q_down.empty()) return step.products.project(weights.q, in, scratch[kQ]);
  Operand normed = step.products.empty_operand(weights.q, in.rows(), scratch[kQNormed]);
  step.ops.residual_norm({.x = q_down,
                          .norm = weights.q_norm,
                          .out = normed.x,
                          .out_scale = normed.scale,
                          .next = &weights.q});
  return step.products.project(weights.q, normed, scratch[kQ]);
}

}  // namespace

Mixed mix(const LatentAttention& mixer, const LatentAttention::Weights& weights, const Operand& in,
          const LayerStep& step) {
  const Scratch scratch(step.scratch, step.max_tokens, scratch_widths(mixer));
  const int64_t rows = in.rows();
  ops::LatentOps& ops = *step.ops.state_ops()->latent_ops();
  View q_down;
  View q;
  if (mixer.query_rank > 0) {
    q_down = step.products.project(weights.q_down, in, scratch[kQDown]);
  } else {
    q = project_queries(weights, {}, in, step, scratch);
  }
  const View latent = step.products.project(
      weights.kv_down, step.products.as_taken(weights.kv_down, in, scratch[kInput]),
      scratch[kKvDown]);
  View gate;
  if (mixer.out_gate) {
    gate = step.products.project(
        weights.gate, step.products.as_taken(weights.gate, in, scratch[kInput]), scratch[kGate]);
  }
  if (mixer.query_rank > 0) q = project_queries(weights, q_down, in, step, scratch);
  const View absorbed = shaped(scratch[kAbsorbed], rows, mixer.read_width());
  ops.latent_prep(
      {.shape = mixer.shape,
       .q = q,
       .latent = latent,
       .up = &weights.kv_up,
       .norm = weights.kv_norm,
       .rope = mixer.rope == kNoRope ? View{} : step.ropes[static_cast<size_t>(mixer.rope)],
       .rope_row = step.batch.positions,
       .neighbours = mixer.neighbours,
       .q_scale = step.query_scales,
       .kv_slot = step.batch.kv_slot.rows(step.kv.group * rows, rows),
       .kv = step.kv,
       .q_out = absorbed});
  const ops::AttentionArgs args{.q = absorbed,
                                .kv = step.kv,
                                .num_heads = mixer.shape.num_heads,
                                .scale = mixer.scale,
                                .out = shaped(scratch[kRead], rows, mixer.read_width()),
                                .sinks = weights.sinks,
                                .value_dim = mixer.shape.rank};
  capture_patterns(args, step);
  step.ops.attention(args);
  const View out = shaped(scratch[kOut], rows, mixer.value_width());
  ops.latent_values({.shape = mixer.shape, .read = args.out, .up = &weights.kv_up, .out = out});
  if (mixer.out_gate) step.ops.state_ops()->gate_rows({.x = out, .gate = gate, .out = out});
  return {.out = out, .buffer = scratch[kOut], .free = scratch[kFree]};
}

}  // namespace rudder::model
