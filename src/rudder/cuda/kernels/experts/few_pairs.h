// Products of pairs with the weights of their experts, as expert_product.h has them, where few
// pairs fall on an expert; and of LowBits (products/low_bits.h) with any number of pairs.
//
// What bounds it: reading W of the experts that are hit, once. One token of gpt-oss-20b (in 2880,
// out 2 * 2880; and back; 4 of 32 experts, MXFP4) reads 53 MB a layer, 12.0 us at 4.4 TB/s; of
// Qwen3-30B-A3B (in 2048, out 2 * 768; and back; 8 of 128) 37.7 MB in fp8, 8.6 us, and 20 MB in
// codes of 4 bits in groups of 128, 4.6 us. With more pairs an expert: the instructions that make
// numbers of codes, of MXFP4 about 2.4 each, of codes of 4 bits 1; whatever the pairs are, each is
// made once a tile. Then mma of a warp, which have about six tenths of what wgmma have.
//
// What makes it cheaper than tiles of wgmma: no number of W goes through shared memory. A warp has
// 16 rows of W as operand A of mma; what its lanes multiply they load themselves, some chunks
// ahead, in the order in which W lies (few_pairs_forms.cuh). Rows 0 to 7 of 16 are of gate, 8 to 15
// of up, so that a lane has both of a column. The tokens of a run are operand B, up to 32, and lie
// in shared memory for all tiles of rows that a block takes of the run.
//
// Grid: a block on each multiprocessor, with an equal part of the list's runs times tiles. Four
// warps are a team and take every fourth chunk of a tile's inputs each; their sums are added in
// that order. So an element's bits depend on the shape of W alone, not on other pairs, nor on how
// many there are.
//
// Reference: testing/reference_ops.h, reference_linear.
#pragma once

#include <cuda_runtime_api.h>

#include "rudder/cuda/kernels/experts/expert_product.h"

namespace rudder::cuda {

// Whether it takes this product, with so many pairs in a run; and is better than tiles of wgmma.
bool few_pairs_take(const ExpertProductParams& params);

// LowBits of an expert: rows of gate and up in turn, eight of each, where `interleaves`.
constexpr int32_t kInterleavedRows = 8;

cudaError_t launch_few_pairs(const ExpertProductParams& params, int32_t num_sms,
                             cudaStream_t stream);
// Of LowBits, in a source of its own.
cudaError_t launch_few_pairs_low(const ExpertProductParams& params, int32_t num_sms,
                                 cudaStream_t stream);

}  // namespace rudder::cuda
