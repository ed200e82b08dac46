// The operands of products as the copy engine brings them: 128 bytes of some rows at a time.
// Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/products/gemv.h"
#include "rudder/cuda/kernels/products/ring.cuh"
#include "rudder/cuda/kernels/products/ring_shape.h"
#include "rudder/cuda/kernels/tensor_map.h"

namespace rudder::cuda {

// Rows of `in` elements as boxes of 128 bytes of `box_rows` rows; zeros past the end.
inline bool encode_rows(EncodeTensorMap encode, const void* rows, int64_t count,
                        const GemvParams& product, int32_t box_rows, TensorMap& map) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  const bool is_fp8 = product.is_fp8;
  const auto in = static_cast<cuuint64_t>(product.in);
  const cuuint64_t size[2] = {in, static_cast<cuuint64_t>(count)};
  const cuuint64_t stride[1] = {in * (is_fp8 ? 1 : 2)};
  const cuuint32_t box[2] = {
      static_cast<cuuint32_t>(is_fp8 ? kRingChunkBytes : kRingChunkBytes / 2),
      static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  return encode(reinterpret_cast<CUtensorMap*>(&map),
                is_fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
                const_cast<void*>(rows), size, stride, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace rudder::cuda
