#include "rudder/model/gated_delta.h"

#include <string>
#include <utility>

#include "rudder/model/branch.h"
#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

using tensor::View;

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

// Elements of heads that a rank has a share of.
Extent elements_of(const Extent& heads, int64_t each) {
  return {heads.stored * each, {heads.share.begin * each, heads.count() * each}};
}

struct Heads {
  Extent keys;
  Extent values;
};
Heads heads_of(const GatedDelta& mixer, ops::Rank rank) {
  const Extent keys{mixer.key_heads, ops::equal_share(mixer.key_heads, rank)};
  return {keys, elements_of({mixer.key_heads, keys.share}, mixer.value_heads / mixer.key_heads)};
}

// A tensor in which the rows of a key head lie together, `sizes` of each kind: a part for each
// kind, which has the rows of that kind alone.
std::vector<LinearModule::Part> parts_by_head(std::string_view name, const Extent& heads,
                                              const std::vector<int64_t>& sizes) {
  std::vector<LinearModule::Part> parts;
  for (size_t kind = 0; kind < sizes.size(); ++kind) {
    LinearModule::Part& part = parts.emplace_back(LinearModule::Part{std::string(name), {}});
    for (int64_t head = 0; head < heads.stored; ++head) {
      const bool is_here =
          head >= heads.share.begin && head < heads.share.begin + heads.share.count;
      for (size_t i = 0; i < sizes.size(); ++i) {
        part.rows.emplace_back(sizes[i], ops::Share{0, is_here && i == kind ? sizes[i] : 0});
      }
    }
  }
  return parts;
}

// Of the recurrence's part of a state, behind the convolution's.
int64_t conv_state_bytes(const GatedDelta& mixer) {
  const int64_t window = (mixer.conv_length - 1) * mixer.conv_width() * kFloat;
  return ops::kStateLine + (window + ops::kStateLine - 1) / ops::kStateLine * ops::kStateLine;
}

// q, k and v, each from a tensor of its own, and what decays and gates are made of. Every rank has
// all of the short rows.
void list_by_channel(const GatedDelta& mixer, int64_t hidden, const Heads& heads,
                     const GatedDelta::Names& names, GatedDelta::Weights* weights,
                     LayerTensors& out) {
  using Weights = GatedDelta::Weights;
  const Extent keys = elements_of(heads.keys, mixer.key_dim);
  const Extent values = elements_of(heads.values, mixer.value_dim);
  const Extent decays = elements_of(heads.values, mixer.key_dim);
  out.add_linear(names.qkv, {keys, keys, values}, hidden, false, target_in(weights, &Weights::in));
  out.add_linear({names.decay[0]}, {mixer.gate_rank}, hidden, false,
                 target_in(weights, &Weights::decay_down));
  out.add_linear({names.decay[1]}, {decays}, mixer.gate_rank, false,
                 target_in(weights, &Weights::decay));
  out.add_linear({names.gate[0]}, {mixer.gate_rank}, hidden, false,
                 target_in(weights, &Weights::gate_down));
  out.add_linear({names.gate[1]}, {values}, mixer.gate_rank, false,
                 target_in(weights, &Weights::gate));
}

}  // namespace

void list_tensors(const GatedDelta& mixer, int64_t hidden, const GatedDelta::Names& names,
                  GatedDelta::Weights* weights, LayerTensors& out) {
  using Weights = GatedDelta::Weights;
  const Heads heads = heads_of(mixer, out.rank);
  const Extent keys = elements_of(heads.keys, mixer.key_dim);
  const Extent values = elements_of(heads.values, mixer.value_dim);
  const int64_t each = mixer.value_heads / mixer.key_heads;
  const int64_t run = each * mixer.value_dim;
  if (mixer.by_channel()) {
    list_by_channel(mixer, hidden, heads, names, weights, out);
  } else if (names.in.size() == 1) {
    out.add_parts(parts_by_head(names.in[0], heads.keys, {mixer.key_dim, mixer.key_dim, run, run}),
                  hidden, target_in(weights, &Weights::in));
  } else {
    out.add_parts(
        {{std::string(names.in[0]), {keys, keys, values}}, {std::string(names.in[1]), {values}}},
        hidden, target_in(weights, &Weights::in));
  }
  if (mixer.by_channel()) {
    out.add_linear({names.step}, {heads.values}, hidden, false,
                   target_in(weights, &Weights::gates));
  } else if (names.gates.size() == 1) {
    out.add_parts(parts_by_head(names.gates[0], heads.keys, {each, each}), hidden,
                  target_in(weights, &Weights::gates));
  } else {
    out.add_linear(names.gates, {heads.values, heads.values}, hidden, false,
                   target_in(weights, &Weights::gates));
  }
  out.add_filters(names.conv, {keys, keys, values}, mixer.conv_length,
                  target_in(weights, &Weights::conv));
  out.add_vector(names.a_log, heads.values, target_in(weights, &Weights::a_log));
  out.vectors.back().is_of_heads = mixer.by_channel() && !names.flat_a_log;
  const Extent decays =
      mixer.by_channel() ? elements_of(heads.values, mixer.key_dim) : heads.values;
  out.add_vector(names.step_bias, decays, target_in(weights, &Weights::step_bias));
  out.add_norm(names.norm, mixer.value_dim, RmsNorm{}, target_in(weights, &Weights::norm));
  out.norms.back().has_offset = false;
  out.add_linear({names.out}, {hidden}, values, false, target_in(weights, &Weights::out));
}

StateBytes state_bytes(const GatedDelta& mixer) {
  const int64_t matrices = mixer.value_width() * mixer.key_dim;
  const int64_t kept = 2 * mixer.conv_width() + mixer.decay_width() + mixer.value_heads;
  return {.state = conv_state_bytes(mixer) + ops::kStateLine + matrices * kFloat,
          .row = kept * kFloat};
}

std::array<int64_t, 8> scratch_widths(const GatedDelta& mixer) {
  const bool by_channel = mixer.by_channel();
  return {mixer.input_width(),
          mixer.conv_width(),
          mixer.gates_width(),
          mixer.value_width(),
          mixer.gate_rank,
          mixer.gate_rank,
          by_channel ? mixer.decay_width() : 0,
          by_channel ? mixer.value_width() : 0};
}

Mixed mix(const GatedDelta& mixer, const GatedDelta::Weights& weights, const Operand& in,
          const LayerStep& step) {
  const Scratch scratch(step.scratch, step.max_tokens, scratch_widths(mixer));
  const ForwardBatch& batch = step.batch;
  ops::StateAccess state{.q_begin = batch.attention.q_begin,
                         .table_row = batch.attention.table_row,
                         .positions = batch.positions,
                         .batch = batch.states,
                         .layer = step.state};
  const View inputs = step.products.project(weights.in, in, scratch[0]);
  const View gates = step.products.project(
      weights.gates, step.products.as_taken(weights.gates, in, scratch[1]), scratch[2]);
  ops::Columns decay{gates, mixer.value_heads};
  ops::Columns gate{inputs, mixer.conv_width()};
  if (mixer.by_channel()) {
    const Products& products = step.products;
    // The input is taken by both before another operand is made.
    const View to_decay = products.project(
        weights.decay_down, products.as_taken(weights.decay_down, in, scratch[1]), scratch[4]);
    const View to_gate = products.project(
        weights.gate_down, products.as_taken(weights.gate_down, in, scratch[1]), scratch[5]);
    decay = {products.project(weights.decay,
                              products.operand_of(weights.decay, to_decay, scratch[1]), scratch[6]),
             0};
    gate = {products.project(weights.gate, products.operand_of(weights.gate, to_gate, scratch[1]),
                             scratch[7]),
            0};
  }
  const View convolved = shaped(scratch[1], in.rows(), mixer.conv_width());
  ops::StateOps& ops = *step.ops.state_ops();
  ops.convolve({.state = state,
                .x = inputs,
                .weight = weights.conv,
                .length = mixer.conv_length,
                .silu = true,
                .out = convolved});
  state.layer.begin += conv_state_bytes(mixer);
  state.layer.kept_begin += mixer.conv_width() * kFloat;
  const View out = shaped(scratch[3], in.rows(), mixer.value_width());
  ops.recur({.state = state,
             .qkv = convolved,
             .q_begin = 0,
             .k_begin = mixer.key_width(),
             .v_begin = 2 * mixer.key_width(),
             .gates = decay.rows,
             .a_begin = decay.begin,
             .b = {gates, 0},
             .key_heads = mixer.key_heads,
             .value_heads = mixer.value_heads,
             .key_dim = mixer.key_dim,
             .value_dim = mixer.value_dim,
             .a_by_channel = mixer.by_channel(),
             .limits = {.decay_floor = mixer.decay_floor},
             .a_log = weights.a_log,
             .step_bias = weights.step_bias,
             .out = out});
  step.ops.state_ops()->gate_rows(
      {.x = out,
       .gate = gate.rows,
       .gate_begin = gate.begin,
       .function = mixer.by_channel() ? ops::GateFunction::kSigmoid : ops::GateFunction::kSilu,
       .norm = weights.norm,
       .run = mixer.value_dim,
       .out = out});
  return {.out = out, .buffer = scratch[3], .free = scratch[0]};
}

}  // namespace rudder::model
