// Products of many tokens whose sums are taken in the order of ring_product.h: y[T, out] = x[T, in]
// . W[out, in]^T, for any T. An element has the bits that it has there with as many splits, so a
// row's product does not depend on the rows beside it, from one row to thousands.
//
// What bounds it: up to about 200 rows reading W once (out * in elements), above 2 * T * out * in
// operations of the tensor cores, which add 64 x rows x 16 (bf16) or 32 (fp8) at a time.
//
// Grid: a block on each multiprocessor, for tiles of 128 rows of x by `rows` of W in turn. The copy
// engine brings 128 bytes of each row at a time, two warpgroups multiply, 64 rows of x each. A part
// of `in` has sums of its own, which are added in the order of the parts: by a block that takes
// the parts in turn, or in a cluster that has a block for each, where tiles are few. Of fp8 tensor
// cores add 512 columns at a time, and fp32 what they give.
//
// Reference: testing/reference_ops.h, reference_linear.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/products/gemv.h"
#include "rudder/cuda/kernels/products/tile_shape.h"

namespace rudder::cuda {

// Where tile_takes(). `product.variant` is not used.
cudaError_t launch_tile_product(const GemvParams& product, const TileShape& shape, int32_t num_sms,
                                cudaStream_t stream);

}  // namespace rudder::cuda
