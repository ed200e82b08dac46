// A model's forward pass in double precision, naively, one sequence from its first token on: what
// the decoder's use of every field of a ModelSpec is held to. Tests only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/reference_ops.h"

namespace rudder::testing {

// The CPU's reference ops, which remember the matrices of the weights that they pack.
class RememberingOps final : public PassingOps {
 public:
  struct Product {
    Matrix weight;  // [out, in]
    Matrix bias;    // [1, out], or empty
  };

  RememberingOps();

  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override;
  // Of experts: their matrices one below the other.
  Result<ops::LinearWeight> make_experts(std::span<const ops::LinearPart> parts,
                                         int64_t experts) override;
  const Product& product_of(const ops::LinearWeight& weight) const {
    return products_.at(weight.packed.get());
  }

 private:
  void remember(const ops::LinearWeight& weight, std::span<const ops::LinearPart> parts);

  std::map<const ops::PackedWeight*, Product> products_;
};

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
