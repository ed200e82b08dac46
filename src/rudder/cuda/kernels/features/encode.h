// The whole encode (ops::EncodeArgs): runs of kEncode on the rows of those tokens that ask for one.
// Formulas: tap/dictionary_head.h, tap/tap_op.h; reference: src/rudder/cpu/encode.cpp.
//
// Floor: reading the encoder once for each tap::kEncodedRows tokens of a dictionary, num_features *
// d_in * 2 bytes (4 of f32), at the memory's bandwidth: 23 us for 16,384 features of width 2,304 in
// bf16, at 3.35 TB/s. What else is moved is small beside it: num_features * 4 bytes of values a
// token, written and read back through L2, and the decoder rows of active features.
//
// One launch of as many blocks as the device has multiprocessors, which wait for each other. The
// blocks find the tokens themselves, so the launch has the same shape whatever encodes. A batch is
// up to tap::kEncodedRows tokens of one dictionary:
//
//   encode_product.cuh  each block has some features, of all the batch's rows: tensor cores;
//                       of few rows encode_flow.cuh
//   (all blocks wait)
//   encode_apply.cuh    a block has some columns of one row: the k largest, decode(f), edits
//
// Without a token that encodes, a launch reads the tokens' entries and ends.
//
// Sums are fp32, in an order that the dictionary's shape alone decides: a row's bits do not depend
// on its batch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/taps/taps.h"

namespace rudder::cuda {

// Of x: a row lies in a block's shared memory.
inline constexpr int64_t kMaxEncodedWidth = 65536;

// What a block passes, in this order; for programs that time the kernel.
enum class EncodeMark {
  kBegin,
  kFound,       // its first batch of rows
  kMultiplied,  // its share of the features
  kMet,         // all blocks
  kTaken,       // a row and its features
  kChosen,      // the features that are kept
  kListed,
  kEnd,
};
inline constexpr int kNumEncodeMarks = static_cast<int>(EncodeMark::kEnd) + 1;

struct EncodeParams {
  TapTableParams table;
  TapBatchParams batch;
  int32_t point = 0;
  int32_t num_blocks = 0;  // that run at the same time: multiprocessors
  void* x = nullptr;       // [T, width] bf16, in place
  int64_t rows = 0;        // T
  int64_t width = 0;
  // [tap::kEncodedRows, feature_stride]: features, and of each tile of them the largest, if asked
  // for.
  float* features = nullptr;
  float* largest = nullptr;
  int64_t feature_stride = 0;
  void* before = nullptr;    // [tap::kEncodedRows, width] bf16: rows of the batch as they were
  int64_t* marks = nullptr;  // [num_blocks, kNumEncodeMarks] cycles; optional
};
cudaError_t launch_encode(const EncodeParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
