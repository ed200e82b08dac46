#include "rudder/model/state_space.h"

#include <string>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/model/branch.h"
#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

using tensor::View;

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

struct SpaceExtents {
  Extent heads;
  Extent width;
  Extent groups;  // elements of B, or of C
};

// Ranks have heads, with the groups that these read: whole groups, or one that several ranks have.
SpaceExtents extents_of(const StateSpace& mixer, ops::Rank rank) {
  const ops::Share heads = ops::equal_share(mixer.heads, rank);
  const int64_t each = mixer.heads / mixer.groups;
  const ops::Share groups{heads.begin / each, (heads.count + each - 1) / each};
  const auto elements = [](int64_t stored, ops::Share share, int64_t size) {
    return Extent{stored * size, {share.begin * size, share.count * size}};
  };
  return {Extent{mixer.heads, heads}, elements(mixer.heads, heads, mixer.head_dim),
          elements(mixer.groups, groups, mixer.state_dim)};
}

// One tensor has the rows of all inputs: a part for each, which has the rows of that one alone, in
// the order in which the pass reads them.
std::vector<LinearModule::Part> input_parts(const StateSpace& mixer, std::string_view name,
                                            const SpaceExtents& extents) {
  const std::array<Extent, StateSpace::kNumInputs> stored = {
      extents.width, extents.width, extents.groups, extents.groups, extents.heads};
  std::vector<LinearModule::Part> parts;
  for (const StateSpace::Input input :
       {StateSpace::kX, StateSpace::kB, StateSpace::kC, StateSpace::kGate, StateSpace::kStep}) {
    LinearModule::Part& part = parts.emplace_back(LinearModule::Part{std::string(name), {}});
    part.factor = mixer.in_factors[input];
    for (size_t i = 0; i < stored.size(); ++i) {
      part.rows.push_back(i == input ? stored[i] : Extent{stored[i].stored, {0, 0}});
    }
  }
  return parts;
}

int64_t window_bytes(const StateSpace& mixer) {
  const int64_t window = (mixer.conv_length - 1) * mixer.conv_width() * kFloatBytes;
  return ops::kStateLine + (window + ops::kStateLine - 1) / ops::kStateLine * ops::kStateLine;
}

}  // namespace

void list_tensors(const StateSpace& mixer, int64_t hidden, const StateSpace::Names& names,
                  StateSpace::Weights* weights, LayerTensors& out) {
  using Weights = StateSpace::Weights;
  const SpaceExtents extents = extents_of(mixer, out.rank);
  out.add_parts(input_parts(mixer, names.in, extents), hidden, target_in(weights, &Weights::in));
  out.linears.back().bias = mixer.bias;
  const std::vector<Extent> channels = {extents.width, extents.groups, extents.groups};
  out.add_filters({names.conv}, channels, mixer.conv_length, target_in(weights, &Weights::conv));
  if (mixer.conv_bias) {
    out.add_channels(names.conv_bias, channels, target_in(weights, &Weights::conv_bias));
  }
  out.add_vector(names.a_log, extents.heads, target_in(weights, &Weights::a_log));
  out.add_vector(names.step_bias, extents.heads, target_in(weights, &Weights::step_bias));
  out.add_vector(names.skip, extents.heads, target_in(weights, &Weights::skip), ValueKind::kGain);
  if (mixer.norm_runs > 0) {
    out.add_norm(names.norm, extents.width, RmsNorm{}, target_in(weights, &Weights::norm));
    out.norms.back().has_offset = false;
  }
  out.add_linear({names.out}, {hidden}, extents.width, mixer.bias,
                 target_in(weights, &Weights::out));
  out.linears.back().parts.front().factor = mixer.out_factor;
}

StateBytes state_bytes(const StateSpace& mixer) {
  const int64_t matrices = mixer.width() * mixer.state_dim;
  const int64_t kept = 2 * mixer.conv_width() + mixer.heads;
  return {.state = window_bytes(mixer) + ops::kStateLine + matrices * kFloatBytes,
          .row = kept * kFloatBytes};
}

std::array<int64_t, 3> scratch_widths(const StateSpace& mixer) {
  return {mixer.in_width(), mixer.conv_width(), mixer.width()};
}

Mixed mix(const StateSpace& mixer, const StateSpace::Weights& weights, const Operand& in,
          const LayerStep& step) {
  const Scratch scratch(step.scratch, step.max_tokens, scratch_widths(mixer));
  const ForwardBatch& batch = step.batch;
  ops::StateAccess state{.q_begin = batch.attention.q_begin,
                         .table_row = batch.attention.table_row,
                         .positions = batch.positions,
                         .batch = batch.states,
                         .layer = step.state};
  const View inputs = step.products.project(weights.in, in, scratch[0]);
  const View convolved = shaped(scratch[1], in.rows(), mixer.conv_width());
  ops::StateOps& ops = *step.ops.state_ops();
  ops.convolve({.state = state,
                .x = inputs,
                .weight = weights.conv,
                .bias = weights.conv_bias,
                .length = mixer.conv_length,
                .silu = true,
                .out = convolved});
  state.layer.begin += window_bytes(mixer);
  state.layer.kept_begin += mixer.conv_width() * kFloatBytes;
  const View out = shaped(scratch[2], in.rows(), mixer.width());
  ops.recur({.state = state,
             .qkv = convolved,
             .q_begin = mixer.width() + mixer.group_width(),
             .k_begin = mixer.width(),
             .v_begin = 0,
             .gates = inputs,
             .a_begin = mixer.conv_width() + mixer.width(),
             .key_heads = mixer.groups,
             .value_heads = mixer.heads,
             .key_dim = mixer.state_dim,
             .value_dim = mixer.head_dim,
             .rule = ops::RecurRule::kSum,
             .limits = {.low = mixer.step_low, .high = mixer.step_high},
             .a_log = weights.a_log,
             .step_bias = weights.step_bias,
             .skip = weights.skip,
             .out = out});
  ops.gate_rows({.x = out,
                 .gate = inputs,
                 .gate_begin = mixer.conv_width(),
                 .function = ops::GateFunction::kSilu,
                 .norm = weights.norm,
                 .run = mixer.norm_runs == 0 ? 0 : mixer.width() / mixer.norm_runs,
                 .gates_first = mixer.gates_first,
                 .out = out});
  return {.out = out, .buffer = scratch[2], .free = scratch[0]};
}

}  // namespace rudder::model
