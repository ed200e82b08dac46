#include "rudder/cuda/kernels/products/linear_epilogue.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxGridRows = 32768;

__device__ __forceinline__ float read(const __nv_bfloat16* p) {
  return __bfloat162float(*p);
}
__device__ __forceinline__ float read(const float* p) {
  return *p;
}
__device__ __forceinline__ void write(__nv_bfloat16* p, float v) {
  *p = __float2bfloat16_rn(v);
}
__device__ __forceinline__ void write(float* p, float v) {
  *p = v;
}

// kWidth consecutive columns of a row, moved in accesses of up to 16 bytes.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth < 16 ? sizeof(T) * kWidth : 16) Pack {
  T v[kWidth];
};

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const __grid_constant__ ScaleRowsColsParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t col = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  if (col >= p.cols) return;
  float w_scale[kWidth];
  float bias[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    w_scale[i] = p.w_scale != nullptr ? p.w_scale[col + i] : 1.0f;
    bias[i] = p.bias != nullptr ? read(static_cast<const __nv_bfloat16*>(p.bias) + col + i) : 0.0f;
  }
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    auto* const at = reinterpret_cast<Pack<T, kWidth>*>(static_cast<T*>(p.y) + row * p.cols + col);
    const float x_scale = p.x_scale != nullptr ? p.x_scale[row] : 1.0f;
    Pack<T, kWidth> pack = *at;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float v = (read(pack.v + i) * (x_scale * w_scale[i]) + bias[i]) * p.factor;
      if (p.softcap != 0.0f) v = p.softcap * tanhf(v / p.softcap);
      write(pack.v + i, v);
    }
    *at = pack;
  }
}

template <typename T, int kWidth>
cudaError_t launch_scale(const ScaleRowsColsParams& p, cudaStream_t stream) {
  const int64_t per_block = int64_t{kThreads} * kWidth;
  const dim3 grid(static_cast<unsigned>((p.cols + per_block - 1) / per_block),
                  static_cast<unsigned>(p.rows < kMaxGridRows ? p.rows : kMaxGridRows));
  return launch_pdl(scale_kernel<T, kWidth>, grid, dim3(kThreads), 0, stream, p);
}

__global__ void __launch_bounds__(kThreads)
    embed_fp8_kernel(const __grid_constant__ EmbedFp8Params p) {
  dependency_wait();
  dependency_trigger();
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t id = p.ids[row];
    const float scale = p.w_scale[id];
    const auto* from = static_cast<const __nv_fp8_e4m3*>(p.table) + id * p.hidden;
    auto* to = static_cast<__nv_bfloat16*>(p.out) + row * p.hidden;
    for (int64_t i = threadIdx.x; i < p.hidden; i += kThreads) {
      to[i] = __float2bfloat16_rn(static_cast<float>(from[i]) * scale * p.scale);
    }
  }
}

}  // namespace

cudaError_t launch_scale_rows_cols(const ScaleRowsColsParams& params, cudaStream_t stream) {
  if (params.rows <= 0 || params.cols <= 0) return cudaSuccess;
  const bool wide = params.cols % 8 == 0 && reinterpret_cast<uintptr_t>(params.y) % 16 == 0;
  if (params.y_is_f32) {
    return wide ? launch_scale<float, 8>(params, stream) : launch_scale<float, 1>(params, stream);
  }
  return wide ? launch_scale<__nv_bfloat16, 8>(params, stream)
              : launch_scale<__nv_bfloat16, 1>(params, stream);
}

cudaError_t launch_embed_fp8(const EmbedFp8Params& params, cudaStream_t stream) {
  if (params.rows <= 0 || params.hidden <= 0) return cudaSuccess;
  const auto blocks =
      static_cast<unsigned>(params.rows < kMaxGridRows ? params.rows : kMaxGridRows);
  return launch_pdl(embed_fp8_kernel, dim3(blocks), dim3(kThreads), 0, stream, params);
}

}  // namespace rudder::cuda
