// What the kernels of hyper-connections share: numbers of streams of one token from their sums
// (ops::ConnectStreamsArgs has the formulas), in fp32. Included by .cu files only.
#pragma once

#include <cuda_runtime_api.h>

namespace rudder::cuda {

__device__ inline float stream_sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
// By which dots with a row of `columns` numbers are multiplied, of the sum of its squares.
__device__ inline float stream_inverse(float squares, int64_t columns, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(columns) + eps);
}
// To an ulp; sums of a mix are no denormals, since eps is in them.
__device__ inline float reciprocal(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// The mix of one token, by one thread, from its numbers before the softmax, c_ij at [i][j].
template <int kStreams>
__device__ inline void make_mix(float (&c)[kStreams][kStreams], int iterations, float eps) {
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    float largest = c[i][0];
    float total = 0.0f;
#pragma unroll
    for (int j = 1; j < kStreams; ++j) largest = fmaxf(largest, c[i][j]);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) total += c[i][j] = expf(c[i][j] - largest);
    const float share = reciprocal(total);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) c[i][j] = fmaf(c[i][j], share, eps);
  }
#pragma unroll 1
  for (int turn = 1;; ++turn) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      float sum = eps;
#pragma unroll
      for (int i = 0; i < kStreams; ++i) sum += c[i][j];
      const float share = reciprocal(sum);
#pragma unroll
      for (int i = 0; i < kStreams; ++i) c[i][j] *= share;
    }
    if (turn >= iterations) return;
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      float sum = eps;
#pragma unroll
      for (int j = 0; j < kStreams; ++j) sum += c[i][j];
      const float share = reciprocal(sum);
#pragma unroll
      for (int j = 0; j < kStreams; ++j) c[i][j] *= share;
    }
  }
}

}  // namespace rudder::cuda
