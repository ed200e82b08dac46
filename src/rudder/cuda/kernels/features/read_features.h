// The features of captured rows (ops::ReadFeaturesArgs), which a reader tells beside the steps.
// Formulas: tap/dictionary_head.h; reference: src/rudder/cpu/read_features.cpp.
//
// Floor: reading the encoder once for up to tap::kEncodedRows rows, as encode.h says: 75 MB, 24 us
// at 3.1 TB/s, for 16,384 features of width 2,304 in bf16. Features that are listed cost their own
// encoder rows.
//
// Two launches, of the product that encode() runs and of a block for each row that picks what is
// told. Neither waits for blocks of its own, as encode() does: a launch of a reader runs where
// steps leave room, and a block that waits for others would keep it from them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/features/encode.h"
#include "rudder/ops/top_feature.h"

namespace rudder::cuda {

struct ReadFeaturesParams {
  // x, width, rows and num_blocks; features and feature_stride are where the product goes: to
  // `values` where needs_all is false.
  EncodeParams product;
  const float* image = nullptr;  // the head, and what it leads to
  int32_t num_features = 0;
  int32_t k = 0;
  bool needs_all = true;
  const int32_t* listed = nullptr;
  int32_t num_listed = 0;
  float* values = nullptr;  // [rows, num_listed]
  ops::TopFeature* top = nullptr;
  int32_t num_top = 0;  // at most ops::kMostTopFeatures
};
cudaError_t launch_read_features(const ReadFeaturesParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
