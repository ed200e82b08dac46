// Products of few tokens whose weights go through a ring in shared memory: y[T, out] = x[T, in] .
// W[out, in]^T for T <= 64. What bounds it is reading W once. Up to 200 KB of W for each
// multiprocessor are on their way before the kernel in front has ended, which leaves memory idle.
//
// Grid: a block, one on a multiprocessor, for `rows` rows of W and then for others; or a cluster of
// `splits` blocks, which have a part of `in` each: each block is sent the sums of some rows of W
// and adds them in the order of the parts. The copy engine brings 128 bytes of each row of W and x
// at a time, tensor cores multiply them as x . W^T with 64 rows of x, of which `tokens` are real.
// So a row's sum is taken in the same order whatever T is. Of fp8 tensor cores add 512 columns at a
// time, and fp32 what they give: their own sums keep too few bits of long rows.
//
// Reference: testing/reference_ops.h, reference_linear.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/products/gemv.h"
#include "rudder/cuda/kernels/products/ring_shape.h"

namespace rudder::cuda {

// Where ring_takes(). `product.variant` is not used.
cudaError_t launch_ring_product(const GemvParams& product, const RingShape& shape, int32_t num_sms,
                                cudaStream_t stream);

}  // namespace rudder::cuda
