#include "rudder/testing/tiny_experts.h"

namespace rudder::testing {

void add_experts(model::ModelSpec& spec) {
  const model::Router router{.renormalises = true};
  model::Experts experts{.hidden = 64, .count = 8, .chosen = 3, .width = 32, .router = router};
  experts.shared_width = 32;
  spec.layers.front().mlp = experts;
  experts.shared_width = 48;
  experts.shared_gate = true;
  experts.router = {ops::RouterKind::kSigmoid, true, 1.75f, 4, 2, true};
  spec.layers.back().mlp = experts;
}

void add_normed_experts(model::ModelSpec& spec) {
  model::Experts experts{.hidden = 64,
                         .count = 8,
                         .chosen = 3,
                         .width = 32,
                         .activation = ops::Activation::kGeluTanh,
                         .router = {.renormalises = true, .scales_experts = true}};
  experts.shared_width = 48;
  experts.shared_activation = experts.activation;
  experts.own_norms = true;
  spec.layers.front().mlp = experts;
}

void add_biased_experts(model::ModelSpec& spec) {
  model::Experts experts{.hidden = 64,
                         .count = 6,
                         .chosen = 2,
                         .width = 48,
                         .activation = ops::Activation::kClampedSwiglu,
                         .bias = true,
                         .router = {.kind = ops::RouterKind::kTopThenSoftmax, .bias = true}};
  experts.shared_activation = experts.activation;
  for (model::LayerSpec& layer : spec.layers) {
    layer.mlp = experts;
    experts.shared_width = 80;
  }
  attention_of(spec.layers.front())->window = 24;
  attention_of(spec.layers.back())->window = 24;
}

}  // namespace rudder::testing
