#include "rudder/cuda/kernels/attention/plain_attention.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPieces = kPlainAttentionMaxHeadDim / 32;  // elements of a head that a lane holds

__device__ __forceinline__ float to_float(__nv_bfloat16 v) {
  return __bfloat162float(v);
}
__device__ __forceinline__ float to_float(__nv_fp8_e4m3 v) {
  return static_cast<float>(v);
}
__device__ __forceinline__ float to_float(int8_t v) {
  return static_cast<float>(v);
}

__device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

// The sequence of a token: the last one that begins at or before it; -1 past the last.
__device__ int find_sequence(const int32_t* q_begin, int num_seqs, int token) {
  if (num_seqs == 0 || token >= q_begin[num_seqs]) return -1;
  int low = 0;
  int high = num_seqs;  // q_begin[low] <= token < q_begin[high]
  while (high - low > 1) {
    const int mid = (low + high) / 2;
    (q_begin[mid] <= token ? low : high) = mid;
  }
  return low;
}

// The largest score, and the sums relative to it of a warp's keys.
struct SoftmaxSums {
  float largest = -INFINITY;
  float sum = 0;

  __device__ SoftmaxSums(const PlainAttentionParams& p, int /*head*/)
      : softcap(p.softmax.softcap) {}
  static __device__ int reach(const PlainAttentionParams&) { return 0; }
  // Returns the key's weight; `shrink` is for the sums before it, 0 for the first key.
  __device__ float add(float score, float& shrink) {
    if (softcap != 0.0f) score = softcap * tanhf(score / softcap);
    const float top = fmaxf(largest, score);
    shrink = expf(largest - top);
    const float weight = expf(score - top);
    largest = top;
    sum = sum * shrink + weight;
    return weight;
  }
  static __device__ float result(const PlainAttentionParams&, int /*head*/, float value,
                                 float total) {
    return value / total;
  }

  float softcap;
};

// A gate (GateParams) along a warp's keys. Sums are relative to nothing and not divided.
struct GateSums {
  float largest = 0;
  float sum = 1;

  __device__ GateSums(const PlainAttentionParams& p, int head)
      : gate(p.gate), factor(p.gate.sigma[head] / static_cast<float>(p.gate.length)) {}
  // Keys in front of its own that a warp looks at.
  static __device__ int reach(const PlainAttentionParams& p) { return p.gate.length - 1; }
  __device__ float add(float score, float& shrink) {
    shrink = 1;
    float total = 0;
#pragma unroll
    for (int i = ops::kMaxFirLength - 1; i > 0; --i) {
      last[i] = last[i - 1];
      if (i < gate.length) total += last[i];
    }
    last[0] = gate.relu_pre && score < 0.0f ? 0.0f : score;
    const float p = score - factor * (total + last[0]);
    return p < gate.low ? gate.low : p > gate.high ? gate.high : p;
  }
  static __device__ float result(const PlainAttentionParams& p, int head, float value,
                                 float /*total*/) {
    return value * p.gate.gamma[head];
  }

  const GateParams& gate;
  float factor;
  float last[ops::kMaxFirLength] = {};
};

// The keys at positions [begin, end) that this warp takes: neighbours, as a gate needs them.
template <typename Kv, typename Sums>
__device__ void attend(const PlainAttentionParams& p, const float (&q)[kPieces],
                       const int32_t* blocks, const TreePath& path, int kv_head, int begin, int end,
                       Sums& sums, float (&value)[kPieces]) {
  const int lane = threadIdx.x % 32;
  const int64_t head_stride = int64_t{p.block_size} * p.head_dim;
  const int64_t part = p.num_kv_heads * head_stride;
  const int64_t value_offset = (p.kv.parts - 1) * part;
  const float scale = p.scale * (p.kv.scales.k != nullptr ? p.kv.scales.k[kv_head] : 1.0f);
  const int each = (end - begin + kWarps - 1) / kWarps;
  const int first = begin + static_cast<int>(threadIdx.x) / 32 * each;
  const int last = min(end, first + each);
  if (first >= last) return;
  for (int at = max(begin, first - Sums::reach(p)); at < last; ++at) {
    const int offset = path.offset_of(at);
    const int64_t block = blocks[offset / p.block_size];
    const Kv* key = static_cast<const Kv*>(p.kv.data) + block * p.kv.parts * part +
                    kv_head * head_stride + int64_t{offset % p.block_size} * p.head_dim;
    const float* const scales = p.kv.scales.tokens == nullptr
                                    ? nullptr
                                    : p.kv.scales.tokens + block * p.kv.scales.token_pitch +
                                          kv_head * p.block_size + offset % p.block_size;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (i * 32 + lane < p.head_dim) dot += q[i] * to_float(key[i * 32 + lane]);
    }
    float shrink;
    const float key_scale = scales == nullptr ? 1.0f : *scales;
    float weight = sums.add(sum_of_warp(dot) * key_scale * scale, shrink);
    if (at < first) continue;
    if (scales != nullptr)
      weight *= scales[int64_t{p.kv.parts - 1} * p.num_kv_heads * p.block_size];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (i * 32 + lane < p.head_dim) {
        value[i] = value[i] * shrink + weight * to_float(key[value_offset + i * 32 + lane]);
      }
    }
  }
}

template <typename Kv, typename Sums>
__global__ void __launch_bounds__(kWarps * 32)
    plain_attention_kernel(const __grid_constant__ PlainAttentionParams p) {
  __shared__ float largest_of[kWarps];
  __shared__ float sum_of[kWarps];
  __shared__ float value_of[kWarps][kPlainAttentionMaxHeadDim];
  dependency_wait();
  dependency_trigger();
  const int token = blockIdx.x;
  const int head = blockIdx.y;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t at = (int64_t{token} * p.num_heads + head) * p.head_dim;

  const int seq = find_sequence(p.q_begin, p.num_seqs, token);
  const int kv_len = seq < 0 ? 0 : p.kv_len[seq];
  Sums sums(p, head);
  float value[kPieces] = {};
  const int kv_head = head / (p.num_heads / p.num_kv_heads);
  if (kv_len > 0) {
    float q[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int d = i * 32 + lane;
      q[i] = d < p.head_dim ? to_float(static_cast<const __nv_bfloat16*>(p.q)[at + d]) : 0.0f;
    }
    TreePath path;
    if (p.ancestors != nullptr) {
      path = {p.ancestors[token], kv_len - (p.q_begin[seq + 1] - p.q_begin[seq])};
    }
    const int end = path.tokens != 0 ? path.end() : kv_len - p.q_begin[seq + 1] + token + 1;
    const int begin = p.window > 0 ? max(0, end - p.window) : 0;
    const int32_t* blocks = p.block_table + p.table_row[seq] * p.max_blocks;
    attend<Kv>(p, q, blocks, path, kv_head, begin, end, sums, value);
  }
  if (lane == 0) {
    largest_of[warp] = sums.largest;
    sum_of[warp] = sums.sum;
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) value_of[warp][i * 32 + lane] = value[i];
  __syncthreads();

  const float v_scale = p.kv.scales.v != nullptr ? p.kv.scales.v[kv_head] : 1.0f;
  const float* const sinks = p.softmax.sinks;
  const float sink = sinks != nullptr ? sinks[head] : -INFINITY;
  float largest = sink;
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, largest_of[w]);
  for (int d = threadIdx.x; d < p.head_dim; d += kWarps * 32) {
    float sum = sinks != nullptr ? expf(sink - largest) : 0.0f;
    float total = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (sum_of[w] == 0.0f) continue;  // a warp without keys; a NaN is not skipped
      const float weight = expf(largest_of[w] - largest);
      sum += weight * sum_of[w];
      total += weight * value_of[w][d];
    }
    static_cast<__nv_bfloat16*>(p.out)[at + d] =
        __float2bfloat16_rn(kv_len > 0 ? Sums::result(p, head, total, sum) * v_scale : 0.0f);
  }
}

template <typename Sums>
auto kernel_of(KvType type) {
  if (type == KvType::kInt8Tokens) return plain_attention_kernel<int8_t, Sums>;
  return is_narrow(type) ? plain_attention_kernel<__nv_fp8_e4m3, Sums>
                         : plain_attention_kernel<__nv_bfloat16, Sums>;
}

}  // namespace

cudaError_t launch_plain_attention(const PlainAttentionParams& params, cudaStream_t stream) {
  if (params.num_tokens <= 0) return cudaSuccess;
  if (params.softmax.sinks != nullptr && params.gate.length > 0) return cudaErrorInvalidValue;
  const bool sees_less = params.window > 0 || params.gate.length > 0;  // than a tree's path
  if (params.head_dim > kPlainAttentionMaxHeadDim || params.num_heads > 65535 ||
      (params.ancestors != nullptr && sees_less)) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid(static_cast<unsigned>(params.num_tokens),
                  static_cast<unsigned>(params.num_heads));
  return launch_pdl(params.gate.length > 0 ? kernel_of<GateSums>(params.kv.type)
                                           : kernel_of<SoftmaxSums>(params.kv.type),
                    grid, dim3(kWarps * 32), 0, stream, params);
}

}  // namespace rudder::cuda
