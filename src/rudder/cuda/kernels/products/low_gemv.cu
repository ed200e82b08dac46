#include "rudder/cuda/kernels/products/low_gemv.h"

#include <algorithm>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/products/low_gemv.cuh"

namespace rudder::cuda {
namespace {

// A block alone on its multiprocessor, less the registers that the small kernel beside it needs.
template <LowCode kCode, int kParts, int kWarps, int kDepth>
__global__ void __maxnreg__(128) low_gemv_kernel(const __grid_constant__ LowGemvWork p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t x_full;
  __shared__ uint64_t sums_come;
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&x_full), 1);
    barrier_init(shared_address(&sums_come), 1);
    barrier_init_fence();
  }
  __syncthreads();
  LowGemv<kCode, kParts, kWarps, kDepth>(p, shared, shared_address(&x_full),
                                         shared_address(&sums_come))
      .run();
}

int32_t over(int64_t dividend, int64_t divisor) {  // rounded up
  return static_cast<int32_t>((dividend + divisor - 1) / divisor);
}

template <LowCode kCode, int kParts, int kWarps, int kDepth>
cudaError_t launch(const LowProductParams& product, int32_t splits, int32_t num_sms,
                   cudaStream_t stream) {
  using Kernel = LowGemv<kCode, kParts, kWarps, kDepth>;
  LowGemvWork p;
  p.asked = product;
  p.block_bytes = low_block_bytes(kCode, product.form.group);
  p.chunks = static_cast<int32_t>(low_chunks(product.in));
  p.units = over(product.out, Kernel::kUnitRows);
  p.of_token = static_cast<uint32_t>(over(65536, product.tokens));
  p.splits = splits;
  while (1 << p.split_shift < splits) ++p.split_shift;
  p.most_units = over(p.units, std::max(1, num_sms / splits));
  const int32_t of_block = over(p.chunks, splits);
  for (p.parts = 1; p.parts <= of_block; ++p.parts) {
    p.part_chunks = over(of_block, p.parts);
    p.token_stride = p.part_chunks * kChunkRowBytes + kRowPadBytes;
    const int32_t bytes = std::max(kLeastSharedBytes, Kernel::offsets(p).end);
    if (bytes > kMostSharedBytes) continue;
    auto* const kernel = low_gemv_kernel<kCode, kParts, kWarps, kDepth>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
    if (error != cudaSuccess) return error;
    // With the division of a multiprocessor's memory that kernels in front of a product ask for.
    return launch_pdl_in_front(kernel,
                               dim3(static_cast<unsigned>(over(p.units, p.most_units) * splits)),
                               dim3(Kernel::kThreads), static_cast<size_t>(bytes),
                               static_cast<unsigned>(splits), true, stream, p);
  }
  return cudaErrorInvalidValue;
}

template <LowCode kCode, int kParts>
cudaError_t launch_depth(const LowProductParams& product, int32_t blocks, int32_t num_sms,
                         cudaStream_t stream) {
  constexpr int kWarps = 12;
  // More tokens leave room for fewer tasks ahead.
  return product.tokens <= 4 ? launch<kCode, kParts, kWarps, 3>(product, blocks, num_sms, stream)
                             : launch<kCode, kParts, kWarps, 2>(product, blocks, num_sms, stream);
}
template <LowCode kCode>
cudaError_t launch_parts(const LowProductParams& product, int32_t blocks, int32_t num_sms,
                         cudaStream_t stream) {
  if (product.form.group == kLowChunk) {
    return launch_depth<kCode, 1>(product, blocks, num_sms, stream);
  }
  if (product.form.group > 16) return launch_depth<kCode, 4>(product, blocks, num_sms, stream);
  return launch_depth<kCode, 8>(product, blocks, num_sms, stream);
}

}  // namespace

cudaError_t launch_low_gemv(const LowProductParams& product, const LowShape& shape, int32_t num_sms,
                            cudaStream_t stream) {
  if (product.tokens <= 0 || product.out <= 0) return cudaSuccess;
  if (!low_product_takes(product.in) || product.tokens > kMostLowGemvTokens ||
      num_sms < shape.blocks) {
    return cudaErrorInvalidValue;
  }
  switch (product.form.code) {
    case LowCode::kU4:
      return launch_parts<LowCode::kU4>(product, shape.blocks, num_sms, stream);
    case LowCode::kI8:
      return launch_parts<LowCode::kI8>(product, shape.blocks, num_sms, stream);
    case LowCode::kE4M3:
      return launch_parts<LowCode::kE4M3>(product, shape.blocks, num_sms, stream);
    case LowCode::kNone:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace rudder::cuda
