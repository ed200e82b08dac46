// A model's forward pass in double precision, naively, one sequence from its first token on: what
// the decoder's use of every field of a ModelSpec is held to. Tests only.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/testing/reference_ops.h"
#include "rudder/testing/remembering_ops.h"

namespace rudder::testing {

// Read or change what the pass has at some points, of all ids.
struct ReferenceHooks {
  // What the mixer of a layer made, attn_z: [ids.size(), heads * head_dim].
  std::function<void(size_t layer, Matrix& mixed)> mixed = {};
  // The residual at a residual point: its streams, [ids.size(), hidden] each.
  std::function<void(tap::Point point, std::vector<Matrix>& streams)> residual = {};
};

// Logits [ids.size(), vocab] of weights that `ops` made. `patterns`, when given, gets for each
// layer and head the weights of attention [ids.size(), ids.size()].
Matrix reference_forward(const model::ModelSpec& spec, const model::Weights& weights,
                         const RememberingOps& ops, std::span<const int32_t> ids,
                         const ReferenceHooks& hooks = {},
                         std::vector<std::vector<Matrix>>* patterns = nullptr);

}  // namespace rudder::testing
