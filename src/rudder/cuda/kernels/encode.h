// The whole encode (ops::EncodeArgs): runs of kEncode on the rows of those tokens that ask for one.
// Formulas: tap/dictionary_head.h, tap/tap_op.h; reference: src/rudder/cpu/encode.cpp.
//
// One launch of as many blocks as the device has multiprocessors, which wait for each other. The
// blocks find the tokens themselves, so the launch has the same shape whatever encodes. Up to
// tap::kEncodedRows tokens of one dictionary are encoded at a time: each encoder row is read once
// for all of them. Without a token that encodes, a launch reads the tokens' entries and ends.
//
// Sums are fp32, in an order that the dictionary's shape alone decides: a row's bits do not depend
// on its batch. Reads num_features * d_in * 4 bytes for each group of tokens, and writes and reads
// num_features * 4 bytes a token.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/taps.h"

namespace rudder::cuda {

// Of x: rows lie in a block's shared memory, one of them at least.
inline constexpr int64_t kMaxEncodedWidth = 65536;

struct EncodeParams {
  TapTableParams table;
  TapBatchParams batch;
  int32_t point = 0;
  int32_t num_blocks = 0;  // that run at the same time: multiprocessors
  void* x = nullptr;       // [T, width] bf16, in place
  int64_t rows = 0;        // T
  int64_t width = 0;
  float* features = nullptr;  // [tap::kEncodedRows, feature_stride]
  int64_t feature_stride = 0;
};
cudaError_t launch_encode(const EncodeParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
