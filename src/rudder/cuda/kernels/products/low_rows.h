// Rows in whole numbers of 8 bits, in front of products of weights of as many
// (low_product.h): x[t, k] = scale[t] * stored, scale = max |x[t]| / 127, to
// nearest. Reads rows * width * 2 bytes and writes half of them. Of each 16
// inputs, stored in the order in which a lane has codes of a weight: place 4t +
// i has input 2t, 2t + 1, 2t + 8 or 2t + 9.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

struct LowRowsParams {
  const void* x = nullptr;  // [rows, width] bf16, 16-byte aligned; width a multiple of 16
  int64_t rows = 0;
  int64_t width = 0;
  int8_t* to = nullptr;    // [rows, width]; 16-byte aligned
  float* scale = nullptr;  // [rows]
};
cudaError_t launch_low_rows(const LowRowsParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
