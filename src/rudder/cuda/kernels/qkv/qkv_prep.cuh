// What the kernels of qkv_prep share: heads, their norms, the rotation. Included by .cu files only.
#pragma once

#include <type_traits>

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/qkv/qkv_prep.h"

namespace rudder::cuda {

enum class Part : uint8_t { kQ, kK, kV };

// One of the H + 2 KV heads of a token.
struct Head {
  Part part = Part::kQ;
  int index = 0;  // within its part
};

__device__ inline Head head_of(const QkvPrepParams& p, int head) {
  if (head < p.num_heads) return {Part::kQ, head};
  if (head < p.num_heads + p.num_kv_heads) return {Part::kK, head - p.num_heads};
  return {Part::kV, head - p.num_heads - p.num_kv_heads};
}

__device__ inline const Bf16* token_of(const QkvPrepParams& p, int64_t t) {
  const int64_t heads = p.num_heads + 2 * int64_t{p.num_kv_heads};
  return static_cast<const Bf16*>(p.qkv) + t * heads * p.head_dim;
}

struct HeadNorm {
  const float* weight = nullptr;  // of the head's first element; null: no norm
  const float* alpha = nullptr;   // likewise; null: the norm is RMS
  float eps = 0.0f;
  bool is_wide = false;
};

__device__ inline HeadNorm norm_of(const QkvPrepParams& p, Head head) {
  if (head.part == Part::kV) return {p.v_norm.weight, p.v_norm.alpha, p.v_norm.eps, false};
  const bool is_q = head.part == Part::kQ;
  const float* weight = is_q ? p.q_norm : p.k_norm;
  if (weight == nullptr) return {};
  const float* alpha = is_q ? p.q_alpha : p.k_alpha;
  const bool is_wide = is_q ? p.q_norm_is_wide : p.k_norm_is_wide;
  const int64_t begin = is_wide ? int64_t{head.index} * p.head_dim : 0;
  return {weight + begin, alpha == nullptr ? nullptr : alpha + begin, is_q ? p.q_eps : p.k_eps,
          is_wide};
}

__device__ inline float inverse_rms(float squares, int width, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
}

__device__ inline float kv_scale(const QkvPrepParams& p, Head head) {
  const float* scale = head.part == Part::kK ? p.scales.k : p.scales.v;
  return scale == nullptr ? 1.0f : scale[head.index];
}

__device__ inline void scale_by(Floats& x, float factor, const Floats& weight) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) x.v[j] = x.v[j] * factor * weight.v[j];
}

// Spelt out, so that every kernel rounds alike.
__device__ inline void rotate(Floats& low, Floats& high, const Floats& cosine, const Floats& sine) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    const float a = low.v[j];
    const float b = high.v[j];
    low.v[j] = __fmaf_rn(a, cosine.v[j], -__fmul_rn(b, sine.v[j]));
    high.v[j] = __fmaf_rn(a, sine.v[j], __fmul_rn(b, cosine.v[j]));
  }
}

// The sum of squares of a head that kLanes lanes have, to each of them.
template <int kLanes>
__device__ float squares_of_head(const Floats& low, const Floats& high) {
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < kRun; ++j) squares = fmaf(low.v[j], low.v[j], squares);
#pragma unroll
  for (int j = 0; j < kRun; ++j) squares = fmaf(high.v[j], high.v[j], squares);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, step);
  }
  return squares;
}

// --- scales of tokens ---

__device__ inline float largest_or_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// The scale of a row whose largest magnitude this is, and by what its numbers are multiplied to
// become codes.
struct RowCodes {
  float scale;
  float inverse;
};
__device__ inline RowCodes row_codes(float largest, KvType type) {
  const float scale = __fdiv_rn(largest, type == KvType::kInt8Tokens ? 127.0f : kFp8Max);
  const bool is_normal = scale >= 0x1p-126f && isfinite(scale);
  return {scale, is_normal ? __frcp_rn(scale) : 0.0f};
}

// Where the row of a KV head of the token in a slot has its scale.
__device__ inline float* token_scale(const QkvPrepParams& p, int64_t slot, Head head) {
  const int part = head.part == Part::kK ? 0 : 1;
  return p.scales.tokens + slot / p.block_size * p.scales.token_pitch +
         (part * p.num_kv_heads + head.index) * p.block_size + slot % p.block_size;
}

__device__ inline int8_t int8_of(float x) {
  return static_cast<int8_t>(max(-127, min(127, __float2int_rn(x))));
}

// The head's row of the token in `slot`, of which kLanes neighbouring lanes, all of them here, have
// two runs each: its scale is written, and the runs become codes.
template <int kLanes>
__device__ void scale_head(const QkvPrepParams& p, int64_t slot, Head head, Floats& low,
                           Floats& high) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned first = lane / kLanes * kLanes;
  const unsigned lanes = kLanes == 32 ? 0xffffffffu : ((1u << (kLanes % 32)) - 1) << first;
  float largest = 0.0f;
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    largest = largest_or_nan(largest, largest_or_nan(fabsf(low.v[j]), fabsf(high.v[j])));
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    largest = largest_or_nan(largest, __shfl_xor_sync(lanes, largest, step));
  }
  const RowCodes codes = row_codes(largest, p.kv_type);
  if (lane == first) *token_scale(p, slot, head) = codes.scale;
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    low.v[j] *= codes.inverse;
    high.v[j] *= codes.inverse;
  }
}

// Numbers, or codes of a row with a scale of its own. Most caches have no scale of heads, and a
// division takes longer than all else here.
__device__ inline void store_head_run(KvType type, float scale, void* to, int left, Floats x) {
  if (type == KvType::kBf16) return store_run<true>(static_cast<Bf16*>(to), left, pack(x));
  if (type == KvType::kInt8Tokens) {
    uint32_t words[2] = {};
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      words[j / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(int8_of(x.v[j]))) << j % 4 * 8;
    }
    if (left > 0) *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    return;
  }
  if (scale != 1.0f) {
#pragma unroll
    for (float& v : x.v) v = scaled_for_fp8(v, scale);
  }
  store_run_fp8<true>(static_cast<uint8_t*>(to), left, x);
}

// What norms a launch has, so that none pays for what another kind needs: RMS norms of heads,
// UClipNorms, or others, also over all heads.
enum class Norms { kRmsOfHead, kClip, kAny };

inline Norms norms_of(const QkvPrepParams& p) {
  const auto has = [](const float* norm, bool is_kind) { return norm == nullptr || is_kind; };
  if (has(p.q_norm, p.q_alpha != nullptr) && has(p.k_norm, p.k_alpha != nullptr) &&
      has(p.v_norm.weight, p.v_norm.alpha != nullptr) &&
      (p.q_norm != nullptr || p.k_norm != nullptr || p.v_norm.weight != nullptr)) {
    return Norms::kClip;
  }
  const bool is_rms_of_head = has(p.q_norm, p.q_alpha == nullptr && !p.q_norm_is_wide) &&
                              has(p.k_norm, p.k_alpha == nullptr && !p.k_norm_is_wide) &&
                              has(p.v_norm.weight, p.v_norm.alpha == nullptr);
  return is_rms_of_head ? Norms::kRmsOfHead : Norms::kAny;
}

// Calls launch(integral constant) for the lanes that have a head, a power of two from 4 to 32.
template <typename Launch>
cudaError_t for_lanes(int lanes, Launch launch) {
  switch (lanes) {
    case 4:
      return launch(std::integral_constant<int, 4>());
    case 8:
      return launch(std::integral_constant<int, 8>());
    case 16:
      return launch(std::integral_constant<int, 16>());
    case 32:
      return launch(std::integral_constant<int, 32>());
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace rudder::cuda
