#include "rudder/cuda/kernels/qkv/qkv_prep.h"

#include <algorithm>

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/products/product_scales.cuh"
#include "rudder/cuda/kernels/qkv/qkv_prep.cuh"
#include "rudder/cuda/kernels/qkv/qkv_prep_ahead.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 128;

// A number of token t, whose row begins at `token`.
__device__ float number(const QkvPrepParams& p, int64_t t, const Bf16* token, int column) {
  return scaled(p.qkv_scales, t, column, __bfloat162float(token[column]));
}

// Sum of squares of columns [begin, begin + count), to every thread of the block.
__device__ float squares_of_block(const QkvPrepParams& p, int64_t t, const Bf16* token, int begin,
                                  int count, float* scratch) {
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const float v = number(p, t, token, begin + i);
    sum = fmaf(v, v, sum);
  }
  return block_sum(sum, scratch);
}

// Of q (0) or k (1) on all ranks, in their order.
__device__ float squares_of_ranks(const QkvPrepParams& p, int64_t t, int which) {
  float sum = 0.0f;
  for (int rank = 0; rank < p.num_ranks; ++rank) {
    sum += p.rank_squares[(t * p.num_ranks + rank) * 2 + which];
  }
  return sum;
}

// Sums of squares of all of q and all of k, where a norm is over all heads and this block, whose
// heads are [begin, end), needs them.
struct WideSquares {
  float q = 0.0f;
  float k = 0.0f;
};
__device__ WideSquares wide_squares(const QkvPrepParams& p, int64_t t, const Bf16* token, int begin,
                                    int end, float (*scratch)[32]) {
  WideSquares out;
  const int q_width = p.num_heads * p.head_dim;
  if (p.q_norm != nullptr && p.q_alpha == nullptr && p.q_norm_is_wide && begin < p.num_heads) {
    out.q = p.rank_squares != nullptr ? squares_of_ranks(p, t, 0)
                                      : squares_of_block(p, t, token, 0, q_width, scratch[0]);
  }
  if (p.k_norm != nullptr && p.k_alpha == nullptr && p.k_norm_is_wide &&
      begin < p.num_heads + p.num_kv_heads && end > p.num_heads) {
    out.k = p.rank_squares != nullptr
                ? squares_of_ranks(p, t, 1)
                : squares_of_block(p, t, token, q_width, p.num_kv_heads * p.head_dim, scratch[1]);
  }
  return out;
}

// Numbers that a wide norm is over. Where ranks share a KV head each has it: the mean is the same.
__device__ int wide_width(const QkvPrepParams& p, Part part) {
  const int heads = part == Part::kQ ? p.num_heads : p.num_kv_heads;
  return heads * p.head_dim * (p.rank_squares == nullptr ? 1 : p.num_ranks);
}

// Where a head's result goes: its first element in q_out or in the cache.
__device__ int64_t out_offset(const QkvPrepParams& p, int64_t t, int64_t slot, Head head) {
  if (head.part == Part::kQ) return (t * p.num_heads + head.index) * p.head_dim;
  return kv_offset(slot, head.part == Part::kK ? 0 : 1, head.index, p.block_size, p.num_kv_heads,
                   p.head_dim);
}

__device__ void store(const QkvPrepParams& p, Head head, int64_t at, int left, const Floats& x) {
  const bool is_q = head.part == Part::kQ;
  const KvType type = is_q ? KvType::kBf16 : p.kv_type;
  char* const to = static_cast<char*>(is_q ? p.q_out : p.kv_cache) + at * (is_narrow(type) ? 1 : 2);
  store_head_run(type, type == KvType::kFp8E4m3 ? kv_scale(p, head) : 1.0f, to, left, x);
}

// That registers are enough for.
constexpr int kBlocksPerSm = 4;

// What a thread reads of a head of a token, but for the token's rotation.
struct HeadOfToken {
  int64_t slot = 0;
  int32_t rope_row = 0;
  Packed low = {};
  Packed high = {};
};

// kLanes lanes of a warp work on a head: a power of two, at least head_dim / 16. A token's heads
// are spread over blocks along y, so that few tokens are many blocks. With many tokens a block has
// several, one after the other, for which it has the norms in registers (kAny: one); it asks for
// the next one ahead.
template <int kLanes, bool kScaled, Norms kNorms>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) qkv_prep_kernel(const QkvPrepParams p) {
  constexpr int kHeads = kThreads / kLanes;
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int head_number = first_head + static_cast<int>(threadIdx.x) / kLanes;
  const Head head = head_of(p, head_number);
  const int dim = p.head_dim;
  const RunPair at = run_pair(lane, dim, p.rope == nullptr ? 0 : p.half_rot);
  const bool exists = head_number < p.num_heads + 2 * p.num_kv_heads;
  // Weights do not change: they are fetched while the kernel before this one ends.
  const HeadNorm norm = exists ? norm_of(p, head) : HeadNorm{};
  Floats low_weight = {};
  Floats high_weight = {};
  if (norm.weight != nullptr) {
    low_weight = load_floats<true>(norm.weight + at.low, dim - at.low);
    high_weight = load_floats<true>(norm.weight + at.high, dim - at.high);
  }
  const bool clips = kNorms != Norms::kRmsOfHead && norm.alpha != nullptr;
  Floats low_alpha = {};
  Floats high_alpha = {};
  if (clips) {
    low_alpha = load_floats<true>(norm.alpha + at.low, dim - at.low);
    high_alpha = load_floats<true>(norm.alpha + at.high, dim - at.high);
  }

  dependency_wait();
  dependency_trigger();
  const bool is_rotated = exists && at.is_rotated && head.part != Part::kV;
  const int column = head_number * dim;
  const int low_left = exists ? dim - at.low : 0;
  const int high_left = exists ? dim - at.high : 0;
  const auto fetch = [&](int64_t t) {
    HeadOfToken of;
    if (t >= p.rows) return of;
    of.slot = p.kv_slot[t];
    if (is_rotated) of.rope_row = p.rope_row[t];
    of.low = load_run<true>(token_of(p, t) + column + at.low, low_left);
    of.high = load_run<true>(token_of(p, t) + column + at.high, high_left);
    return of;
  };
  HeadOfToken of = fetch(blockIdx.x);
  for (int64_t t = blockIdx.x; t < p.rows; t += gridDim.x) {
    const int64_t slot = of.slot;
    const float* table = p.rope + int64_t{of.rope_row} * 2 * p.half_rot + at.low;
    const Floats cosine = load_floats<true>(table, is_rotated ? kRun : 0);
    const Floats sine = load_floats<true>(table + p.half_rot, is_rotated ? kRun : 0);
    Floats low = unpack(of.low);
    Floats high = unpack(of.high);
    if constexpr (kNorms != Norms::kAny) of = fetch(t + gridDim.x);
    if constexpr (kScaled) {
      const RunScales low_scales = load_scales<true>(p.qkv_scales, t, column + at.low, low_left);
      const RunScales high_scales = load_scales<true>(p.qkv_scales, t, column + at.high, high_left);
      low = low_scales.applied_to(low);
      high = high_scales.applied_to(high);
    }
    WideSquares wide;
    if constexpr (kNorms == Norms::kAny) {
      __shared__ float scratch[2][32];
      wide = wide_squares(p, t, token_of(p, t), first_head, first_head + kHeads, scratch);
    }

    float squares = 0.0f;
    if constexpr (kNorms != Norms::kClip) squares = squares_of_head<kLanes>(low, high);
    if (!exists || (head.part != Part::kQ && slot < 0)) continue;
    if (clips) {
      low = clipped_run(low, low_alpha, low_weight);
      high = clipped_run(high, high_alpha, high_weight);
    } else if (kNorms != Norms::kClip && norm.weight != nullptr) {
      const bool is_q = head.part == Part::kQ;
      const bool is_wide = kNorms == Norms::kAny && norm.is_wide;
      const int width = is_wide ? wide_width(p, head.part) : dim;
      const float sum = is_wide ? (is_q ? wide.q : wide.k) : squares;
      const float inverse = inverse_rms(sum, width, norm.eps);
      scale_by(low, inverse, low_weight);
      scale_by(high, inverse, high_weight);
    }
    if (is_rotated) rotate(low, high, cosine, sine);
    if (head.part != Part::kQ && scales_tokens(p.kv_type)) {
      scale_head<kLanes>(p, slot, head, low, high);
    }
    const int64_t out = out_offset(p, t, slot, head);
    store(p, head, out + at.low, dim - at.low, low);
    store(p, head, out + at.high, dim - at.high, high);
  }
}

// Number i of a head, by its norm.
__device__ float normed(const HeadNorm& norm, float inverse, int i, float x) {
  if (norm.weight == nullptr) return x;
  if (norm.alpha != nullptr) return clipped(norm.alpha[i] * x) * norm.weight[i];
  return x * inverse * norm.weight[i];
}

// Any head_dim and rotation: one block a head, its numbers in shared memory.
__global__ void __launch_bounds__(kThreads) qkv_prep_any_kernel(const QkvPrepParams p) {
  extern __shared__ float x[];  // [head_dim]
  __shared__ float scratch[3][32];
  __shared__ float magnitudes[kThreads];
  dependency_wait();
  dependency_trigger();
  const int64_t t = blockIdx.x;
  const int head_number = static_cast<int>(blockIdx.y);
  const Head head = head_of(p, head_number);
  const int dim = p.head_dim;
  const int64_t slot = p.kv_slot[t];
  if (head.part != Part::kQ && slot < 0) return;
  const Bf16* token = token_of(p, t);
  const int column = head_number * dim;
  const HeadNorm norm = norm_of(p, head);
  const WideSquares wide = wide_squares(p, t, token, head_number, head_number + 1, scratch);
  float inverse = 1.0f;
  const bool norms_first = !p.norms_rotated || head.part == Part::kV;
  if (norms_first && norm.weight != nullptr && norm.alpha == nullptr) {
    const bool is_q = head.part == Part::kQ;
    const int width = norm.is_wide ? wide_width(p, head.part) : dim;
    const float sum = norm.is_wide ? (is_q ? wide.q : wide.k)
                                   : squares_of_block(p, t, token, column, dim, scratch[2]);
    inverse = inverse_rms(sum, width, norm.eps);
  }
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
    x[i] = number(p, t, token, column + i);
    if (norms_first) x[i] = normed(norm, inverse, i, x[i]);
  }
  __syncthreads();
  const int half = p.rope == nullptr || head.part == Part::kV ? 0 : p.half_rot;
  const float* table = half == 0 ? nullptr : p.rope + int64_t{p.rope_row[t]} * 2 * half;
  const auto rotated = [&](int i) {
    if (i < half) return x[i] * table[i] - x[i + half] * table[half + i];
    if (i < 2 * half) return x[i] * table[i - half] + x[i - half] * table[i];
    return x[i];
  };
  if (!norms_first && norm.weight != nullptr && norm.alpha == nullptr) {
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
      sum = fmaf(rotated(i), rotated(i), sum);
    }
    inverse = inverse_rms(block_sum(sum, scratch[2]), dim, norm.eps);
  }
  const bool is_scaled = p.q_scale != nullptr && head.part == Part::kQ;
  const float scale = is_scaled ? p.q_scale[p.rope_row[t]] : 1.0f;
  const int64_t out = out_offset(p, t, slot, head);
  const auto value = [&](int i) {
    float v = rotated(i);
    if (!norms_first) v = normed(norm, inverse, i, v);
    return is_scaled ? v * scale : v;
  };
  const KvType type = head.part == Part::kQ ? KvType::kBf16 : p.kv_type;
  float inverse_scale = 1.0f;  // of a token's
  if (scales_tokens(type)) {
    float largest = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
      largest = largest_or_nan(largest, fabsf(value(i)));
    }
    magnitudes[threadIdx.x] = largest;
    __syncthreads();
    for (const float magnitude : magnitudes) largest = largest_or_nan(largest, magnitude);
    const RowCodes codes = row_codes(largest, type);
    if (threadIdx.x == 0) *token_scale(p, slot, head) = codes.scale;
    inverse_scale = codes.inverse;
  }
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
    const float v = value(i) * inverse_scale;
    if (type == KvType::kBf16) {
      static_cast<Bf16*>(head.part == Part::kQ ? p.q_out : p.kv_cache)[out + i] =
          __float2bfloat16_rn(v);
    } else if (type == KvType::kInt8Tokens) {
      static_cast<int8_t*>(p.kv_cache)[out + i] = int8_of(v);
    } else if (type == KvType::kFp8Tokens) {
      static_cast<uint8_t*>(p.kv_cache)[out + i] =
          __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
    } else {
      static_cast<uint8_t*>(p.kv_cache)[out + i] =
          __nv_cvt_float_to_fp8(scaled_for_fp8(v, kv_scale(p, head)), __NV_SATFINITE, __NV_E4M3);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    qkv_squares_kernel(const QkvPrepParams p, float* squares) {
  __shared__ float scratch[2][32];
  dependency_wait();
  dependency_trigger();
  const int64_t t = blockIdx.x;
  const WideSquares wide =
      wide_squares(p, t, token_of(p, t), 0, p.num_heads + p.num_kv_heads, scratch);
  if (threadIdx.x == 0) {
    squares[2 * t] = wide.q;
    squares[2 * t + 1] = wide.k;
  }
}

template <int kLanes, Norms kNorms>
cudaError_t launch_norms(const QkvPrepParams& p, int heads, cudaStream_t stream) {
  constexpr int kHeads = kThreads / kLanes;
  // As many tokens for each block, as far as that goes, and no block behind another.
  constexpr int64_t kSms = 132;
  const int64_t parts = (heads + kHeads - 1) / kHeads;
  const int64_t most = std::max(int64_t{1}, kSms * kBlocksPerSm / parts);
  const int64_t tokens_each = kNorms == Norms::kAny ? 1 : (p.rows + most - 1) / most;
  const dim3 grid(static_cast<unsigned>((p.rows + tokens_each - 1) / tokens_each),
                  static_cast<unsigned>(parts));
  const auto kernel = p.qkv_scales.row != nullptr ? qkv_prep_kernel<kLanes, true, kNorms>
                                                  : qkv_prep_kernel<kLanes, false, kNorms>;
  return launch_pdl(kernel, grid, dim3(kThreads), 0, stream, p);
}

template <int kLanes>
cudaError_t launch_lanes(const QkvPrepParams& p, int heads, cudaStream_t stream) {
  switch (norms_of(p)) {
    case Norms::kRmsOfHead:
      return launch_norms<kLanes, Norms::kRmsOfHead>(p, heads, stream);
    case Norms::kClip:
      if constexpr (kLanes < 32) return launch_norms<kLanes, Norms::kClip>(p, heads, stream);
      break;
    case Norms::kAny:
      break;
  }
  return launch_norms<kLanes, Norms::kAny>(p, heads, stream);
}

}  // namespace

cudaError_t launch_qkv_squares(const QkvPrepParams& p, float* squares, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return launch_pdl(qkv_squares_kernel, dim3(static_cast<unsigned>(p.rows)), dim3(kThreads), 0,
                    stream, p, squares);
}

cudaError_t launch_qkv_prep(const QkvPrepParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const int heads = p.num_heads + 2 * p.num_kv_heads;
  const int half = p.rope == nullptr ? 0 : p.half_rot;
  const bool aligned = is_aligned(p.qkv) && is_aligned(p.q_out) && is_aligned(p.kv_cache) &&
                       is_aligned(p.q_norm) && is_aligned(p.q_alpha) && is_aligned(p.k_norm) &&
                       is_aligned(p.k_alpha) && is_aligned(p.v_norm.weight) &&
                       is_aligned(p.v_norm.alpha) && is_aligned(p.rope) &&
                       is_aligned(p.qkv_scales.column) && is_aligned(p.qkv_scales.bias);
  const bool is_general = p.norms_rotated || p.q_scale != nullptr;
  const int lanes = aligned && !is_general ? lanes_of_head(p.head_dim, half) : 0;
  if (lanes > 0 && goes_ahead(p, lanes)) return launch_qkv_prep_ahead(p, lanes, stream);
  if (lanes > 0) {
    return for_lanes(lanes,
                     [&](auto count) { return launch_lanes<count.value>(p, heads, stream); });
  }
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(heads));
  return launch_pdl(qkv_prep_any_kernel, grid, dim3(kThreads),
                    static_cast<size_t>(p.head_dim) * sizeof(float), stream, p);
}

}  // namespace rudder::cuda
