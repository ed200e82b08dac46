#include "rudder/cuda/kernels/adapters/adapter_tiles.cuh"
#include "rudder/cuda/kernels/adapters/adapters.h"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kWarps = 4;  // of a block
constexpr int kThreads = kWarps * 32;
constexpr int kMmas = 4;                      // of a warp: 16 outputs each
constexpr int kWarpOuts = kMmas * kTileRank;  // eight of a thread
constexpr int kBlocksPerSm = 4;
constexpr int kMostBlocks = 132 * kBlocksPerSm;  // that run at once

// Outputs of a warp, all of one part.
struct WarpOuts {
  int part = 0;
  int32_t begin = 0;  // of the thread's eight
  int32_t end = 0;    // of the part
  bool exists = false;
};

__device__ WarpOuts outs_of(const AdapterParams& params, int32_t warp, int lane) {
  int32_t begin = 0;
  for (int part = 0; part < params.parts; ++part) {
    const auto end = static_cast<int32_t>(params.part_end[part]);
    const int32_t warps = (end - begin + kWarpOuts - 1) / kWarpOuts;
    if (warp < warps) return {part, begin + warp * kWarpOuts + lane / 4 * kRun, end, true};
    warp -= warps;
    begin = end;
  }
  return {};
}

// 16 of the rank of a thread's eight outputs: output 2j is row g of multiplication j, 2j + 1 is row
// g + 8, so that what a thread has of the result lies together in y.
struct Factors {
  uint2 row[kRun];
};

__device__ void load_factors(const AdapterParams& params, int row, const WarpOuts& outs, int piece,
                             int lane, Factors& factors) {
  const Bf16* const b = static_cast<const Bf16*>(params.b) +
                        (int64_t{row} * params.out + outs.begin) * params.rank + piece * kTileRank +
                        lane % 4 * 4;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    factors.row[i] = make_uint2(0, 0);
    if (row >= 0 && outs.begin + i < outs.end) {
      factors.row[i] = __ldcg(reinterpret_cast<const uint2*>(b + i * params.rank));
    }
  }
}

// Four numbers as two bf16 each whose sum they are, but for 2^-17 of them.
struct Middle {
  uint2 high;
  uint2 low;
};

__device__ uint2 bits_of(__nv_bfloat162 first, __nv_bfloat162 second) {
  uint2 out;
  memcpy(&out.x, &first, sizeof(out.x));
  memcpy(&out.y, &second, sizeof(out.y));
  return out;
}
__device__ Middle split(const float4& m) {
  const __nv_bfloat162 first = __floats2bfloat162_rn(m.x, m.y);
  const __nv_bfloat162 second = __floats2bfloat162_rn(m.z, m.w);
  return {bits_of(first, second),
          bits_of(__floats2bfloat162_rn(m.x - __low2float(first), m.y - __high2float(first)),
                  __floats2bfloat162_rn(m.z - __low2float(second), m.w - __high2float(second)))};
}

// Of the token whose place in the order is `index`; not there: zeros.
__device__ float4 load_middle(const AdapterParams& params, const ops::AdapterGroup& group,
                              int index, const WarpOuts& outs, int piece, int lane) {
  if (index >= group.count) return make_float4(0, 0, 0, 0);
  const int64_t width = int64_t{params.parts} * params.rank;
  return *reinterpret_cast<const float4*>(params.mid + (group.begin + index) * width +
                                          outs.part * params.rank + piece * kTileRank +
                                          lane % 4 * 4);
}

// Of rows with a gain, which few adapters have.
__device__ void apply_gains(const AdapterParams& params, int row, const WarpOuts& outs, int left,
                            Floats& y) {
  const int64_t at = int64_t{row} * params.out + outs.begin;
  // What reads a product that lacks its scales adds the bias, which has no gain.
  const bool has_offsets = params.offsets != nullptr && params.product.row == nullptr;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (i >= left) continue;
    y.v[i] *= __ldcg(params.gains + at + i);
    if (has_offsets) y.v[i] += __ldcg(params.offsets + at + i);
  }
}

// Adds to eight outputs of a token; those past the part's end are not there. kScaled: of a product
// that lacks its scales, by which what is added is divided.
template <bool kAligned, bool kScaled>
__device__ void store_outs(const AdapterParams& params, int row, int64_t token,
                           const WarpOuts& outs, float2 scale, const Floats& sums, Packed before) {
  const int left = kAligned ? kRun : min(outs.end - outs.begin, kRun);
  Floats y = unpack(before);
  const float by = kScaled ? params.product.row[token] : 1.0f;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (i >= left) continue;
    float delta = scale.x * sums.v[i];
    if constexpr (kScaled) {
      const float whole = by * params.product.column[outs.begin + i];
      delta = whole == 0.0f ? 0.0f : __fdividef(delta, whole);
    }
    y.v[i] += delta;
  }
  if (__builtin_expect(scale.y != 0.0f, 0)) apply_gains(params, row, outs, left, y);
  store_run<kAligned>(static_cast<Bf16*>(params.y) + token * params.out + outs.begin, left,
                      pack(y));
}

// What a warp reads of a group that no kernel writes.
struct Ahead {
  ops::AdapterGroup group;
  float2 scale;
  Factors factors;
  int token[kGroupTiles][2];  // of the thread; -1: none
};

__device__ void fetch_ahead(const AdapterParams& params, const WarpOuts& outs, int lane,
                            Ahead& ahead) {
  const ops::AdapterGroup& group = ahead.group;
  const int row = group.count > 0 ? group.row : -1;
  ahead.scale = row < 0 ? float2{} : load_scale(params, row, outs.part);
  load_factors(params, row, outs, 0, lane, ahead.factors);
#pragma unroll
  for (int tile = 0; tile < kGroupTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ahead.token[tile][i] = load_token(params, group, tile * kTileTokens + lane % 4 * 2 + i);
    }
  }
}

// What it reads of a group that kernels in front write: outputs of the thread's tokens, and what
// shrink made of a token.
struct Written {
  Packed before[kGroupTiles][2];
  float4 middle[kGroupTiles];
};

__device__ int pieces_of(const AdapterParams& params, const Ahead& ahead) {
  return ahead.scale.x == 0.0f ? 0 : params.rank / kTileRank;
}

template <bool kAligned>
__device__ void fetch_written(const AdapterParams& params, const WarpOuts& outs, int lane,
                              const Ahead& ahead, Written& written) {
  if (ahead.scale.x == 0.0f && ahead.scale.y == 0.0f) return;
  const ops::AdapterGroup& group = ahead.group;
  const int left = outs.end - outs.begin;
#pragma unroll
  for (int tile = 0; tile < kGroupTiles; ++tile) {
    if (tile * kTileTokens >= group.count) continue;
    if (pieces_of(params, ahead) > 0) {
      written.middle[tile] =
          load_middle(params, group, tile * kTileTokens + lane / 4, outs, 0, lane);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (ahead.token[tile][i] < 0 || left <= 0) continue;
      written.before[tile][i] =
          load_run<kAligned>(static_cast<const Bf16*>(params.y) +
                                 int64_t{ahead.token[tile][i]} * params.out + outs.begin,
                             min(left, kRun));
    }
  }
}

// Adds to the outputs of a group's tokens.
template <bool kAligned, bool kScaled>
__device__ void expand_group(const AdapterParams& params, const WarpOuts& outs, int lane,
                             const Ahead& ahead, const Written& written) {
  const ops::AdapterGroup& group = ahead.group;
  if (ahead.scale.x == 0.0f && ahead.scale.y == 0.0f) return;
  const int pieces = pieces_of(params, ahead);
  const int left = outs.end - outs.begin;
  Factors factors = ahead.factors;
#pragma unroll
  for (int tile = 0; tile < kGroupTiles; ++tile) {
    if (tile * kTileTokens >= group.count) continue;
    float c[kMmas][4] = {};
    for (int piece = 0; piece < pieces; ++piece) {
      if (pieces > 1 && (piece > 0 || tile > 0)) {
        load_factors(params, group.row, outs, piece, lane, factors);
      }
      const Middle m = split(piece == 0 ? written.middle[tile]
                                        : load_middle(params, group, tile * kTileTokens + lane / 4,
                                                      outs, piece, lane));
#pragma unroll
      for (int j = 0; j < kMmas; ++j) {
        adapter_mma(c[j], factors.row[2 * j], factors.row[2 * j + 1], m.low);
        adapter_mma(c[j], factors.row[2 * j], factors.row[2 * j + 1], m.high);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (ahead.token[tile][i] < 0 || left <= 0) continue;
      Floats sums;
#pragma unroll
      for (int j = 0; j < kMmas; ++j) {
        sums.v[2 * j] = c[j][i];
        sums.v[2 * j + 1] = c[j][2 + i];
      }
      store_outs<kAligned, kScaled>(params, group.row, ahead.token[tile][i], outs, ahead.scale,
                                    sums, written.before[tile][i]);
    }
  }
}

// A warp has 64 outputs of one group after another, and fetches the next one's B meanwhile. Of a
// thread, with g = lane / 4 and t = lane % 4, they are eight that lie together, of tokens 2t and
// 2t + 1 of each tile.
template <bool kAligned, bool kScaled>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    expand_kernel(const AdapterParams params) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const WarpOuts outs =
      outs_of(params, static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32), lane);
  auto index = static_cast<int>(blockIdx.y);
  const auto next_group = [&] {
    ops::AdapterGroup group;
    if (outs.exists && index < params.most_groups) group = load_group(params, index);
    index += static_cast<int>(gridDim.y);
    return group;
  };
  Ahead ahead;
  ahead.group = next_group();
  ops::AdapterGroup following = next_group();
  fetch_ahead(params, outs, lane, ahead);
  dependency_wait();
  dependency_trigger();
  while (ahead.group.count > 0) {
    // What the group waits for is asked for in front of the next one's.
    Written written;
    fetch_written<kAligned>(params, outs, lane, ahead, written);
    Ahead next;
    next.group = following;
    if (following.count > 0) {
      fetch_ahead(params, outs, lane, next);
      following = next_group();
    }
    expand_group<kAligned, kScaled>(params, outs, lane, ahead, written);
    ahead = next;
  }
}

}  // namespace

cudaError_t launch_expand_adapters(const AdapterParams& params, cudaStream_t stream) {
  int64_t warps = 0;
  int64_t begin = 0;
  bool is_aligned = params.out % kRun == 0;
  for (int part = 0; part < params.parts; ++part) {
    is_aligned = is_aligned && params.part_end[part] % kRun == 0;
    warps += (params.part_end[part] - begin + kWarpOuts - 1) / kWarpOuts;
    begin = params.part_end[part];
  }
  const int64_t blocks = (warps + kWarps - 1) / kWarps;
  int64_t groups = kMostBlocks / blocks;  // at a time
  if (groups < 1) groups = 1;
  if (groups > params.most_groups) groups = params.most_groups;
  const bool is_scaled = params.product.row != nullptr;
  const auto kernel = is_aligned
                          ? is_scaled ? expand_kernel<true, true> : expand_kernel<true, false>
                      : is_scaled ? expand_kernel<false, true>
                                  : expand_kernel<false, false>;
  return launch_pdl(kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(groups)),
                    dim3(kThreads), 0, stream, params);
}

}  // namespace rudder::cuda
