// Products of low-bit weights with few tokens. Reading W once bounds them: out *
// in * (bits / 8 + 4 / group) bytes. Near it is what takes codes to bf16: of 16
// rows and 128 inputs some 56 instructions, of which a multiprocessor begins 64
// lanes' a clock.
//
// A block has so many whole units of 16 rows of W, of 4 bits of 32, as many as any other,
// and all of their inputs, or those of one of the blocks of its cluster. Its
// tasks, of a unit and a chunk of 128 inputs, are cut evenly among its warps, one
// unit after the other. A warp brings its tasks' codes and scales itself, each
// lane what it multiplies, some tasks ahead and the first of them before the
// kernel in front has ended; no warp waits for another until all are done. Then
// a unit's sums are added in the order of the warps, and these in the order of
// the cluster's blocks, each of which adds its share of the rows. The tokens lie
// in shared memory, all that the block multiplies or one part after the other.
//
// Codes are multiplied as in low_product.h. The order of a sum follows from W's
// shape, the number of tokens, LowShape and the number of multiprocessors.
//
// Reference: testing/reference_ops.h, reference_linear.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/products/low_product.h"

namespace rudder::cuda {

constexpr int32_t kMostLowGemvTokens = 8;

// Of `product`: all but x_scale, room, parts and flags. shape.blocks: of a cluster.
cudaError_t launch_low_gemv(const LowProductParams& product, const LowShape& shape, int32_t num_sms,
                            cudaStream_t stream);

}  // namespace rudder::cuda
