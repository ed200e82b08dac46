// Arguments of ExpertOps (facets.h), the ops of an MLP that is a mixture of experts
// (model/experts.h).
#pragma once

#include <cstdint>
#include <optional>

#include "rudder/ops/args.h"
#include "rudder/ops/router_kind.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// Added to a sum that weights are divided by: sigmoids may all be 0.
inline constexpr float kLeastRouterSum = 1e-20f;

// Sums are in fp32. With a router the op first makes the logits, x times its weight.
struct RouteArgs {
  View x = {};                           // [T, in] act, with `router`
  const LinearWeight* router = nullptr;  // takes rows in act
  View logits;                           // [T, experts] act
  View correction = {};  // [experts] f32, of kSigmoid: enters the choice alone; optional
  RouterKind kind = RouterKind::kSoftmaxThenTop;
  bool renormalises = false;  // weights are divided by their sum
  float scale = 1.0f;         // and multiplied by that
  View expert_scales = {};    // [experts] f32: and by the chosen expert's; optional
  // The experts lie in `groups` runs of equal length. A group's score is the sum of its two largest
  // p + correction; all but the `kept_groups` of the largest scores take no part in the choice.
  int32_t groups = 1;
  int32_t kept_groups = 1;
  View chosen;   // [T, k] i32, in the order of what was chosen by, the largest first
  View weights;  // [T, k] f32
};

// A route() with taps (RouterTapOps), in place of the plain one; a token without ops and captures
// has its bits. The ops and captures of router_logits work on the logits in fp32, those of kExperts
// with lo > 0 on the scores that experts are chosen by: p + correction. Groups are chosen by the
// changed scores, and weights are those of what the scores were (RouterKind).
struct RouteTappedArgs {
  RouteArgs route;
  Taps logits;  // of router_logits
  Taps chosen;  // of routed_experts: captured alone
};

// Row t * k + j of `out` is x times the weight of expert chosen[t, j], and that expert's bias where
// its parts have one (LinearPart.bias); 0 where the weight has other experts. x has one row a
// token, which all of its experts read, or one for each of them.
struct ExpertLinearArgs {
  View x;                                // [T, in] or [T * k, in], in the form weight->input
  View x_scale = {};                     // [rows of x] f32, when x is F8E4M3
  View chosen;                           // [T, k] i32
  const LinearWeight* weight = nullptr;  // of make_experts
  int64_t first = 0;                     // of its experts
  // Where there is one, the product's rows are gate and up side by side, and out = act(gate) * up
  // of them (GatedActArgs), half as wide.
  std::optional<Activation> activation = {};
  View out = {};  // [T * k, out] act, or [T * k, out / 2] with an activation
};

// out_t = sum over j of weights[t, j] * x_(t * k + j), in the order of j; then, where there is one,
// plus what the shared expert made, times sigmoid(shared_gate_t) where there is a gate.
struct CombineExpertsArgs {
  View x = {};            // [T * k, hidden] act
  View weights;           // [T, k] f32
  View shared = {};       // [T, hidden] act; may be `out`
  View shared_gate = {};  // [T, 1] act
  View out;               // [T, hidden] act
};

// The first product of the expert that every token has, from what the chosen ones' x is.
struct OpenSharedArgs {
  const LinearWeight* weight = nullptr;  // rows of gate, then of up; null: there is none
  Activation activation = Activation::kSilu;
  View out;                            // [T, out / 2] act
  const LinearWeight* next = nullptr;  // multiplies `out`
};
// And its second product, which takes the place of CombineExpertsArgs.shared.
struct CloseSharedArgs {
  View x;                                // [T, in] act
  const LinearWeight* weight = nullptr;  // null: there is none
  View gate_x = {};                      // [T, hidden] act, with `gate`
  const LinearWeight* gate = nullptr;    // one row that takes rows in act, of shared_gate; optional
};

// A route(), without a router that is adapted or tapped, and the first product of what it chose.
struct OpenExpertsArgs {
  RouteArgs route = {};                // without logits `chosen` is there
  ExpertLinearArgs first;              // with an activation; of route.chosen
  const LinearWeight* next = nullptr;  // multiplies `first.out`
  OpenSharedArgs shared = {};
};
// The second product of rows in act, quantised where the weight takes them so, and their sum.
struct CloseExpertsArgs {
  ExpertLinearArgs second;  // its `out` is none
  CombineExpertsArgs sum;   // its `x` is none
  CloseSharedArgs shared = {};
};

}  // namespace rudder::ops
