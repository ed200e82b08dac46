// What attention_bench.cu works with: memory, random data, steps, and a plain kernel to compare
// with.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "rudder/cuda/kernels/attention/attention.h"

using rudder::cuda::AttentionConfig;
using rudder::cuda::AttentionParams;
using rudder::cuda::AttentionWorkParams;
using rudder::cuda::kv_type_name;
using rudder::cuda::KvType;
using rudder::cuda::PrefillKernel;
using rudder::cuda::scales_tokens;

namespace {

char g_now[256] = "start";  // what a hang is blamed on
std::mt19937 g_random(20250101);
std::vector<PrefillKernel> g_kernels = {PrefillKernel::kMmaSync, PrefillKernel::kWgmma};

void on_alarm(int) {
  const char* head = "\nHANG in: ";
  (void)!write(1, head, strlen(head));
  (void)!write(1, g_now, strlen(g_now));
  (void)!write(1, "\n", 1);
  _exit(3);
}

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  printf("CUDA ERROR %s: %s (in: %s)\n", what, cudaGetErrorString(error), g_now);
  fflush(stdout);
  _exit(2);
}

template <typename T>
T* device_array(size_t count) {
  void* p = nullptr;
  must(cudaMalloc(&p, std::max<size_t>(count, 1) * sizeof(T)), "malloc");
  return static_cast<T*>(p);
}

template <typename T>
void upload(T* to, const std::vector<T>& from) {
  must(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
}

// --- data ---

__device__ uint32_t hashed(uint64_t i, uint32_t seed) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 16);
}
// Of variance 1: the sum of 4 bytes, centred.
__device__ float noise(uint64_t i, uint32_t seed) {
  const uint32_t h = hashed(i, seed);
  const float sum = float(h & 255) + float(h >> 8 & 255) + float(h >> 16 & 255) + float(h >> 24);
  return (sum - 510.0f) / 147.8f;
}

__global__ void fill_bf16(__nv_bfloat16* x, int64_t count, uint32_t seed, float mean = 0.0f) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    x[i] = __float2bfloat16(noise(i, seed) + mean);
  }
}

// Tokens of a block from valid[block] on hold NaN; valid == nullptr: all are good.
__global__ void fill_cache(void* cache, bool fp8, int64_t count, int32_t block_elements,
                           int32_t head_dim, const int32_t* valid, uint32_t seed,
                           float mean = 0.0f) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int32_t token = static_cast<int32_t>(i / head_dim % 16);
    const bool good = valid == nullptr || token < valid[i / block_elements];
    const float x = noise(i, seed) + mean;
    if (fp8) {
      static_cast<uint8_t*>(cache)[i] =
          good ? __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3) : 0x7f;
    } else {
      static_cast<__nv_bfloat16*>(cache)[i] = __float2bfloat16(good ? x : NAN);
    }
  }
}

// Of rows of 16 tokens, `block_rows` a block, as fill_cache() has NaN.
__global__ void fill_scales(float* scales, int64_t count, int32_t block_scales,
                            const int32_t* valid, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const bool good = valid == nullptr || i % 16 < valid[i / block_scales];
    scales[i] = good ? 0.01f * (1.0f + fabsf(noise(i, seed))) : NAN;
  }
}

constexpr int element_bytes(KvType type) {
  return rudder::cuda::is_narrow(type) ? 1 : 2;
}

__device__ float cache_value(const void* cache, bool fp8, int64_t i) {
  if (!fp8) return __bfloat162float(static_cast<const __nv_bfloat16*>(cache)[i]);
  return __half2float(
      __half(__nv_cvt_fp8_to_halfraw(static_cast<const uint8_t*>(cache)[i], __NV_E4M3)));
}

// --- the plain kernel: a block a (token, head) ---

struct Plain {
  AttentionParams p;
  const void* cache;
  const int32_t* q_begin;
  const int32_t* kv_len;
  const int32_t* table_row;
  const int32_t* seq_of;  // [T]
  float* out;             // [T, num_heads * head_dim]
  bool rounds_q = false;  // as tiles with an fp8 cache do (docs/adr/0069-e4m3-queries.md)
};

// The power of two that takes the largest magnitude of a row into [128, 256).
__device__ float row_factor(const __nv_bfloat16* row, int count) {
  float top = 0;
  for (int i = 0; i < count; ++i) top = fmaxf(top, fabsf(__bfloat162float(row[i])));
  return top > 0 ? exp2f(7.0f - floorf(log2f(top))) : 1.0f;
}
__device__ float rounded(float x, float factor) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(
             __nv_cvt_float_to_fp8(x * factor, __NV_SATFINITE, __NV_E4M3), __NV_E4M3))) /
         factor;
}

// The weight of the token at `at` of the tokens whose scores these are.
__device__ float gate_weight(const rudder::cuda::GateParams& gate, int head, const float* scores,
                             int at) {
  float total = 0;
  for (int i = max(0, at - gate.length + 1); i <= at; ++i) {
    total += gate.relu_pre ? fmaxf(scores[i], 0.0f) : scores[i];
  }
  const float p = scores[at] - gate.sigma[head] * total / static_cast<float>(gate.length);
  return fminf(fmaxf(p, gate.low), gate.high);
}

// A row of out from its scores of the tokens [first, last].
template <typename Value>
__device__ void gated_row(const Plain& a, const float* scores, int first, int last, int head,
                          float* out, const Value& value) {
  for (int i = threadIdx.x; i < a.p.config.head_dim; i += blockDim.x) {
    float total = 0;
    for (int p = first; p <= last; ++p) {
      total += gate_weight(a.p.gate, head, scores, p - first) * value(p, i);
    }
    out[i] = total * a.p.gate.gamma[head];
  }
}

__global__ void plain_attention(const __grid_constant__ Plain a) {
  extern __shared__ float weights[];
  __shared__ float scratch[128];
  const AttentionConfig& c = a.p.config;
  const bool fp8 = rudder::cuda::is_narrow(c.kv_type);
  const int t = blockIdx.x;
  const int h = blockIdx.y;
  const int s = a.seq_of[t];
  const int hd = c.head_dim;
  float* out = a.out + (int64_t{t} * c.num_heads + h) * hd;
  const int kv_len = a.kv_len[s];
  if (kv_len == 0) {
    for (int i = threadIdx.x; i < hd; i += blockDim.x) out[i] = 0;
    return;
  }
  const int kv_head = h / (c.num_heads / c.num_kv_heads);
  const int position = kv_len - (a.q_begin[s + 1] - t);
  const int first = c.window > 0 ? max(0, position - c.window + 1) : 0;
  const int32_t* blocks = a.p.block_table + a.table_row[s] * a.p.max_blocks;
  const auto row = [&](int p, int part) {
    return (((int64_t{blocks[p / 16]} * 2 + part) * c.num_kv_heads + kv_head) * 16 + p % 16) * hd;
  };
  // A stored number, times the scale of its row.
  const auto stored = [&](int p, int part, int i) {
    const int64_t at = row(p, part) + i;
    if (a.p.scales.tokens == nullptr) return cache_value(a.cache, fp8, at);
    const float scale = a.p.scales.tokens[blocks[p / 16] * a.p.scales.token_pitch +
                                          (part * c.num_kv_heads + kv_head) * 16 + p % 16];
    return scale * (c.kv_type == KvType::kInt8Tokens
                        ? static_cast<float>(static_cast<const int8_t*>(a.cache)[at])
                        : cache_value(a.cache, true, at));
  };
  const auto* q = static_cast<const __nv_bfloat16*>(a.p.q) + (int64_t{t} * c.num_heads + h) * hd;
  const float k_scale = a.p.scales.k != nullptr ? a.p.scales.k[kv_head] : 1.0f;
  const float v_scale = a.p.scales.v != nullptr ? a.p.scales.v[kv_head] : 1.0f;
  const float factor = a.rounds_q ? row_factor(q, hd) : 1.0f;
  float top = -INFINITY;
  for (int p = first + threadIdx.x; p <= position; p += blockDim.x) {
    float dot = 0;
    for (int i = 0; i < hd; ++i) {
      const float x = __bfloat162float(q[i]);
      dot += (a.rounds_q ? rounded(x, factor) : x) * stored(p, 0, i);
    }
    float score = dot * k_scale * a.p.scale;
    if (a.p.softcap > 0) score = a.p.softcap * tanhf(score / a.p.softcap);
    weights[p - first] = score;
    top = fmaxf(top, score);
  }
  if (a.p.gate.length > 0) {
    __syncthreads();
    gated_row(a, weights, first, position, h, out,
              [&](int p, int i) { return stored(p, 1, i) * v_scale; });
    return;
  }
  scratch[threadIdx.x] = top;
  __syncthreads();
  for (int i = 0; i < blockDim.x; ++i) top = fmaxf(top, scratch[i]);
  __syncthreads();
  float sum = 0;
  for (int p = first + threadIdx.x; p <= position; p += blockDim.x) {
    weights[p - first] = expf(weights[p - first] - top);
    sum += weights[p - first];
  }
  scratch[threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < blockDim.x; ++i) sum += scratch[i];
  for (int i = threadIdx.x; i < hd; i += blockDim.x) {
    float total = 0;
    for (int p = first; p <= position; ++p) {
      total += weights[p - first] * stored(p, 1, i);
    }
    out[i] = total * v_scale / sum;
  }
}

// How many weights of a gate are zero, and how many tokens no head of the group weighs, over the
// first sequences of a decode. A block a (sequence, KV head).
__global__ void count_zeros(const __grid_constant__ AttentionParams p, const void* cache, bool fp8,
                            int32_t kv_len, unsigned long long* counts) {
  extern __shared__ float scores[];   // [kv_len] of a head
  __shared__ uint32_t weighed[4096];  // bit i: token
  const AttentionConfig& c = p.config;
  const int32_t group = c.num_heads / c.num_kv_heads;
  const int32_t hd = c.head_dim;
  for (int i = threadIdx.x; i < (kv_len + 31) / 32; i += blockDim.x) weighed[i] = 0;
  for (int32_t h = 0; h < group; ++h) {
    __syncthreads();
    const int32_t head = static_cast<int32_t>(blockIdx.y) * group + h;
    const auto* q =
        static_cast<const __nv_bfloat16*>(p.q) + (int64_t{blockIdx.x} * c.num_heads + head) * hd;
    for (int32_t t = threadIdx.x; t < kv_len; t += blockDim.x) {
      const int64_t block = p.block_table[blockIdx.x * p.max_blocks + t / 16];
      const int64_t k = ((block * 2 * c.num_kv_heads + blockIdx.y) * 16 + t % 16) * hd;
      float dot = 0;
      for (int i = 0; i < hd; ++i) dot += __bfloat162float(q[i]) * cache_value(cache, fp8, k + i);
      scores[t] = dot * p.scale;
    }
    __syncthreads();
    for (int32_t t = threadIdx.x; t < kv_len; t += blockDim.x) {
      if (gate_weight(p.gate, head, scores, t) == 0) {
        atomicAdd(&counts[0], 1ull);
      } else {
        atomicOr(&weighed[t / 32], 1u << t % 32);
      }
    }
  }
  __syncthreads();
  for (int32_t t = threadIdx.x; t < kv_len; t += blockDim.x) {
    if ((weighed[t / 32] >> t % 32 & 1) == 0) atomicAdd(&counts[1], 1ull);
  }
}

// --- a step ---

struct Batch {
  std::vector<int32_t> q_begin{0};
  std::vector<int32_t> kv_len;
  std::vector<int32_t> table_row;
  int32_t max_q_len = 0;

  void add(int32_t q_len, int32_t kv) {
    q_begin.push_back(q_begin.back() + q_len);
    kv_len.push_back(kv);
    max_q_len = std::max(max_q_len, q_len);
  }
  int32_t seqs() const { return static_cast<int32_t>(kv_len.size()); }
  int32_t tokens() const { return q_begin.back(); }
};

constexpr int32_t kMaxSeqs = 1024;
constexpr int32_t kMaxTokens = 32768;
constexpr int32_t kMaxHeads = 64;

// Device memory that every case uses anew.
// Room for scales of tokens.
constexpr int64_t kTokenScales = int64_t{1} << 27;

struct Device {
  int32_t* q_begin = device_array<int32_t>(kMaxSeqs + 1);
  int32_t* kv_len = device_array<int32_t>(kMaxSeqs);
  int32_t* table_row = device_array<int32_t>(kMaxSeqs);
  int32_t* seq_of = device_array<int32_t>(kMaxTokens);
  uint64_t* ancestors = device_array<uint64_t>(kMaxTokens);
  float* scales = device_array<float>(2 * kMaxHeads);  // of keys, then of values
  float* token_scales = device_array<float>(kTokenScales);
  float* gate_scales = device_array<float>(2 * kMaxHeads);  // sigma, then gamma
  __nv_bfloat16* q = device_array<__nv_bfloat16>(size_t{kMaxTokens} * 32 * 512);
  __nv_bfloat16* out = device_array<__nv_bfloat16>(size_t{kMaxTokens} * 32 * 512);
  float* expected = device_array<float>(size_t{4096} * 32 * 512);
  size_t cache_bytes = size_t{6} << 30;
  uint8_t* cache = device_array<uint8_t>(size_t{6} << 30);
  int32_t* valid = device_array<int32_t>(1 << 20);
  int32_t* tables = device_array<int32_t>(1 << 22);
  void* workspace =
      device_array<uint8_t>(rudder::cuda::attention_workspace_bytes(kMaxSeqs, kMaxTokens, 512));
  cudaStream_t stream = nullptr;
  int32_t sms = 132;

  Device() {
    must(cudaStreamCreate(&stream), "stream");
    cudaDeviceProp properties;
    must(cudaGetDeviceProperties(&properties, 0), "properties");
    sms = properties.multiProcessorCount;
    printf("%s, %d SMs\n", properties.name, sms);
  }
};

AttentionWorkParams work_params_of(const Device& d, const AttentionConfig& config,
                                   const Batch& batch) {
  AttentionWorkParams params;
  params.config = config;
  params.bounds = {batch.seqs(), batch.tokens(), batch.max_q_len};
  params.q_begin = d.q_begin;
  params.kv_len = d.kv_len;
  params.table_row = d.table_row;
  params.workspace = {d.workspace, kMaxSeqs, kMaxTokens};
  return params;
}

void upload_batch(const Device& d, const Batch& batch) {
  upload(d.q_begin, batch.q_begin);
  upload(d.kv_len, batch.kv_len);
  upload(d.table_row, batch.table_row);
  std::vector<int32_t> seq_of;
  for (int32_t s = 0; s < batch.seqs(); ++s) {
    for (int32_t i = batch.q_begin[s]; i < batch.q_begin[s + 1]; ++i) seq_of.push_back(s);
  }
  upload(d.seq_of, seq_of);
}

float widened(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float x;
  memcpy(&x, &word, 4);
  return x;
}

// May rows under this config have q in e4m3?
bool may_round(const AttentionConfig& config) {
  return config.kv_type == KvType::kFp8E4m3 &&
         (config.prefill_kernel == PrefillKernel::kWgmma || config.head_dim > 256);
}
// Of each row (token, head).
std::vector<double> row_errors(const Device& d, const AttentionParams& p,
                               const std::vector<uint16_t>& out, bool rounds_q) {
  Plain plain{p, d.cache, d.q_begin, d.kv_len, d.table_row, d.seq_of, d.expected, rounds_q};
  plain_attention<<<dim3(p.bounds.num_tokens, p.config.num_heads), 128, 4096 * 4>>>(plain);
  must(cudaDeviceSynchronize(), "plain");
  std::vector<float> expected(out.size());
  must(cudaMemcpy(expected.data(), d.expected, out.size() * 4, cudaMemcpyDeviceToHost), "download");
  std::vector<double> errors;
  for (size_t begin = 0; begin < out.size(); begin += p.config.head_dim) {
    double error = 0;
    double norm = 0;
    for (size_t i = begin; i < begin + p.config.head_dim; ++i) {
      const double delta = widened(out[i]) - expected[i];
      error += delta * delta;
      norm += double{expected[i]} * expected[i];
    }
    // A gate may weigh one token a little and the others not at all, also what is left of a score
    // where parts of it cancel.
    if (p.gate.length > 0) norm += (may_round(p.config) ? 1e-3 : 1e-4) * p.config.head_dim;
    const double relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
    errors.push_back(relative < 1e9 ? relative : 1e9);  // NaN too
  }
  return errors;
}

}  // namespace
