// A mixture of experts: a router chooses some of many gated MLPs for each token, and the token's
// output is the weighted sum of theirs. One of the MLPs that a layer may have (spec.h). This file
// and its .cpp hold all that is particular to this kind of branch: its numbers, its tensors, its
// scratch memory and its pass. Ops: ops/expert_args.h.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/model/quantised/in_stack.h"
#include "rudder/ops/args.h"
#include "rudder/ops/expert_args.h"
#include "rudder/tap/site.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LayerStep;     // branch.h
struct MlpTaps;
struct Operand;

// Of ops::RouteArgs, by name.
struct Router {
  ops::RouterKind kind = ops::RouterKind::kSoftmaxThenTop;
  bool renormalises = false;
  float scale = 1;
  int32_t groups = 1;
  int32_t kept_groups = 1;
  bool correction = false;
  bool bias = false;  // of the product that makes its logits
  bool scales_experts = false;
};

struct Experts {
  int32_t hidden = 0;  // of a row
  int32_t count = 0;
  int32_t chosen = 0;  // for a token
  int32_t width = 0;   // of an expert
  ops::Activation activation = ops::Activation::kSilu;
  bool bias = false;  // of an expert's products
  Router router;
  int32_t shared_width = 0;  // of an expert that every token has beside its own; 0: there is none
  ops::Activation shared_activation = ops::Activation::kSilu;
  bool shared_gate = false;  // which is weighted by a number of the token, behind a sigmoid
  // The layer's norm in front of the MLP is the shared expert's alone. The router and the others
  // read the residual x by norms of their own, and what is summed is normed:
  //   norm(shared(in)) + norm(sum of weights * experts(norm(x))), the weights of norm(x)
  // Source: transformers, Gemma4TextDecoderLayer with enable_moe_block.
  bool own_norms = false;
  // Ranks divide the experts, not the neurons of each (expert parallel). What a shared expert has
  // and the router are divided as without it.
  bool by_expert = false;
  int32_t first = 0;  // of the experts that this rank has, then

  // Of its tensors in a checkpoint, behind the layer's prefix; those of an expert e behind
  // "<experts>.<e>." as well. With a name for gate and up there is one tensor of all experts for
  // them, and one for down (LayerTensors::add_stacked_experts); where a checkpoint has such tensors
  // of a family that is read with one for each expert, names_in says so (tensor_names.h).
  struct Names {
    std::string_view router = "mlp.gate";
    std::string_view correction = "mlp.gate.e_score_correction_bias";
    std::string_view experts = "mlp.experts";
    std::string_view gate = "gate_proj";
    std::string_view up = "up_proj";
    std::string_view down = "down_proj";
    std::string_view stacked_gate_up = "";
    StackForm stack_form = StackForm::kInTurn;
    std::vector<std::string_view> shared_gate_up = {"mlp.shared_expert.gate_proj",
                                                    "mlp.shared_expert.up_proj"};
    std::string_view shared_down = "mlp.shared_expert.down_proj";
    std::string_view shared_gate = "mlp.shared_expert_gate";
    std::string_view expert_scales = "router.per_expert_scale";
    // With own_norms. The router's multiplies by what is stored / sqrt(hidden).
    std::string_view router_norm = "router.scale";
    std::string_view pre_norm = "pre_feedforward_layernorm_2";
    std::string_view post_norm = "post_feedforward_layernorm_2";
    std::string_view shared_post_norm = "post_feedforward_layernorm_1";
  };

  struct Weights {
    ops::LinearWeight router;
    ops::View correction;       // [count] f32
    ops::LinearWeight gate_up;  // of ExpertOps::make_experts: gate, up stacked
    ops::LinearWeight down;     // likewise
    ops::LinearWeight shared_gate_up;
    ops::LinearWeight shared_down;
    ops::LinearWeight shared_gate;
    ops::View expert_scales;    // [count] f32
    ops::NormSpec router_norm;  // these with own_norms alone
    ops::NormSpec pre_norm;
    ops::NormSpec post_norm;
    ops::NormSpec shared_post_norm;

    const ops::LinearWeight& input() const { return pre_norm.empty() ? gate_up : shared_gate_up; }
  };
};

void list_tensors(const Experts& mlp, int64_t hidden, const Experts::Names& names,
                  Experts::Weights* weights, LayerTensors& out);

// Of feed_forward(), in elements a token: the router's logits; what it chose, and the weights; gate
// and up of the chosen experts, activated; the same as the second product takes it, with scales;
// their outputs; of the shared expert gate and up, activated, its output, its gate; what the router
// and the experts read by norms of their own.
std::array<int64_t, 12> scratch_widths(const Experts& mlp);

// The router reads its input in act.
inline bool reads_act(const Experts& /*mlp*/) {
  return true;
}

inline bool sums_ranks(const Experts& mlp) {
  return mlp.own_norms;
}
// As taps are told of it.
tap::Routing routing_of(const Experts& mlp);

// [T, hidden] of `in` [T, hidden], in the buffer `out`. The site mlp_act is not there, since a
// token has no one row of activations: no program has ops at it. Its own are router_logits and
// routed_experts.
ops::View feed_forward(const Experts& mlp, const Experts::Weights& weights, const Operand& in,
                       const MlpTaps& taps, const LayerStep& step, const ops::View& out);

}  // namespace rudder::model
