// qkv_prep of many tokens (qkv_prep.h, row_stream.cuh): a block has one token after the other, a
// warp some of its heads, two at a time. What a warp needs of the table of rotations comes with
// them, once for all of its heads.
#include <cstdlib>

#include "rudder/cuda/kernels/product_scales.cuh"
#include "rudder/cuda/kernels/qkv_prep.cuh"
#include "rudder/cuda/kernels/row_stream.cuh"
#include "rudder/cuda/kernels/stream_qkv_prep.h"

namespace rudder::cuda {
namespace {

constexpr unsigned kMaxWarps = 8;  // of a block

int g_each = std::getenv("ROWS_EACH") ? std::atoi(std::getenv("ROWS_EACH")) : 1;

// Where the tokens of a block lie, 32 of them at a time, a lane each.
class TokenPlaces {
 public:
  __device__ explicit TokenPlaces(const QkvPrepParams& p) : p_(p) {}

  // Of the n-th token of the block and those behind it; n is a multiple of 32.
  __device__ void load(unsigned n) {
    const int64_t t = blockIdx.x + int64_t{n + threadIdx.x % 32} * gridDim.x;
    if (t >= p_.rows) return;
    const int slot = p_.kv_slot[t];
    cache_ = slot < 0 ? -1 : kv_offset(slot, 0, 0, p_.block_size, p_.num_kv_heads, p_.head_dim);
    if (p_.rope != nullptr) rope_row_ = p_.rope_row[t];
  }
  // Of a token's first number in the cache; -1: none.
  __device__ int64_t cache(unsigned n) const {
    return __shfl_sync(0xffffffffu, static_cast<long long>(cache_), static_cast<int>(n % 32));
  }
  __device__ int rope_row(unsigned n) const {
    return __shfl_sync(0xffffffffu, rope_row_, static_cast<int>(n % 32));
  }

 private:
  const QkvPrepParams& p_;
  int64_t cache_ = -1;
  int32_t rope_row_ = 0;
};

// The numbers of a run that a product has left without scales.
__device__ inline Floats scaled_product(const ProductScales& scales, float row, int column,
                                        Floats x) {
  const Floats of_column = load_floats<true>(scales.column + column, kRun);
  if (scales.bias == nullptr) {
#pragma unroll
    for (int j = 0; j < kRun; ++j) x.v[j] = fmaf(x.v[j], row * of_column.v[j], 0.0f);
    return x;
  }
  const Floats bias =
      unpack(load_run<true>(static_cast<const Bf16*>(scales.bias) + column, kRun));
#pragma unroll
  for (int j = 0; j < kRun; ++j) x.v[j] = fmaf(x.v[j], row * of_column.v[j], bias.v[j]);
  return x;
}

// The inverse of the root of each head's mean square; the order of a sum is qkv_prep_kernel's.
template <int kLanes, int kEach>
__device__ void inverses_of(const Floats (&low)[kEach], const Floats (&high)[kEach],
                            const float (&eps)[kEach], float (&inverse)[kEach]) {
  constexpr int kDim = 2 * kRun * kLanes;
  constexpr int kHalf = kLanes / 2;
  float squares[kEach];
#pragma unroll
  for (int h = 0; h < kEach; ++h) {
    squares[h] = 0.0f;
#pragma unroll
    for (int j = 0; j < kRun; ++j) squares[h] = fmaf(low[h].v[j], low[h].v[j], squares[h]);
#pragma unroll
    for (int j = 0; j < kRun; ++j) squares[h] = fmaf(high[h].v[j], high[h].v[j], squares[h]);
  }
  if constexpr (kEach == 1) {
    float sum = squares[0];
#pragma unroll
    for (int step = kHalf; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    inverse[0] = inverse_rms(sum, kDim, eps[0]);
  } else {
    static_assert(kEach == 2);
    // Half of the lanes go on with one head.
    const bool is_upper = (threadIdx.x & kHalf) != 0;
    float sum = is_upper ? squares[1] : squares[0];
    sum += __shfl_xor_sync(0xffffffffu, is_upper ? squares[0] : squares[1], kHalf);
#pragma unroll
    for (int step = kHalf / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float own = inverse_rms(sum, kDim, is_upper ? eps[1] : eps[0]);
    const float other = __shfl_xor_sync(0xffffffffu, own, kHalf);
    inverse[0] = is_upper ? other : own;
    inverse[1] = is_upper ? own : other;
  }
}

__device__ inline void store_head(bool is_fp8, float scale, void* to, Floats x) {
  if (!is_fp8) return store_run<true>(static_cast<Bf16*>(to), kRun, pack(x));
  if (scale != 1.0f) {
#pragma unroll
    for (float& v : x.v) v = scaled_for_fp8(v, scale);
  }
  store_run_fp8<true>(static_cast<uint8_t*>(to), kRun, x);
}

// Heads of 16 numbers for each of kLanes lanes; a lane has kEach of them.
template <int kLanes, int kEach, bool kScaled, bool kClips, int kMin>
__global__ void __launch_bounds__(kMaxWarps * 32, kMin)
    stream_qkv_prep_kernel(const __grid_constant__ QkvPrepParams p) {
  constexpr int kDim = 2 * kRun * kLanes;
  constexpr int kHeads = 32 / kLanes;                  // of a warp, at a time
  constexpr int kTable = kLanes > 8 ? kLanes / 8 : 1;  // cells for a row of the rotations
  extern __shared__ uint4 cells_shared[];
  const StreamCells<2 * kEach + 2 * kTable> cells(cells_shared);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int half = p.rope == nullptr ? 0 : p.half_rot;
  const RunPair at = run_pair(lane % kLanes, kDim, half);
  const int num_heads = p.num_heads + 2 * p.num_kv_heads;
  const int first =
      static_cast<int>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32) * kEach * kHeads;
  const bool has_table = half > 0 && first < p.num_heads + p.num_kv_heads;
  const int pieces = has_table ? half / 2 - lane : 0;  // of the table, from the lane's on
  bool exists[kEach];
  bool is_q[kEach];
  bool is_rotated[kEach];
  bool is_fp8[kEach];
  HeadNorm norm[kEach];
  float eps[kEach];
  float scale[kEach];  // of the cache
  int column[kEach];   // of the lane's lower run
  char* place[kEach];  // of that run in q_out, or in the cache, from where the token's are
#pragma unroll
  for (int h = 0; h < kEach; ++h) {
    const int number = first + h * kHeads + lane / kLanes;
    exists[h] = number < num_heads;
    const Head head = head_of(p, exists[h] ? number : 0);
    column[h] = (exists[h] ? number : 0) * kDim + at.low;
    is_q[h] = head.part == Part::kQ;
    is_fp8[h] = !is_q[h] && p.kv_is_fp8;
    is_rotated[h] = at.is_rotated && head.part != Part::kV;
    norm[h] = norm_of(p, head);
    eps[h] = norm[h].eps;
    scale[h] = is_q[h] ? 1.0f : kv_scale(p, head);
    const int64_t number_of = is_q[h] ? int64_t{head.index} * kDim
                                      : kv_offset(0, head.part == Part::kK ? 0 : 1, head.index,
                                                  p.block_size, p.num_kv_heads, kDim);
    place[h] = static_cast<char*>(is_q[h] ? p.q_out : p.kv_cache) +
               (number_of + at.low) * (is_fp8[h] ? 1 : 2);
  }
  const int beside = at.high - at.low;  // from the lower run to the upper one
  const Bf16* from = static_cast<const Bf16*>(p.qkv) + int64_t{blockIdx.x} * num_heads * kDim;
  const int64_t step = int64_t{gridDim.x} * num_heads * kDim;
  const auto ask = [&](int64_t t) {
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
      cells.ask(2 * h, from + column[h], true);
      cells.ask(2 * h + 1, from + column[h] + beside, true);
    }
    from += step;
    if constexpr (kScaled) cells.ask_number(p.qkv_scales.row + t);
  };
  // Two tables in turn: lanes read what others asked for.
  const auto ask_table = [&](unsigned n, int row) {
    const float* const table = p.rope + int64_t{row} * 2 * half + 4 * lane;
#pragma unroll
    for (int c = 0; c < kTable; ++c) {
      if (c * 32 < pieces) {
        cells.ask(2 * kEach + static_cast<int>(n % 2) * kTable + c, table + c * 128, true);
      }
    }
  };
  const auto rotation = [&](unsigned n, int from) {
    Floats out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int piece = from / 4 + i;
      const Packed bits = cells.take_of(static_cast<unsigned>(piece % 32),
                                        2 * kEach + static_cast<int>(n % 2) * kTable + piece / 32);
      memcpy(&out.v[4 * i], &bits, sizeof(bits));
    }
    return out;
  };

  dependency_wait();
  dependency_trigger();
  TokenPlaces places(p);
  places.load(0);
  ask(blockIdx.x);
  ask_table(0, places.rope_row(0));
  unsigned n = 0;
  for (int64_t t = blockIdx.x; t < p.rows; t += gridDim.x, ++n) {
    const int64_t cache = places.cache(n);
    cells.wait();
    __syncwarp();
    Floats low[kEach];
    Floats high[kEach];
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
      low[h] = unpack(cells.take(2 * h));
      high[h] = unpack(cells.take(2 * h + 1));
    }
    float row_scale = 1.0f;
    if constexpr (kScaled) row_scale = cells.take_number();
    if ((n + 1) % 32 == 0) places.load(n + 1);
    const int64_t next = t + gridDim.x;
    if (next < p.rows) {
      ask(next);
      ask_table(n + 1, places.rope_row(n + 1));
    }
    if constexpr (kScaled) {
#pragma unroll
      for (int h = 0; h < kEach; ++h) {
        low[h] = scaled_product(p.qkv_scales, row_scale, column[h], low[h]);
        high[h] = scaled_product(p.qkv_scales, row_scale, column[h] + beside, high[h]);
      }
    }
    float inverse[kEach];
    if constexpr (!kClips) inverses_of<kLanes>(low, high, eps, inverse);
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
      if (norm[h].weight == nullptr) continue;
      const float* const weight = norm[h].weight + at.low;
      const Floats low_weight = load_floats<true>(weight, kRun);
      const Floats high_weight = load_floats<true>(weight + beside, kRun);
      if constexpr (kClips) {
        const float* const alpha = norm[h].alpha + at.low;
        low[h] = clipped_run(low[h], load_floats<true>(alpha, kRun), low_weight);
        high[h] = clipped_run(high[h], load_floats<true>(alpha + beside, kRun), high_weight);
      } else {
        scale_by(low[h], inverse[h], low_weight);
        scale_by(high[h], inverse[h], high_weight);
      }
    }
    if (has_table && at.is_rotated) {
      const Floats cosine = rotation(n, at.low);
      const Floats sine = rotation(n, half + at.low);
#pragma unroll
      for (int h = 0; h < kEach; ++h) {
        if (is_rotated[h]) rotate(low[h], high[h], cosine, sine);
      }
    }
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
      if (!exists[h] || (!is_q[h] && cache < 0)) continue;
      const int64_t number = is_q[h] ? t * p.num_heads * kDim : cache;
      char* const to = place[h] + (is_fp8[h] ? number : 2 * number);
      store_head(is_fp8[h], scale[h], to, low[h]);
      store_head(is_fp8[h], scale[h], to + (is_fp8[h] ? beside : 2 * beside), high[h]);
    }
  }
}

template <int kLanes, int kEach, int kMin = kEach == 1 ? 4 : 3>
cudaError_t launch_lanes(const QkvPrepParams& p, cudaStream_t stream) {
  constexpr int kTable = kLanes > 8 ? kLanes / 8 : 1;
  constexpr unsigned kHeadsOfWarp = kEach * 32 / kLanes;
  constexpr int64_t kThreadsPerSm = 256 * kMin;  // that registers are enough for
  const auto heads = static_cast<unsigned>(p.num_heads + 2 * p.num_kv_heads);
  const unsigned warps = (heads + kHeadsOfWarp - 1) / kHeadsOfWarp;
  const unsigned parts = (warps + kMaxWarps - 1) / kMaxWarps;
  const unsigned threads = (warps + parts - 1) / parts * 32;
  const size_t bytes = StreamCells<2 * kEach + 2 * kTable>::bytes(threads);
  const bool scaled = p.qkv_scales.row != nullptr;
  const auto kernel = norms_of(p) == Norms::kClip
                          ? (scaled ? stream_qkv_prep_kernel<kLanes, kEach, true, true, kMin>
                                    : stream_qkv_prep_kernel<kLanes, kEach, false, true, kMin>)
                          : (scaled ? stream_qkv_prep_kernel<kLanes, kEach, true, false, kMin>
                                    : stream_qkv_prep_kernel<kLanes, kEach, false, false, kMin>);
  return launch_stream(kernel, p, stream_grid(p.rows, parts, threads, kThreadsPerSm, bytes),
                       threads, bytes, stream);
}

}  // namespace

int64_t kStreamedTokens = std::getenv("ROWS_FROM") ? std::atoll(std::getenv("ROWS_FROM")) : 512;

bool streams(const QkvPrepParams& p, int lanes) {
  return p.rows >= kStreamedTokens && p.head_dim == 2 * kRun * lanes && norms_of(p) != Norms::kAny;
}

cudaError_t launch_streamed_qkv_prep(const QkvPrepParams& p, int lanes, cudaStream_t stream) {
  switch (lanes) {
    case 4:
      return launch_lanes<4, 1>(p, stream);
    case 8:
      if (g_each == 3) return launch_lanes<8, 1, 3>(p, stream);
      return g_each == 1 ? launch_lanes<8, 1>(p, stream) : launch_lanes<8, 2>(p, stream);
    case 16:
      return launch_lanes<16, 1>(p, stream);
    case 32:
      return launch_lanes<32, 1>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace rudder::cuda
