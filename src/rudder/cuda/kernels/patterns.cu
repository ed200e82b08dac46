#include "rudder/cuda/kernels/patterns.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLanes = 8;      // that share a key
constexpr int kChunk = 128;    // keys
constexpr int kHeadTile = 16;  // heads that share a read of K
constexpr int kBlocksPerSm = 2;
constexpr int kWords = tap::kMaxPatternHeads / 32;

// Every chunk of a row of several chunks has a pair of sums of its own, at the place of the row in
// the ring: a row of more than kChunk keys is that many times kPatternSumElements long.
static_assert(2 * ops::kPatternSumElements <= kChunk);

// Heads below `head` that are asked for.
__device__ int heads_before(const ops::PatternEntry& entry, int head) {
  int count = 0;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const int bits = min(max(head - w * 32, 0), 32);
    count += __popc(entry.heads[w] & (bits == 32 ? ~0u : (1u << bits) - 1));
  }
  return count;
}

// The sequence of a token: the last one that begins at or before it; -1 past the last.
__device__ int sequence_of(const PatternParams& p, int token) {
  if (p.num_seqs == 0 || token >= p.q_begin[p.num_seqs]) return -1;
  int low = 0;
  int high = p.num_seqs;  // q_begin[low] <= token < q_begin[high]
  while (high - low > 1) {
    const int mid = (low + high) / 2;
    (p.q_begin[mid] <= token ? low : high) = mid;
  }
  return low;
}

// The patterns of one token, and the keys [first, last] that it sees.
struct TokenPatterns {
  ops::PatternEntry entry;
  int seq = -1;  // -1: none are asked for
  int first = 0;
  int last = 0;

  __device__ TokenPatterns(const PatternParams& p, int token) {
    const int set = p.capture_set[token];
    if (set < 0) return;
    entry = p.entries[int64_t{set} * p.num_layers + p.layer];
    if (entry.offset < 0) return;
    const int found = sequence_of(p, token);
    if (found < 0 || p.kv_len[found] == 0) return;
    seq = found;
    last = p.kv_len[found] - p.q_begin[found + 1] + token;
    first = p.window > 0 ? max(0, last - p.window + 1) : 0;
  }
  __device__ int num_chunks() const { return (entry.keys + kChunk - 1) / kChunk; }
  __device__ bool fits() const { return last < entry.keys; }
  __device__ bool spans_chunks() const { return fits() && first / kChunk != last / kChunk; }
};

// One token, KV head and chunk.
struct Item {
  TokenPatterns of;
  int token;
  int kv_head;
  int chunk;
  int64_t record;  // of the first asked head of the layer, in elements of the ring
  int begin;       // keys [begin, end) of a row of the record
  int end;
  int low;  // keys [low, high] of them that the token sees; none: low > high
  int high;
  int first_head;  // of the KV head, among those that are asked for
  int num_heads;

  __device__ Item(const PatternParams& p, int token_, int index) : of(p, token_), token(token_) {
    const int chunks = of.num_chunks();
    kv_head = index / chunks;
    chunk = index % chunks;
    record = (int64_t{p.capture_begin[token]} + of.entry.offset) * tap::kCaptureAlign;
    begin = chunk * kChunk;
    end = min(begin + kChunk, of.entry.keys);
    low = max(begin, of.first);
    high = of.fits() ? min(end - 1, of.last) : -1;
    const int group = p.num_heads / p.num_kv_heads;
    first_head = heads_before(of.entry, kv_head * group);
    num_heads = heads_before(of.entry, (kv_head + 1) * group) - first_head;
  }
  // Of head n of those of the KV head that are asked for.
  __device__ int64_t row(int n) const { return record + int64_t{first_head + n} * of.entry.keys; }
  // The row's sums of chunk 0.
  __device__ int64_t sums(int n) const { return row(n) / ops::kPatternSumElements; }
  // The head itself.
  __device__ int head(const PatternParams& p, int n) const {
    int at = kv_head * (p.num_heads / p.num_kv_heads);
    while (heads_before(of.entry, at + 1) <= first_head + n) ++at;
    return at;
  }
};

// Calls work(item) for this block's part of the items; kSpanning: of tokens that see several chunks
// alone. All threads of the block call it together.
template <bool kSpanning, typename Work>
__device__ void share_items(const PatternParams& p, Work&& work) {
  __shared__ int ends[kThreads];  // of the items of each token of a tile
  __shared__ int warp_ends[kWarps];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int blocks = gridDim.x;
  int next = blockIdx.x;  // the block's next item, counted from the tile's first
  for (int tile = 0; tile < p.num_tokens; tile += kThreads) {
    const int token = tile + static_cast<int>(threadIdx.x);
    int count = 0;
    if (token < p.num_tokens) {
      const TokenPatterns patterns(p, token);
      if (patterns.seq >= 0 && (!kSpanning || patterns.spans_chunks())) {
        count = patterns.num_chunks() * p.num_kv_heads;
      }
    }
    if (__syncthreads_or(count) == 0) continue;
    int sum = count;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += before;
    }
    if (lane == 31) warp_ends[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += warp_ends[w];
    ends[threadIdx.x] = sum;
    __syncthreads();
    const int total = ends[kThreads - 1];
    for (; next < total; next += blocks) {
      int low = 0;
      int high = kThreads - 1;  // the first token whose items end behind `next`
      while (low < high) {
        const int mid = (low + high) / 2;
        if (ends[mid] > next) {
          high = mid;
        } else {
          low = mid + 1;
        }
      }
      const Item item(p, tile + low, next - (low > 0 ? ends[low - 1] : 0));
      if (item.num_heads > 0) work(item);
    }
    next -= total;
    __syncthreads();
  }
}

// 16 bytes of K as they lie in memory.
template <bool kFp8>
struct Vector {
  static constexpr int kElements = kFp8 ? 16 : 8;
  uint4 bits;

  // Sum of products with as many elements of q; `sum` is what comes before.
  __device__ float dot(const Bf16* q, float sum) const {
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    float k[kElements];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (kFp8) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto pair = static_cast<__nv_fp8x2_storage_t>(words[w] >> (16 * half));
          const float2 f = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
          k[4 * w + 2 * half] = f.x;
          k[4 * w + 2 * half + 1] = f.y;
        }
      } else {
        k[2 * w] = __uint_as_float(words[w] << 16);
        k[2 * w + 1] = __uint_as_float(words[w] & 0xffff0000u);
      }
    }
#pragma unroll
    for (int run = 0; run < kElements / kRun; ++run) {
      const Floats of_q = unpack(reinterpret_cast<const Packed*>(q)[run]);
#pragma unroll
      for (int i = 0; i < kRun; ++i) sum += k[run * kRun + i] * of_q.v[i];
    }
    return sum;
  }
};

// Elements [at, at + a vector) of a key; those from head_dim on are zero.
template <bool kFp8>
__device__ Vector<kFp8> load_vector(const uint8_t* key, int at, int head_dim) {
  constexpr int kBytes = kFp8 ? 1 : 2;
  constexpr int kElements = Vector<kFp8>::kElements;
  Vector<kFp8> out = {make_uint4(0, 0, 0, 0)};
  if (at >= head_dim) return out;
  if (head_dim % kElements == 0) {
    out.bits = *reinterpret_cast<const uint4*>(key + at * kBytes);
    return out;
  }
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (at + i >= head_dim) continue;
    uint32_t element;
    if constexpr (kFp8) {
      element = key[at + i];
    } else {
      element = reinterpret_cast<const uint16_t*>(key)[at + i];
    }
    words[i * kBytes / 4] |= element << (i * kBytes % 4 * 8);
  }
  out.bits = make_uint4(words[0], words[1], words[2], words[3]);
  return out;
}

struct Scores {
  // Of a tile of heads: q, and the scores of the chunk's keys, for a gate those in front as well.
  alignas(16) Bf16 q[kHeadTile][kPatternMaxHeadDim];
  float score[kHeadTile][kChunk + kMaxGateLength - 1];
  int head[kHeadTile];
};

// Scores of heads [0, num_heads) of the tile and keys [from, item.high].
template <bool kFp8, int kVectors>
__device__ void score_keys(const PatternParams& p, const Item& item, int from, int num_heads,
                           Scores& scores) {
  constexpr int kElements = Vector<kFp8>::kElements;
  constexpr int kKeys = kVectors <= 2 ? 4 : 8 / kVectors;  // that a lane holds at a time
  constexpr int kStride = kThreads / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int key_bytes = p.head_dim * (kFp8 ? 1 : 2);
  const int64_t head_bytes = int64_t{p.block_size} * key_bytes;
  const auto* const keys = static_cast<const uint8_t*>(p.kv) + item.kv_head * head_bytes;
  const int32_t* const blocks = p.block_table + p.table_row[item.of.seq] * p.max_blocks;
  const float scale = p.scale * (p.k_scale != nullptr ? p.k_scale[item.kv_head] : 1.0f);
  // The same number of rounds for all threads, whose lanes exchange sums.
  for (int round = from; round <= item.high; round += kKeys * kStride) {
    const int first = round + static_cast<int>(threadIdx.x) / kLanes;
    Vector<kFp8> k[kKeys][kVectors];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const int at = min(first + j * kStride, item.high);
      const uint8_t* const key =
          keys + int64_t{blocks[at / p.block_size]} * 2 * p.num_kv_heads * head_bytes +
          at % p.block_size * key_bytes;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        k[j][v] = load_vector<kFp8>(key, (v * kLanes + lane) * kElements, p.head_dim);
      }
    }
    for (int n = 0; n < num_heads; ++n) {
      float sum[kKeys] = {};
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const Bf16* const q = scores.q[n] + (v * kLanes + lane) * kElements;
#pragma unroll
        for (int j = 0; j < kKeys; ++j) sum[j] = k[j][v].dot(q, sum[j]);
      }
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
#pragma unroll
        for (int step = kLanes / 2; step > 0; step /= 2) {
          sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], step);
        }
        float score = sum[j] * scale;
        if (p.softcap != 0.0f) score = p.softcap * tanhf(score / p.softcap);
        const int at = first + j * kStride;
        if (lane == j && at <= item.high) scores.score[n][at - from] = score;
      }
    }
  }
}

// The clamped weights of a gate, of keys [item.low, item.high]; scores[i] is of key from + i. A
// warp.
__device__ void write_gated(const PatternParams& p, const Item& item, int from, int head,
                            const float* scores, Bf16* out) {
  const float factor = p.gate.sigma[head] / static_cast<float>(p.gate.length);
  for (int at = item.low + static_cast<int>(threadIdx.x) % 32; at <= item.high; at += 32) {
    float sum = 0;
    for (int i = p.gate.length - 1; i >= 0; --i) {
      const float score = at - i >= from ? scores[at - i - from] : 0.0f;
      sum += p.gate.relu_pre && score < 0.0f ? 0.0f : score;
    }
    const float weight = scores[at - from] - factor * sum;
    out[at] = __float2bfloat16_rn(weight < p.gate.low    ? p.gate.low
                                  : weight > p.gate.high ? p.gate.high
                                                         : weight);
  }
}

// What a row's exponentials relative to `largest` are divided by, where their sum is `sum`.
__device__ float softmax_divisor(const PatternParams& p, int head, float largest, float sum) {
  return p.sinks == nullptr ? sum : sum + expf(p.sinks[head] - largest);
}
__device__ float largest_with_sink(const PatternParams& p, int head, float largest) {
  return p.sinks == nullptr ? largest : fmaxf(largest, p.sinks[head]);
}

// The weights of a row whose keys lie in this chunk; of a longer row the exponentials relative to
// the largest score of the chunk, and `sums`. A warp; scores[i] is of key item.low + i.
__device__ void write_softmax(const PatternParams& p, const Item& item, int head,
                              const float* scores, Bf16* out, float2* sums) {
  const int lane = threadIdx.x % 32;
  const int count = item.high - item.low + 1;
  const bool is_whole = !item.of.spans_chunks();
  float largest = -INFINITY;
  for (int i = lane; i < count; i += 32) largest = fmaxf(largest, scores[i]);
  largest = warp_max(largest);
  if (is_whole) largest = largest_with_sink(p, head, largest);
  float sum = 0;
  for (int i = lane; i < count; i += 32) sum += expf(scores[i] - largest);
  sum = warp_sum(sum);
  const float divisor = is_whole ? softmax_divisor(p, head, largest, sum) : 1.0f;
  for (int i = lane; i < count; i += 32) {
    out[item.low + i] = __float2bfloat16_rn(expf(scores[i] - largest) / divisor);
  }
  if (!is_whole && lane == 0) *sums = make_float2(largest, sum);
}

// The item's part of the records. All threads.
template <bool kFp8, int kVectors>
__device__ void write_item(const PatternParams& p, const Item& item, Scores& scores) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int reach = max(p.gate.length - 1, 0);
  const int from = max(item.of.first, item.low - reach);
  for (int tile = 0; tile < item.num_heads; tile += kHeadTile) {
    const int num_heads = min(item.num_heads - tile, kHeadTile);
    if (item.low <= item.high) {
      __syncthreads();  // nobody reads the tile before
      if (static_cast<int>(threadIdx.x) < num_heads) {
        scores.head[threadIdx.x] = item.head(p, tile + static_cast<int>(threadIdx.x));
      }
      __syncthreads();
      constexpr int kWidth = kVectors * kLanes * Vector<kFp8>::kElements;
      for (int i = threadIdx.x; i < num_heads * kWidth; i += kThreads) {
        const int n = i / kWidth;
        const int d = i % kWidth;
        const int64_t head = int64_t{item.token} * p.num_heads + scores.head[n];
        scores.q[n][d] = d < p.head_dim ? static_cast<const Bf16*>(p.q)[head * p.head_dim + d]
                                        : __float2bfloat16(0.0f);
      }
      __syncthreads();
      score_keys<kFp8, kVectors>(p, item, from, num_heads, scores);
      __syncthreads();
    }
    for (int n = warp; n < num_heads; n += kWarps) {
      Bf16* const out = static_cast<Bf16*>(p.ring) + item.row(tile + n);
      for (int at = item.begin + lane; at < item.end; at += 32) {
        if (at < item.low || at > item.high) out[at] = __float2bfloat16(0.0f);
      }
      if (item.low > item.high) continue;
      if (p.gate.length > 0) {
        write_gated(p, item, from, scores.head[n], scores.score[n], out);
      } else {
        write_softmax(p, item, scores.head[n], scores.score[n], out,
                      p.sums + item.sums(tile + n) + item.chunk);
      }
    }
  }
}

template <bool kFp8, int kVectors>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    write_patterns_kernel(const __grid_constant__ PatternParams p) {
  __shared__ Scores scores;
  dependency_wait();
  dependency_trigger();
  share_items<false>(p, [&](const Item& item) { write_item<kFp8, kVectors>(p, item, scores); });
}

// Brings the exponentials of rows of several chunks to one sum. A warp for each head.
__global__ void __launch_bounds__(kThreads)
    normalise_patterns_kernel(const __grid_constant__ PatternParams p) {
  dependency_wait();
  dependency_trigger();
  share_items<true>(p, [&](const Item& item) {
    if (item.low > item.high) return;
    const int lane = threadIdx.x % 32;
    const int first = item.of.first / kChunk;
    const int last = item.of.last / kChunk;
    for (int n = static_cast<int>(threadIdx.x) / 32; n < item.num_heads; n += kWarps) {
      const int head = item.head(p, n);
      const float2* const sums = p.sums + item.sums(n);
      float largest = -INFINITY;
      for (int c = first + lane; c <= last; c += 32) largest = fmaxf(largest, sums[c].x);
      largest = largest_with_sink(p, head, warp_max(largest));
      float sum = 0;
      for (int c = first + lane; c <= last; c += 32) sum += sums[c].y * expf(sums[c].x - largest);
      const float factor =
          expf(sums[item.chunk].x - largest) / softmax_divisor(p, head, largest, warp_sum(sum));
      Bf16* const out = static_cast<Bf16*>(p.ring) + item.row(n);
      for (int at = item.low + lane; at <= item.high; at += 32) {
        out[at] = __float2bfloat16_rn(__bfloat162float(out[at]) * factor);
      }
    }
  });
}

template <bool kFp8>
auto kernel_of(int head_dim) {
  const int vectors = (head_dim + Vector<kFp8>::kElements - 1) / Vector<kFp8>::kElements;
  if (vectors <= kLanes) return write_patterns_kernel<kFp8, 1>;
  if (vectors <= 2 * kLanes) return write_patterns_kernel<kFp8, 2>;
  if constexpr (!kFp8) {
    if (vectors > 4 * kLanes) return write_patterns_kernel<kFp8, 8>;
  }
  return write_patterns_kernel<kFp8, 4>;
}

}  // namespace

cudaError_t launch_patterns(const PatternParams& params, cudaStream_t stream) {
  if (params.num_tokens <= 0) return cudaSuccess;
  if (params.head_dim > kPatternMaxHeadDim) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(params.num_sms * kBlocksPerSm));
  const cudaError_t error = launch_pdl(
      params.kv_is_fp8 ? kernel_of<true>(params.head_dim) : kernel_of<false>(params.head_dim), grid,
      dim3(kThreads), 0, stream, params);
  if (error != cudaSuccess || params.gate.length > 0) return error;
  return launch_pdl(normalise_patterns_kernel, grid, dim3(kThreads), 0, stream, params);
}

}  // namespace rudder::cuda
