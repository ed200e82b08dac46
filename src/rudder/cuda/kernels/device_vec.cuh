// Device code that the row kernels share: runs of 8 elements, conversions, sums over a block.
// Included by .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace rudder::cuda {

using Bf16 = __nv_bfloat16;

inline constexpr int kRun = 8;  // elements that a thread loads at a time: 16 bytes of bf16
inline constexpr float kFp8Max = 448.0f;

// 8 bf16 as they lie in memory.
struct alignas(16) Packed {
  __nv_bfloat162 pair[4];
};

struct alignas(16) Floats {
  float v[kRun];
};

// A bf16 is the upper half of a float.
__device__ inline Floats unpack(const Packed& packed) {
  uint32_t pair[4];
  memcpy(pair, &packed, sizeof(pair));
  Floats out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out.v[2 * i] = __uint_as_float(pair[i] << 16);
    out.v[2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000u);
  }
  return out;
}

__device__ inline const Floats& unpack(const Floats& floats) {
  return floats;
}

__device__ inline Packed pack(const Floats& floats) {
  Packed out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out.pair[i] = __floats2bfloat162_rn(floats.v[2 * i], floats.v[2 * i + 1]);
  }
  return out;
}
// As a store and a load of bf16 leave it.
__device__ inline Floats rounded(const Floats& x) {
  return unpack(pack(x));
}

__device__ inline uint2 pack_fp8(const Floats& floats) {
  uint32_t word[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto low = __nv_cvt_float2_to_fp8x2(make_float2(floats.v[4 * i], floats.v[4 * i + 1]),
                                              __NV_SATFINITE, __NV_E4M3);
    const auto high = __nv_cvt_float2_to_fp8x2(
        make_float2(floats.v[4 * i + 2], floats.v[4 * i + 3]), __NV_SATFINITE, __NV_E4M3);
    word[i] = static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
  }
  return make_uint2(word[0], word[1]);
}

// Elements [0, min(8, left)) of `from`; the rest are zero. kAligned: `from` is 16-byte aligned and
// left is 0 or at least 8.
template <bool kAligned>
__device__ inline Packed load_run(const Bf16* from, int left) {
  Packed out;
  if constexpr (kAligned) {
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (left > 0) bits = *reinterpret_cast<const uint4*>(from);
    memcpy(&out, &bits, sizeof(out));
  } else {
    const Bf16 zero = __float2bfloat16(0.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out.pair[i].x = 2 * i < left ? from[2 * i] : zero;
      out.pair[i].y = 2 * i + 1 < left ? from[2 * i + 1] : zero;
    }
  }
  return out;
}

template <bool kAligned>
__device__ inline void store_run(Bf16* to, int left, const Packed& packed) {
  if constexpr (kAligned) {
    uint4 bits;
    memcpy(&bits, &packed, sizeof(bits));
    if (left > 0) *reinterpret_cast<uint4*>(to) = bits;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (2 * i < left) to[2 * i] = packed.pair[i].x;
      if (2 * i + 1 < left) to[2 * i + 1] = packed.pair[i].y;
    }
  }
}

template <bool kAligned>
__device__ inline void store_run_fp8(uint8_t* to, int left, const Floats& floats) {
  const uint2 bits = pack_fp8(floats);
  if constexpr (kAligned) {
    if (left > 0) *reinterpret_cast<uint2*>(to) = bits;
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const uint32_t word = i < 4 ? bits.x : bits.y;
      if (i < left) to[i] = static_cast<uint8_t>(word >> 8 * (i % 4));
    }
  }
}

template <bool kAligned>
__device__ inline Floats load_floats(const float* from, int left) {
  Floats out = {};
  if constexpr (kAligned) {
    if (left > 0) {
      *reinterpret_cast<float4*>(&out.v[0]) = reinterpret_cast<const float4*>(from)[0];
      *reinterpret_cast<float4*>(&out.v[4]) = reinterpret_cast<const float4*>(from)[1];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (i < left) out.v[i] = from[i];
    }
  }
  return out;
}

__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}
// Propagates no NaN: a row with one shows it in its values.
__device__ inline float warp_max(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
  return v;
}

// Over all threads of a block of whole warps, to every thread, in an order that the number of
// threads alone decides. `scratch` [32] in shared memory serves one call.
__device__ inline float block_sum(float v, float* scratch) {
  const unsigned lane = threadIdx.x % 32;
  v = warp_sum(v);
  if (lane == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  return warp_sum(lane < blockDim.x / 32 ? scratch[lane] : 0.0f);
}
// Of values >= 0.
__device__ inline float block_max(float v, float* scratch) {
  const unsigned lane = threadIdx.x % 32;
  v = warp_max(v);
  if (lane == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  return warp_max(lane < blockDim.x / 32 ? scratch[lane] : 0.0f);
}

// Scale 0: of zeros, and of what is not a number.
__device__ inline float scaled_for_fp8(float x, float scale) {
  return scale > 0.0f ? __fdiv_rn(x, scale) : x;
}

// The scale of a row whose largest magnitude is `highest`, and the row's numbers over it. Quotients
// are those of a division, at a fraction of its instructions: the reciprocal is taken once, and a
// product's error is put right by one step (Markstein).
class Fp8RowScale {
 public:
  __device__ explicit Fp8RowScale(float highest) {
    value_ = __fdiv_rn(highest, kFp8Max);
    // The step needs a divisor whose reciprocal and remainders are normal numbers: very small and
    // very large rows are first multiplied by a power of two.
    factor_ = value_ < 0x1p-60f ? 0x1p80f : value_ > 0x1p60f ? 0x1p-80f : 1.0f;
    divisor_ = value_ * factor_;
    inverse_ = __frcp_rn(divisor_);
    if (!(value_ > 0.0f)) {  // of zeros, and of what is not a number
      factor_ = divisor_ = inverse_ = 1.0f;
    } else if (inverse_ == 0.0f) {  // infinite: what is finite becomes zero
      divisor_ = 0.0f;
    }
  }

  __device__ float value() const { return value_; }
  __device__ Floats stored(const Floats& x) const {
    return factor_ == 1.0f ? quotients<false>(x) : quotients<true>(x);
  }

 private:
  template <bool kHasFactor>
  __device__ Floats quotients(const Floats& x) const {
    Floats out;
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const float number = kHasFactor ? x.v[j] * factor_ : x.v[j];
      const float quotient = number * inverse_;
      out.v[j] = fmaf(fmaf(-quotient, divisor_, number), inverse_, quotient);
    }
    return out;
  }

  float value_;
  float factor_;
  float divisor_;
  float inverse_;
};

// Kernels that need no sum over a row: rows along x, which has the larger limit; runs along y.
inline constexpr int kFlatThreads = 256;
inline constexpr int64_t kFlatWidth = kFlatThreads * kRun;

inline dim3 flat_grid(int64_t rows, int64_t width) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>((width + kFlatWidth - 1) / kFlatWidth));
}
__device__ inline int flat_column() {
  return static_cast<int>((blockIdx.y * kFlatThreads + threadIdx.x) * kRun);
}

inline bool is_aligned(const void* pointer, uintptr_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// x within [-1, 1]; NaN stays NaN.
__device__ inline float clipped(float x) {
  return x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x;
}

// A run after UClipNorm: clip(alpha * x, -1, 1) * weight.
__device__ inline Floats clipped_run(Floats x, const Floats& alpha, const Floats& weight) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    x.v[j] = __fmul_rn(clipped(__fmul_rn(alpha.v[j], x.v[j])), weight.v[j]);
  }
  return x;
}

}  // namespace rudder::cuda
