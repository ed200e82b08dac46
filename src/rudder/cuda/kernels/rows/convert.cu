#include "rudder/cuda/kernels/rows/convert.h"

#include <cuda_fp16.h>

#include "rudder/cuda/kernels/device_philox.cuh"
#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"

// Run once a model: an element at a time, its type decided by a branch that all threads take alike.

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 16;

unsigned grid_of(int64_t work) {
  const int64_t blocks = (work + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

__device__ float load_element(const void* from, Element element, int64_t i) {
  switch (element) {
    case Element::kF32:
      return static_cast<const float*>(from)[i];
    case Element::kF16:
      return __half2float(static_cast<const __half*>(from)[i]);
    case Element::kBf16:
      return __bfloat162float(static_cast<const Bf16*>(from)[i]);
    case Element::kFp8:
      return __half2float(__nv_cvt_fp8_to_halfraw(static_cast<const uint8_t*>(from)[i], __NV_E4M3));
  }
  return 0.0f;
}

__device__ void store_element(void* to, Element element, int64_t i, float value) {
  switch (element) {
    case Element::kF32:
      static_cast<float*>(to)[i] = value;
      break;
    case Element::kF16:
      static_cast<__half*>(to)[i] = __float2half_rn(value);
      break;
    case Element::kBf16:
      static_cast<Bf16*>(to)[i] = __float2bfloat16_rn(value);
      break;
    case Element::kFp8:
      static_cast<uint8_t*>(to)[i] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
      break;
  }
}

__device__ int64_t first_index() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}
__device__ int64_t index_step() {
  return int64_t{gridDim.x} * kThreads;
}

__global__ void __launch_bounds__(kThreads) cast_kernel(const CastParams p) {
  dependency_wait();
  dependency_trigger();
#pragma unroll 4
  for (int64_t i = first_index(); i < p.count; i += index_step()) {
    store_element(p.to, p.to_element, i, load_element(p.from, p.from_element, i));
  }
}

__device__ float highest_of(const QuantiseWeightParams& p, int64_t begin, int64_t end,
                            int64_t step) {
  float highest = 0.0f;
#pragma unroll 4
  for (int64_t i = begin; i < end; i += step) {
    highest = fmaxf(highest, fabsf(load_element(p.from, p.element, i)));
  }
  return highest;
}

__global__ void __launch_bounds__(kThreads) quantise_channels_kernel(const QuantiseWeightParams p) {
  __shared__ float scratch[2][32];
  dependency_wait();
  dependency_trigger();
  for (int64_t row = blockIdx.x, turn = 0; row < p.rows; row += gridDim.x, ++turn) {
    const int64_t begin = row * p.width + threadIdx.x;
    const int64_t end = (row + 1) * p.width;
    // Two scratches in turn: a thread may be one row ahead of another, not two.
    const float highest = block_max(highest_of(p, begin, end, kThreads), scratch[turn % 2]);
    const float scale = __fdiv_rn(highest, kFp8Max);
    if (threadIdx.x == 0) p.scale[row] = scale;
#pragma unroll 4
    for (int64_t i = begin; i < end; i += kThreads) {
      store_element(p.to, Element::kFp8, i,
                    scaled_for_fp8(load_element(p.from, p.element, i), scale));
    }
  }
}

__global__ void __launch_bounds__(kThreads) quantise_tensor_kernel(const QuantiseWeightParams p) {
  dependency_wait();
  dependency_trigger();
  const float scale = p.scale[0];
  const int64_t count = p.rows * p.width;
#pragma unroll 4
  for (int64_t i = first_index(); i < count; i += index_step()) {
    store_element(p.to, Element::kFp8, i,
                  scaled_for_fp8(load_element(p.from, p.element, i), scale));
  }
}

__global__ void __launch_bounds__(kThreads) tensor_scale_kernel(const QuantiseWeightParams p) {
  __shared__ float scratch[32];
  dependency_wait();
  dependency_trigger();
  const float highest =
      block_max(highest_of(p, first_index(), p.rows * p.width, index_step()), scratch);
  // Floats that are not negative are ordered as their bits are.
  if (threadIdx.x == 0) {
    atomicMax(reinterpret_cast<int*>(p.scale), __float_as_int(__fdiv_rn(highest, kFp8Max)));
  }
}

// Two normal numbers of two random words: Box and Muller.
__device__ float2 normal_pair(uint32_t a, uint32_t b) {
  const float uniform = (static_cast<float>(a) + 1.0f) * 0x1.0p-32f;  // never 0
  const float radius = sqrtf(-2.0f * logf(fminf(uniform, 1.0f)));
  float sine, cosine;
  sincospif(static_cast<float>(b) * 0x1.0p-31f, &sine, &cosine);
  return make_float2(radius * cosine, radius * sine);
}

// A block of Philox makes four elements.
__global__ void __launch_bounds__(kThreads) fill_random_kernel(const FillRandomParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t blocks = (p.count + 3) / 4;
  for (int64_t block = first_index(); block < blocks; block += index_step()) {
    const uint4 words = philox4x32(p.seed, static_cast<uint64_t>(p.first / 4 + block));
    const float2 low = normal_pair(words.x, words.y);
    const float2 high = normal_pair(words.z, words.w);
    const float z[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t i = block * 4 + j;
      if (i < p.count) store_element(p.to, p.element, i, fmaf(z[j], p.deviation, p.mean));
    }
  }
}

}  // namespace

cudaError_t launch_cast(const CastParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  return launch_pdl(cast_kernel, dim3(grid_of(p.count)), dim3(kThreads), 0, stream, p);
}

cudaError_t launch_quantise_weight(const QuantiseWeightParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  if (p.per_tensor) {
    return launch_pdl(quantise_tensor_kernel, dim3(grid_of(p.rows * p.width)), dim3(kThreads), 0,
                      stream, p);
  }
  return launch_pdl(quantise_channels_kernel, dim3(grid_of(p.rows * kThreads)), dim3(kThreads), 0,
                    stream, p);
}

cudaError_t launch_tensor_scale(const QuantiseWeightParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  return launch_pdl(tensor_scale_kernel, dim3(grid_of(p.rows * p.width)), dim3(kThreads), 0, stream,
                    p);
}

cudaError_t launch_fill_random(const FillRandomParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  return launch_pdl(fill_random_kernel, dim3(grid_of((p.count + 3) / 4)), dim3(kThreads), 0, stream,
                    p);
}

}  // namespace rudder::cuda
