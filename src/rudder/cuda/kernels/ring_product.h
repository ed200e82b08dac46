// Products of few tokens whose weights go through a ring in shared memory: y[T, out] = x[T, in] .
// W[out, in]^T for T <= 64. What bounds it is reading W once. Up to 200 KB of W for each
// multiprocessor are on their way before the kernel in front has ended, which leaves memory idle.
//
// Grid: a block, one on a multiprocessor, for `rows` rows of W and then for others; or a cluster of
// `splits` blocks, which have a part of `in` each and add their sums in the order of the parts. The
// copy engine brings 128 bytes of each row of W and x at a time, tensor cores multiply them as x .
// W^T with 64 rows of x, of which `tokens` are real. So a row's sum is taken in the same order
// whatever T is. fp8 is added as the library adds it, with fewer bits than fp32 has.
//
// Reference: testing/reference_ops.h, reference_linear.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/gemv.h"

namespace rudder::cuda {

constexpr int64_t kRingMaxTokens = 64;

// How the work is cut up; none if rows is 0. Sums depend on it, so it is part of a policy.
struct RingShape {
  int32_t rows = 0;    // of W, of a block: of kRingRows
  int32_t splits = 1;  // of `in`: of kRingSplits

  bool operator==(const RingShape& other) const {
    return rows == other.rows && splits == other.splits;
  }
};
inline constexpr int32_t kRingRows[] = {32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256};
inline constexpr int32_t kRingSplits[] = {1, 2, 4};

// The n-th best guess for a device of so many multiprocessors, by the bytes that one of them reads.
RingShape guess_ring_shape(const GemvParams& product, int32_t num_sms, int n);

// Whether launch_ring_product takes the product (of its pointers only their alignment counts: 16
// bytes, as of whole rows).
bool ring_takes(const GemvParams& product, const RingShape& shape);

// `product.variant` is not used.
cudaError_t launch_ring_product(const GemvParams& product, const RingShape& shape, int32_t num_sms,
                                cudaStream_t stream);

}  // namespace rudder::cuda
