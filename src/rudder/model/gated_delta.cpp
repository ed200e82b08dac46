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

}  // namespace

void list_tensors(const GatedDelta& mixer, int64_t hidden, const GatedDelta::Names& names,
                  GatedDelta::Weights* weights, LayerTensors& out) {
  using Weights = GatedDelta::Weights;
  const Heads heads = heads_of(mixer, out.rank);
  const Extent keys = elements_of(heads.keys, mixer.key_dim);
  const Extent values = elements_of(heads.values, mixer.value_dim);
  const int64_t each = mixer.value_heads / mixer.key_heads;
  const int64_t run = each * mixer.value_dim;
  if (names.in.size() == 1) {
    out.add_parts(parts_by_head(names.in[0], heads.keys, {mixer.key_dim, mixer.key_dim, run, run}),
                  hidden, target_in(weights, &Weights::in));
  } else {
    out.add_parts(
        {{std::string(names.in[0]), {keys, keys, values}}, {std::string(names.in[1]), {values}}},
        hidden, target_in(weights, &Weights::in));
  }
  if (names.gates.size() == 1) {
    out.add_parts(parts_by_head(names.gates[0], heads.keys, {each, each}), hidden,
                  target_in(weights, &Weights::gates));
  } else {
    out.add_linear(names.gates, {heads.values, heads.values}, hidden, false,
                   target_in(weights, &Weights::gates));
  }
  out.add_filters(names.conv, {keys, keys, values}, mixer.conv_length,
                  target_in(weights, &Weights::conv));
  out.add_vector(names.a_log, heads.values, target_in(weights, &Weights::a_log));
  out.add_vector(names.step_bias, heads.values, target_in(weights, &Weights::step_bias));
  out.add_norm(names.norm, mixer.value_dim, RmsNorm{}, target_in(weights, &Weights::norm));
  out.norms.back().has_offset = false;
  out.add_linear({names.out}, {hidden}, values, false, target_in(weights, &Weights::out));
}

StateBytes state_bytes(const GatedDelta& mixer) {
  const int64_t matrices = mixer.value_width() * mixer.key_dim;
  const int64_t kept = 2 * mixer.conv_width() + int64_t{2} * mixer.value_heads;
  return {.state = conv_state_bytes(mixer) + ops::kStateLine + matrices * kFloat,
          .row = kept * kFloat};
}

std::array<int64_t, 4> scratch_widths(const GatedDelta& mixer) {
  return {mixer.conv_width() + mixer.value_width(), mixer.conv_width(),
          int64_t{2} * mixer.value_heads, mixer.value_width()};
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
             .gates = gates,
             .a_begin = mixer.value_heads,
             .b_begin = 0,
             .key_heads = mixer.key_heads,
             .value_heads = mixer.value_heads,
             .key_dim = mixer.key_dim,
             .value_dim = mixer.value_dim,
             .a_log = weights.a_log,
             .step_bias = weights.step_bias,
             .out = out});
  step.ops.state_ops()->gate_rows({.x = out,
                                   .gate = inputs,
                                   .gate_begin = mixer.conv_width(),
                                   .function = ops::GateFunction::kSilu,
                                   .norm = weights.norm,
                                   .run = mixer.value_dim,
                                   .out = out});
  return {.out = out, .buffer = scratch[3], .free = scratch[0]};
}

}  // namespace rudder::model
