// UnscaledProduct: the last product, if it was enqueued without its scales, which the next op takes
// or has applied. CudaOps owns the one object.
#pragma once

#include <utility>

#include "rudder/cuda/kernels/products/product_scales.h"
#include "rudder/tensor/view.h"

namespace rudder::cuda {

struct UnscaledProduct {
  tensor::View y;
  ProductScales scales;

  // `product` is the last one, and without its scales.
  bool is(const tensor::View& product) const {
    return scales.row != nullptr && product.data == y.data && product.shape == y.shape;
  }
  // The scales that the op at hand, which reads `product`, is to apply.
  ProductScales take(const tensor::View& product) {
    return is(product) ? std::exchange(*this, {}).scales : ProductScales{};
  }
};

}  // namespace rudder::cuda
