#include "rudder/cuda/kernels/products/low_product.h"

#include <algorithm>

#include "rudder/cuda/kernels/products/low_gemv.h"
#include "rudder/cuda/kernels/products/low_product.cuh"
#include "rudder/cuda/kernels/products/low_rows.h"
#include "rudder/cuda/kernels/tensor_map.h"

namespace rudder::cuda {
namespace {

// As of the ring (ring_product.cu): a multiprocessor sets apart 228 KB of
// shared memory for it.
constexpr int kFewBytes = 200 << 10;
constexpr int kManyBytes = 218 << 10;
constexpr int kAheadBytes = 32 << 10;
constexpr int kSteadyBytes = 96 << 10;

// Codes less their zeros, whose sums of a chunk are scaled.
bool low_codes_take(const LowBits& form) {
  return form.group == kLowChunk && form.is_zero;
}

int32_t over(int64_t dividend, int64_t divisor) {  // rounded up
  return static_cast<int32_t>((dividend + divisor - 1) / divisor);
}

bool encode_tokens(EncodeTensorMap encode, const LowProductParams& product, int32_t box_rows,
                   bool is_whole, TensorMap& map) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(product.in),
                              static_cast<cuuint64_t>(product.tokens)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(product.in) * (is_whole ? 1 : 2)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(is_whole ? kLowChunk : kLowBoxInputs),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  return encode(reinterpret_cast<CUtensorMap*>(&map),
                is_whole ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
                const_cast<void*>(product.x), size, stride, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int kTokens, int kBlocks, LowCode kCode, LowWay kWay>
cudaError_t launch(const LowProductParams& product, bool splits, int32_t num_sms,
                   cudaStream_t stream) {
  using Kernel = LowKernel<kTokens, kBlocks, kCode, kWay>;
  EncodeTensorMap encode = nullptr;
  cudaError_t error = find_tensor_map_encoder(&encode);
  if (error != cudaSuccess) return error;
  LowWork p;
  p.asked = product;
  p.splits = splits;
  p.writes_runs = !product.y_is_f32 && product.softcap == 0.0f && product.out % 8 == 0 &&
                  reinterpret_cast<uintptr_t>(product.y) % 16 == 0;
  p.block_bytes = low_block_bytes(kCode, product.form.group);
  p.row_blocks = static_cast<int32_t>(low_row_blocks(product.out));
  p.token_tiles = over(product.tokens, kTokens);
  p.tiles = over(p.row_blocks, Kernel::kTileBlocks) * p.token_tiles;
  p.chunks = static_cast<int32_t>(low_chunks(product.in));
  const int bytes = Kernel::kIsMany ? kManyBytes : kFewBytes;
  const int weight_bytes = Kernel::kTileBlocks * p.block_bytes;
  const int slot_bytes = weight_bytes + static_cast<int>(Kernel::kTokenBytes);
  p.slots = std::min(bytes / slot_bytes, kMostLowSlots);
  p.steady_slots = std::clamp(kSteadyBytes / weight_bytes, 1, p.slots);
  p.ahead_slots = std::clamp(kAheadBytes / weight_bytes, 1, p.steady_slots);
  if (!encode_tokens(encode, product, kTokens, Kernel::kIsWhole, p.x)) return cudaErrorInvalidValue;
  auto* const kernel = low_product_kernel<kTokens, kBlocks, kCode, kWay>;
  const int shared = bytes + static_cast<int>(sizeof(LowShared)) +
                     (Kernel::kGroups - 2) / 2 * static_cast<int>(sizeof(LowShared::sums));
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  const int64_t work = splits ? std::max<int64_t>(1, int64_t{p.tiles} * p.chunks / 2) : p.tiles;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(work, num_sms));
  return launch_pdl(kernel, dim3(blocks), dim3(Kernel::kThreads), static_cast<size_t>(shared),
                    stream, p);
}

template <LowCode kCode, LowWay kWay>
cudaError_t launch_many(const LowProductParams& product, const LowShape& shape, int32_t num_sms,
                        cudaStream_t stream) {
  if (shape.blocks == 1 && shape.tokens == 64) {
    return launch<64, 1, kCode, kWay>(product, shape.splits, num_sms, stream);
  }
  if (shape.blocks == 1 && shape.tokens == 128) {
    return launch<128, 1, kCode, kWay>(product, shape.splits, num_sms, stream);
  }
  if constexpr (kWay != LowWay::kCodes) {
    if (shape.blocks == 2 && shape.tokens == 128) {
      return launch<128, 2, kCode, kWay>(product, shape.splits, num_sms, stream);
    }
    if (shape.blocks == 1 && shape.tokens == 256) {
      return launch<256, 1, kCode, kWay>(product, shape.splits, num_sms, stream);
    }
  }
  return cudaErrorInvalidValue;
}

template <LowCode kCode>
cudaError_t launch_codes(const LowProductParams& product, const LowShape& shape, int32_t num_sms,
                         cudaStream_t stream) {
  if (!low_codes_take(product.form)) return cudaErrorInvalidValue;
  if (shape.tokens == 16) {
    return launch<16, 1, kCode, LowWay::kCodes>(product, shape.splits, num_sms, stream);
  }
  if (shape.tokens == 32) {
    return launch<32, 1, kCode, LowWay::kCodes>(product, shape.splits, num_sms, stream);
  }
  return launch_many<kCode, LowWay::kCodes>(product, shape, num_sms, stream);
}

template <LowCode kCode>
cudaError_t launch_shifted(const LowProductParams& product, const LowShape& shape, int32_t num_sms,
                           cudaStream_t stream) {
  if (shape.tokens != 32 || product.form.group < kLowQuarter) return cudaErrorInvalidValue;
  return launch<32, 1, kCode, LowWay::kShifted>(product, shape.splits, num_sms, stream);
}

template <LowCode kCode>
cudaError_t launch_code(const LowProductParams& product, const LowShape& shape, int32_t num_sms,
                        cudaStream_t stream) {
  switch (shape.way) {
    case LowWay::kWhole:
      if constexpr (kCode == LowCode::kI8) {
        return launch_many<kCode, LowWay::kWhole>(product, shape, num_sms, stream);
      }
      break;
    case LowWay::kCodes:
      return launch_codes<kCode>(product, shape, num_sms, stream);
    case LowWay::kShifted:
      return launch_shifted<kCode>(product, shape, num_sms, stream);
    case LowWay::kNumbers:
      if (shape.blocks == 1 && shape.tokens == 32) {
        return launch<32, 1, kCode, LowWay::kNumbers>(product, shape.splits, num_sms, stream);
      }
      return launch_many<kCode, LowWay::kNumbers>(product, shape, num_sms, stream);
    case LowWay::kGemv:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace

LowShape low_shape(const LowBits& form, int64_t tokens, int n) {
  LowShape shapes[6];
  int count = 0;
  if (tokens <= kMostLowGemvTokens) {
    for (const int32_t blocks : {1, 2}) shapes[count++] = {8, blocks, false, LowWay::kGemv};
    return n < count ? shapes[n] : LowShape{};
  }
  const bool is_few = tokens <= kMostCodeTokens && form.group >= kLowQuarter;
  const bool takes_codes = low_codes_take(form) && (is_few || !form.is_by_row);
  const LowWay way = takes_codes      ? LowWay::kCodes
                     : is_few         ? LowWay::kShifted
                     : form.is_by_row ? LowWay::kWhole
                                      : LowWay::kNumbers;
  for (const bool splits : {true, false}) {
    if (tokens <= 64) {
      const int32_t tile = tokens <= 16 && takes_codes ? 16 : tokens <= 32 ? 32 : 64;
      shapes[count++] = {tile, 1, splits, way};
    } else {
      if (!takes_codes) shapes[count++] = {128, 2, splits, way};
      shapes[count++] = {128, 1, splits, way};
      if (tokens > 128) {
        shapes[count++] = {256, 1, splits, takes_codes ? LowWay::kNumbers : way};
      }
    }
  }
  return n < count ? shapes[n] : LowShape{};
}

LowShape low_shape_for_all(int64_t tokens) {
  if (tokens <= 64) return {tokens <= 32 ? 32 : 64, 1, false, LowWay::kNumbers};
  return {128, 2, false, LowWay::kNumbers};
}

cudaError_t launch_low_product(const LowProductParams& product, const LowShape& shape,
                               int32_t num_sms, cudaStream_t stream) {
  if (product.tokens <= 0 || product.out <= 0) return cudaSuccess;
  if (!low_product_takes(product.in)) return cudaErrorInvalidValue;
  if (shape.way == LowWay::kGemv) return launch_low_gemv(product, shape, num_sms, stream);
  if (shape.way == LowWay::kWhole) {
    const int64_t scale_bytes = over(product.tokens, 64) * int64_t{256};
    const int64_t bytes = scale_bytes + product.tokens * product.in;
    if (product.in % 16 != 0 || bytes > product.room_bytes) {
      // More tokens than there is room for: numbers, and so sums without the
      // rounding of tokens.
      LowShape numbers = shape;
      numbers.way = LowWay::kNumbers;
      return launch_code<LowCode::kI8>(product, numbers, num_sms, stream);
    }
    LowRowsParams rows;
    rows.x = product.x;
    rows.rows = product.tokens;
    rows.width = product.in;
    rows.scale = static_cast<float*>(product.room);
    rows.to = static_cast<int8_t*>(product.room) + scale_bytes;
    const cudaError_t error = launch_low_rows(rows, stream);
    if (error != cudaSuccess) return error;
    LowProductParams whole = product;
    whole.x = rows.to;
    whole.x_scale = rows.scale;
    return launch_code<LowCode::kI8>(whole, shape, num_sms, stream);
  }
  switch (product.form.code) {
    case LowCode::kU4:
      return launch_code<LowCode::kU4>(product, shape, num_sms, stream);
    case LowCode::kI8:
      return launch_code<LowCode::kI8>(product, shape, num_sms, stream);
    case LowCode::kE4M3:
      return launch_code<LowCode::kE4M3>(product, shape, num_sms, stream);
    case LowCode::kNone:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace rudder::cuda
