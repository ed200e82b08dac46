// qkv_prep of many tokens (qkv_prep.h, rows_ahead.cuh): a block has one token after the other, or a
// part of its heads. What a warp needs of the table of rotations comes with them, once for all of
// its heads; what belongs to columns stays in shared memory.
#include "rudder/cuda/kernels/products/product_scales.cuh"
#include "rudder/cuda/kernels/qkv/qkv_prep.cuh"
#include "rudder/cuda/kernels/qkv/qkv_prep_ahead.h"
#include "rudder/cuda/kernels/rows/rows_ahead.cuh"

namespace rudder::cuda {
namespace {

constexpr unsigned kMaxWarps = 8;  // of a block
constexpr unsigned kThreadsPerSm = 768;

// A thread's cells: two runs, its pieces of two rotations in turn, what its columns have.
template <int kLanes, bool kScaled, bool kClips>
struct Layout {
  static constexpr int kRotationPieces = kLanes > 8 ? kLanes / 8 : 1;
  static constexpr int kRotation = 2;
  static constexpr int kWeight = kRotation + 2 * kRotationPieces;
  static constexpr int kAlpha = kWeight + 4;
  static constexpr int kScale = kAlpha + (kClips ? 4 : 0);
  static constexpr int kBias = kScale + (kScaled ? 4 : 0);
  static constexpr int kCells = kBias + (kScaled ? 4 : 0);
};

// Where the tokens of a block are, some of them at a time, a lane each.
class TokenOffsets {
 public:
  static constexpr unsigned kAtATime = 8;

  __device__ explicit TokenOffsets(const QkvPrepParams& p) : p_(p) {}

  // Of the n-th token of the block and those behind it; n is a multiple of kAtATime.
  __device__ void load(unsigned n) {
    const int64_t t = blockIdx.x + int64_t{n + threadIdx.x % kAtATime} * gridDim.x;
    if (t >= p_.rows) return;
    const int slot = p_.kv_slot[t];
    cache_ = slot < 0 ? -1 : kv_offset(slot, 0, 0, p_.block_size, p_.num_kv_heads, p_.head_dim);
    if (p_.rope != nullptr) rope_row_ = p_.rope_row[t];
  }
  // Of a token's first number in the cache; -1: none.
  __device__ int64_t cache(unsigned n) const {
    return __shfl_sync(0xffffffffu, static_cast<long long>(cache_), static_cast<int>(n % kAtATime));
  }
  __device__ int rope_row(unsigned n) const {
    return __shfl_sync(0xffffffffu, rope_row_, static_cast<int>(n % kAtATime));
  }

 private:
  const QkvPrepParams& p_;
  int64_t cache_ = -1;
  int32_t rope_row_ = 0;
};

// Heads of 16 numbers for each of kLanes lanes.
template <int kLanes, bool kScaled, bool kClips>
__global__ void __launch_bounds__(kMaxWarps * 32, kThreadsPerSm / (kMaxWarps * 32))
    qkv_prep_ahead_kernel(const __grid_constant__ QkvPrepParams p) {
  using Cell = Layout<kLanes, kScaled, kClips>;
  constexpr int kDim = 2 * kRun * kLanes;
  constexpr int kHeads = 32 / kLanes;  // of a warp
  extern __shared__ uint4 cells_shared[];
  const AheadCells<Cell::kCells> cells(cells_shared);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int half = p.rope == nullptr ? 0 : p.half_rot;
  const RunPair at = run_pair(lane % kLanes, kDim, half);
  const int beside = at.high - at.low;  // from the lower run to the upper one
  const int num_heads = p.num_heads + 2 * p.num_kv_heads;
  const int first = static_cast<int>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32) * kHeads;
  const bool exists = first + lane / kLanes < num_heads;
  const int number = exists ? first + lane / kLanes : 0;
  const Head head = head_of(p, number);
  const bool is_q = head.part == Part::kQ;
  const KvType type = is_q ? KvType::kBf16 : p.kv_type;
  const int element_bytes = is_narrow(type) ? 1 : 2;
  const bool is_rotated = at.is_rotated && head.part != Part::kV;
  const HeadNorm norm = norm_of(p, head);
  const bool has_norm = norm.weight != nullptr;
  const float scale = is_q ? 1.0f : kv_scale(p, head);  // of the cache
  const int column = number * kDim + at.low;            // of the lower run
  // Of that run in q_out, or in the cache, from where the token's are.
  const int64_t from_token =
      at.low + (is_q ? int64_t{head.index} * kDim
                     : kv_offset(0, head.part == Part::kK ? 0 : 1, head.index, p.block_size,
                                 p.num_kv_heads, kDim));
  char* const begin_of_head =
      static_cast<char*>(is_q ? p.q_out : p.kv_cache) + from_token * element_bytes;

  // Weights do not change: they are fetched while the kernel before this one ends.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int run = i * beside;
    if (has_norm) {
      cells.keep(Cell::kWeight + 2 * i, load_floats<true>(norm.weight + at.low + run, kRun));
      if constexpr (kClips) {
        cells.keep(Cell::kAlpha + 2 * i, load_floats<true>(norm.alpha + at.low + run, kRun));
      }
    }
    if constexpr (kScaled) {
      cells.keep(Cell::kScale + 2 * i, load_floats<true>(p.qkv_scales.column + column + run, kRun));
      const auto* const bias = static_cast<const Bf16*>(p.qkv_scales.bias);
      cells.keep(Cell::kBias + 2 * i,
                 unpack(load_run<true>(bias + column + run, bias == nullptr ? 0 : kRun)));
    }
  }

  const Bf16* from =
      static_cast<const Bf16*>(p.qkv) + int64_t{blockIdx.x} * num_heads * kDim + column;
  const int64_t step = int64_t{gridDim.x} * num_heads * kDim;
  const int pieces = first < p.num_heads + p.num_kv_heads ? half / 2 - lane : 0;
  const auto ask = [&](int64_t t, unsigned n, int rope_row) {
    cells.ask(0, from, true);
    cells.ask(1, from + beside, true);
    from += step;
    if constexpr (kScaled) cells.ask_number(p.qkv_scales.row + t);
    // Lanes read what others have asked for.
    const float* const table = p.rope + int64_t{rope_row} * 2 * half + 4 * lane;
    const int cell = Cell::kRotation + static_cast<int>(n % 2) * Cell::kRotationPieces;
#pragma unroll
    for (int c = 0; c < Cell::kRotationPieces; ++c) {
      if (c * 32 < pieces) cells.ask(cell + c, table + c * 128, true);
    }
  };
  const auto rotation = [&](unsigned n, int begin) {
    const int cell = Cell::kRotation + static_cast<int>(n % 2) * Cell::kRotationPieces;
    Floats out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int piece = begin / 4 + i;
      const Packed bits = cells.take_of(static_cast<unsigned>(piece % 32), cell + piece / 32);
      memcpy(&out.v[4 * i], &bits, sizeof(bits));
    }
    return out;
  };
  const auto scaled_run = [&](Floats x, float row_scale, int i) {
    const Floats of_column = cells.take_floats(Cell::kScale + 2 * i);
    const Floats bias = cells.take_floats(Cell::kBias + 2 * i);
#pragma unroll
    for (int j = 0; j < kRun; ++j) x.v[j] = fmaf(x.v[j], row_scale * of_column.v[j], bias.v[j]);
    return x;
  };

  dependency_wait();
  dependency_trigger();
  TokenOffsets offsets(p);
  offsets.load(0);
  ask(blockIdx.x, 0, offsets.rope_row(0));
  unsigned n = 0;
  for (int64_t t = blockIdx.x; t < p.rows; t += gridDim.x, ++n) {
    const int64_t cache = offsets.cache(n);
    cells.wait();
    __syncwarp();
    Floats low = unpack(cells.take(0));
    Floats high = unpack(cells.take(1));
    float row_scale = 1.0f;
    if constexpr (kScaled) row_scale = cells.take_number();
    if ((n + 1) % TokenOffsets::kAtATime == 0) offsets.load(n + 1);
    const int64_t next = t + gridDim.x;
    if (next < p.rows) ask(next, n + 1, offsets.rope_row(n + 1));
    if constexpr (kScaled) {
      low = scaled_run(low, row_scale, 0);
      high = scaled_run(high, row_scale, 1);
    }
    if constexpr (kClips) {
      if (has_norm) {
        low = clipped_run(low, cells.take_floats(Cell::kAlpha), cells.take_floats(Cell::kWeight));
        high = clipped_run(high, cells.take_floats(Cell::kAlpha + 2),
                           cells.take_floats(Cell::kWeight + 2));
      }
    } else {
      const float squares = squares_of_head<kLanes>(low, high);
      if (has_norm) {
        const float inverse = inverse_rms(squares, kDim, norm.eps);
        scale_by(low, inverse, cells.take_floats(Cell::kWeight));
        scale_by(high, inverse, cells.take_floats(Cell::kWeight + 2));
      }
    }
    if (is_rotated) rotate(low, high, rotation(n, at.low), rotation(n, half + at.low));
    if (!exists || (!is_q && cache < 0)) continue;
    const int64_t of_token = is_q ? t * p.num_heads * kDim : cache;
    char* const to = begin_of_head + element_bytes * of_token;
    store_head_run(type, scale, to, kRun, low);
    store_head_run(type, scale, to + element_bytes * beside, kRun, high);
  }
}

template <int kLanes, bool kScaled, bool kClips>
cudaError_t launch(const QkvPrepParams& p, cudaStream_t stream) {
  constexpr unsigned kHeads = 32 / kLanes;
  const auto heads = static_cast<unsigned>(p.num_heads + 2 * p.num_kv_heads);
  const unsigned warps = (heads + kHeads - 1) / kHeads;
  const unsigned parts = (warps + kMaxWarps - 1) / kMaxWarps;
  const unsigned threads = (warps + parts - 1) / parts * 32;
  const size_t bytes = AheadCells<Layout<kLanes, kScaled, kClips>::kCells>::bytes(threads);
  return launch_ahead(qkv_prep_ahead_kernel<kLanes, kScaled, kClips>, p,
                      ahead_grid(p.rows, parts, threads, kThreadsPerSm, bytes), threads, bytes,
                      false, stream);
}

template <int kLanes>
cudaError_t launch_lanes(const QkvPrepParams& p, cudaStream_t stream) {
  const bool clips = norms_of(p) == Norms::kClip;
  if (p.qkv_scales.row != nullptr) {
    return clips ? launch<kLanes, true, true>(p, stream) : launch<kLanes, true, false>(p, stream);
  }
  return clips ? launch<kLanes, false, true>(p, stream) : launch<kLanes, false, false>(p, stream);
}

}  // namespace

bool goes_ahead(const QkvPrepParams& p, int lanes) {
  constexpr int64_t kLeast = int64_t{3} << 20;  // numbers of q, k and v
  return p.rows * (p.num_heads + 2 * p.num_kv_heads) * p.head_dim >= kLeast &&
         p.head_dim == 2 * kRun * lanes && norms_of(p) != Norms::kAny && !scales_tokens(p.kv_type);
}

cudaError_t launch_qkv_prep_ahead(const QkvPrepParams& p, int lanes, cudaStream_t stream) {
  return for_lanes(lanes, [&](auto count) { return launch_lanes<count.value>(p, stream); });
}

}  // namespace rudder::cuda
