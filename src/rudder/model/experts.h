// A mixture of experts: a router chooses some of many gated MLPs for each token, and the token's
// output is the weighted sum of theirs. One of the MLPs that a layer may have (spec.h). This file
// and its .cpp hold all that is particular to this kind of branch: its numbers, its tensors, its
// scratch memory and its pass. Ops: ops/expert_args.h.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/ops/args.h"
#include "rudder/ops/expert_args.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LayerStep;     // branch.h
struct Operand;

// Of ops::RouteArgs, by name.
struct Router {
  ops::RouterKind kind = ops::RouterKind::kSoftmaxThenTop;
  bool renormalises = false;
  float scale = 1;
  int32_t groups = 1;
  int32_t kept_groups = 1;
  bool correction = false;
};

struct Experts {
  int32_t hidden = 0;  // of a row
  int32_t count = 0;
  int32_t chosen = 0;  // for a token
  int32_t width = 0;   // of an expert
  ops::Activation activation = ops::Activation::kSilu;
  Router router;

  // Of its tensors in a checkpoint, behind the layer's prefix; those of an expert e behind
  // "<experts>.<e>." as well.
  struct Names {
    std::string_view router = "mlp.gate";
    std::string_view correction = "mlp.gate.e_score_correction_bias";
    std::string_view experts = "mlp.experts";
    std::string_view gate = "gate_proj";
    std::string_view up = "up_proj";
    std::string_view down = "down_proj";
  };

  struct Weights {
    ops::LinearWeight router;
    ops::View correction;       // [count] f32
    ops::LinearWeight gate_up;  // of ExpertOps::make_experts: gate, up stacked
    ops::LinearWeight down;     // likewise

    const ops::LinearWeight& input() const { return gate_up; }
  };
};

void list_tensors(const Experts& mlp, int64_t hidden, const Experts::Names& names,
                  Experts::Weights* weights, LayerTensors& out);

// Of feed_forward(), in elements a token: the router's logits; what it chose, and the weights; gate
// and up of the chosen experts, activated; the same as the second product takes it, with scales;
// and their outputs.
std::array<int64_t, 7> scratch_widths(const Experts& mlp);

// The router reads its input in act.
inline bool reads_act(const Experts& /*mlp*/) {
  return true;
}

// [T, hidden] of `in` [T, hidden], in the buffer `out`. The site mlp_act is not there, since a
// token has no one row of activations: no program has ops at it.
ops::View feed_forward(const Experts& mlp, const Experts::Weights& weights, const Operand& in,
                       const ops::Taps& taps, const LayerStep& step, const ops::View& out);

}  // namespace rudder::model
