// The ops of a residual that are one pass over their rows.
#include <algorithm>

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/streams/streams.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;

dim3 columns_grid(int64_t rows, int64_t width) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>((width + kThreads - 1) / kThreads));
}
__device__ int64_t own_column() {
  return int64_t{blockIdx.y} * kThreads + threadIdx.x;
}

__global__ void __launch_bounds__(kThreads) mix_streams_kernel(const MixStreamsParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t k = own_column();
  if (k >= p.width) return;
  const int64_t row = blockIdx.x;
  Bf16* const x = static_cast<Bf16*>(p.x) + row * p.streams * p.width + k;
  if (p.delta != nullptr) {
    const float branch = __bfloat162float(static_cast<const Bf16*>(p.delta)[row * p.width + k]);
    float before[kMostStreams];
#pragma unroll
    for (int i = 0; i < kMostStreams; ++i) {
      before[i] = p.mix != nullptr && i < p.streams ? __bfloat162float(x[i * p.width]) : 0.0f;
    }
    for (int j = 0; j < p.streams; ++j) {
      float sum = p.write[j] * branch;
#pragma unroll
      for (int i = 0; i < kMostStreams; ++i) {
        if (p.mix != nullptr && i < p.streams) {
          sum = fmaf(p.mix[i * p.streams + j], before[i], sum);
        }
      }
      x[j * p.width] = __float2bfloat16(sum);
    }
  }
  if (p.out == nullptr) return;
  float sum = 0.0f;
  for (int i = 0; i < p.streams; ++i) {
    sum = fmaf(p.read[i], __bfloat162float(x[i * p.width]), sum);
  }
  static_cast<Bf16*>(p.out)[row * p.width + k] = __float2bfloat16(sum);
}

__global__ void __launch_bounds__(kThreads) scale_add_kernel(const ScaleAddParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t k = own_column();
  if (k >= p.width) return;
  float keep = p.keep;
  float add = p.add;
  if (p.gate != nullptr) {
    const float w = p.gate[p.gate_is_one ? 0 : k] / p.temperature;
    add = 1.0f / (1.0f + expf(-w));
    keep = sqrtf(fmaxf(1.0f / (1.0f + expf(w)) * (1.0f + add), 1e-3f));
  }
  const int64_t at = int64_t{blockIdx.x} * p.width + k;
  Bf16* const x = static_cast<Bf16*>(p.x) + at;
  const float branch = __bfloat162float(static_cast<const Bf16*>(p.delta)[at]);
  *x = __float2bfloat16(fmaf(keep, __bfloat162float(*x), add * branch));
}

// The sums of a row, by a block; a thread changes and reads the same columns.
struct SumsShared {
  float squares[32];
  float dots[32];
  float scores[kMostSums];
  float lengths[kMostSums];
};

__device__ void add_to_sums(const BlockReadParams& p, Bf16* x) {
  const Bf16* const delta = static_cast<const Bf16*>(p.delta) + blockIdx.x * p.width;
  for (int64_t k = threadIdx.x; k < p.width; k += kThreads) {
    if (p.finished < 0) {
      x[k] = __float2bfloat16(__bfloat162float(x[k]) + __bfloat162float(delta[k]));
    } else {
      x[(1 + p.finished) * p.width + k] = x[k];
      x[k] = delta[k];
    }
  }
}

// Of each sum the score, and its root mean square.
__device__ void meet_sums(const BlockReadParams& p, const Bf16* x, SumsShared& shared) {
  for (int s = 0; s <= p.blocks; ++s) {
    float squares = 0.0f;
    float dot = 0.0f;
    for (int64_t k = threadIdx.x; k < p.width; k += kThreads) {
      const float value = __bfloat162float(x[s * p.width + k]);
      squares = fmaf(value, value, squares);
      dot = fmaf(value, p.norm[k] * p.query[k], dot);
    }
    squares = block_sum(squares, shared.squares);
    dot = block_sum(dot, shared.dots);
    const float length = sqrtf(squares / static_cast<float>(p.width) + p.eps);
    if (threadIdx.x == 0) {
      shared.scores[s] = p.score_scale * dot / length;
      shared.lengths[s] = length;
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) block_read_kernel(const BlockReadParams p) {
  __shared__ SumsShared shared;
  dependency_wait();
  dependency_trigger();
  Bf16* const x = static_cast<Bf16*>(p.x) + blockIdx.x * p.stride;
  if (p.delta != nullptr) add_to_sums(p, x);
  if (p.out == nullptr) return;
  meet_sums(p, x, shared);
  float largest = shared.scores[0];
  for (int s = 1; s <= p.blocks; ++s) largest = fmaxf(largest, shared.scores[s]);
  float total = 0.0f;
  for (int s = 0; s <= p.blocks; ++s) total += expf(shared.scores[s] - largest);
  Bf16* const out = static_cast<Bf16*>(p.out) + blockIdx.x * p.width;
  for (int64_t k = threadIdx.x; k < p.width; k += kThreads) {
    float sum = 0.0f;
    for (int s = 0; s <= p.blocks; ++s) {
      float weight = expf(shared.scores[s] - largest);
      if (p.normed_values) weight /= shared.lengths[s];
      sum = fmaf(weight, __bfloat162float(x[s * p.width + k]), sum);
    }
    out[k] = __float2bfloat16(sum / total);
  }
}

}  // namespace

cudaError_t launch_mix_streams(const MixStreamsParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  if (p.streams < 1 || p.streams > kMostStreams) return cudaErrorInvalidValue;
  return launch_pdl(mix_streams_kernel, columns_grid(p.rows, p.width), dim3(kThreads), 0, stream,
                    p);
}

cudaError_t launch_scale_add(const ScaleAddParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  return launch_pdl(scale_add_kernel, columns_grid(p.rows, p.width), dim3(kThreads), 0, stream, p);
}

cudaError_t launch_block_read(const BlockReadParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  if (p.blocks < 0 || p.blocks >= kMostSums) return cudaErrorInvalidValue;
  return launch_pdl(block_read_kernel, dim3(static_cast<unsigned>(p.rows)), dim3(kThreads), 0,
                    stream, p);
}

}  // namespace rudder::cuda
