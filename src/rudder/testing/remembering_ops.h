// RememberingOps: the CPU's reference ops, which remember the matrices of the weights that they
// pack. Tests only.
#pragma once

#include <map>
#include <span>

#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/reference_ops.h"

namespace rudder::testing {

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

}  // namespace rudder::testing
