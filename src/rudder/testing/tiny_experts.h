// Mixtures of experts for tiny models (tiny_model.h), which it fills in.
#pragma once

#include "rudder/model/spec.h"

namespace rudder::testing {

// The first layer and the last choose among experts, each in its way.
void add_experts(model::ModelSpec& spec);
// Every layer chooses among experts with biases and clamped gates; all but the first have a shared
// MLP. The first and the last have a window.
void add_biased_experts(model::ModelSpec& spec);
// The first layer, with Experts.own_norms.
void add_normed_experts(model::ModelSpec& spec);

}  // namespace rudder::testing
