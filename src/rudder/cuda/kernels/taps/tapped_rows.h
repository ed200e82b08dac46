// The row kernels of rows.h with taps: the same ops, and every token's program run on its row while
// the kernel has it in registers. Launched by the host class of this room; reference:
// testing/reference_taps.
//
// A token of row 0 that is not captured has the plain kernel's bits. Shapes, alignments and grids
// are those of the plain kernels; the tables' are in taps.h. An op reads 4 bytes an element for
// each of its vectors, a captured row writes 2. Unaligned vectors or an unaligned ring are taken
// one element at a time, like unaligned rows. A launch with no rows does nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/rows/rows.h"
#include "rudder/cuda/kernels/taps/taps.h"

namespace rudder::cuda {

// The points of a residual norm, in the order in which a token passes them: the branch as it is
// added, the sum twice, the normed row.
inline constexpr int kResidualPoints = 4;
enum ResidualPoint { kDeltaPoint, kFirstXPoint, kSecondXPoint, kOutPoint };

// Taps of a part that the op has not (delta, out) are passed over. hidden <= kMaxTappedRow.
inline constexpr int64_t kMaxTappedRow = 32768;
cudaError_t launch_tapped_residual_norm(const ResidualNormParams& params,
                                        const TapParams<kResidualPoints>& taps,
                                        cudaStream_t stream);

// width <= kMaxQuantisedWidth into fp8, kMaxTappedWidth into bf16.
inline constexpr int64_t kMaxTappedWidth = 57344;
cudaError_t launch_tapped_gated_act(const GatedActParams& params, const TapParams<1>& taps,
                                    cudaStream_t stream);

}  // namespace rudder::cuda
