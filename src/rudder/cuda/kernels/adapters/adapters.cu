#include "rudder/cuda/kernels/adapters/adapters.h"
#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kShrinkWarps = 4;
constexpr int kRowsOfWarp = 4;                            // rows of A
constexpr int kRowsOfBlock = kShrinkWarps * kRowsOfWarp;  // all of one part: the rank is a multiple
constexpr int kRunsOfLane = static_cast<int>(kAdapterRun) / (32 * kRun);
constexpr int kExpandThreads = 256;
constexpr int kChunk = 16;         // of the rank
constexpr int kTile = 4;           // tokens of a block
constexpr int kFewTokens = 16;     // up to which each has blocks of its own
constexpr int kWidestTile = 1024;  // columns of mid of a block that has several tokens

// The tokens of a block, and the table rows that they have; -1: none, or one that leaves the part
// as it is.
template <int kTokens>
struct TileRows {
  int row[kTokens];
  int token[kTokens];

  // All that have a row have the same.
  __device__ bool is_uniform() const {
    const int shared = first();
    bool is = true;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) is = is && (row[i] < 0 || row[i] == shared);
    return is;
  }
  __device__ int first() const {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (row[i] >= 0) return row[i];
    }
    return -1;
  }
};

template <int kTokens>
__device__ TileRows<kTokens> rows_of_tile(const AdapterParams& params, int64_t begin, int part) {
  TileRows<kTokens> out;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const bool exists = begin + i < params.tokens;
    out.token[i] = static_cast<int>(begin) + i;
    if (exists && params.order != nullptr) out.token[i] = params.order[begin + i];
    int row = exists ? params.rows[out.token[i]] : -1;
    if (row >= 0 && params.scales[row * params.parts + part] == 0.0f) row = -1;
    out.row[i] = row;
  }
  return out;
}

// Of the elements that are left, those of one run.
__device__ int run_length(int64_t left) {
  return static_cast<int>(left < 0 ? 0 : left > kRun ? kRun : left);
}

// [kRowsOfWarp] rows of A, kAdapterRun inputs of each.
struct ShrinkWeights {
  Packed run[kRowsOfWarp][kRunsOfLane];
};

template <bool kAligned>
__device__ void load_weights(const AdapterParams& params, int row, int first, int64_t column,
                             ShrinkWeights& weights) {
  const int64_t width = int64_t{params.parts} * params.rank;
  const Bf16* const a = static_cast<const Bf16*>(params.a) + (row * width + first) * params.in;
#pragma unroll
  for (int j = 0; j < kRowsOfWarp; ++j) {
#pragma unroll
    for (int run = 0; run < kRunsOfLane; ++run) {
      const int64_t at = column + run * 32 * kRun;
      const int64_t left = params.in - at;
      weights.run[j][run] =
          load_run<kAligned>(a + j * params.in + at, static_cast<int>(left < 0      ? 0
                                                                      : left > kRun ? kRun
                                                                                    : left));
    }
  }
}

// Adds to `sums` what one run of inputs gives.
__device__ void add_run(const ShrinkWeights& weights, const Packed (&x)[kRunsOfLane],
                        float (&sums)[kRowsOfWarp]) {
#pragma unroll
  for (int run = 0; run < kRunsOfLane; ++run) {
    const Floats values = unpack(x[run]);
#pragma unroll
    for (int j = 0; j < kRowsOfWarp; ++j) {
      const Floats factors = unpack(weights.run[j][run]);
#pragma unroll
      for (int k = 0; k < kRun; ++k) sums[j] = fmaf(factors.v[k], values.v[k], sums[j]);
    }
  }
}

template <bool kAligned>
__device__ void load_inputs(const AdapterParams& params, int token, bool exists, int64_t column,
                            Packed (&x)[kRunsOfLane]) {
  const Bf16* const from = static_cast<const Bf16*>(params.x) + token * params.in;
#pragma unroll
  for (int run = 0; run < kRunsOfLane; ++run) {
    const int64_t at = column + run * 32 * kRun;
    x[run] = load_run<kAligned>(from + at, exists ? run_length(params.in - at) : 0);
  }
}

// A warp has kRowsOfWarp rows of A and one slice of the inputs, of the tokens of a tile. Where all
// of them have one adapter, its matrix stays in registers, and all inputs are on their way at once.
template <bool kAligned, int kTokens>
__global__ void __launch_bounds__(kShrinkWarps * 32)
    shrink_kernel(const AdapterParams params, const int64_t slice_width) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) * kRowsOfBlock +
                    static_cast<int>(threadIdx.x) / 32 * kRowsOfWarp;
  const int part = first / params.rank;
  const TileRows<kTokens> tile = rows_of_tile<kTokens>(params, int64_t{blockIdx.z} * kTokens, part);
  const int64_t slice_begin = blockIdx.y * slice_width;
  const int64_t slice_end =
      slice_begin + slice_width < params.in ? slice_begin + slice_width : params.in;

  ShrinkWeights weights;
  const int shared = tile.first();
  const bool is_uniform = tile.is_uniform();
  if (shared >= 0)
    load_weights<kAligned>(params, shared, first, slice_begin + lane * kRun, weights);
  dependency_wait();
  dependency_trigger();
  if (shared < 0) return;

  float sums[kTokens][kRowsOfWarp] = {};
  for (int64_t begin = slice_begin; begin < slice_end; begin += kAdapterRun) {
    const int64_t column = begin + lane * kRun;
    if (is_uniform) {
      Packed x[kTokens][kRunsOfLane];
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        load_inputs<kAligned>(params, tile.token[i], tile.row[i] >= 0, column, x[i]);
      }
      if (begin > slice_begin) load_weights<kAligned>(params, shared, first, column, weights);
#pragma unroll
      for (int i = 0; i < kTokens; ++i) add_run(weights, x[i], sums[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        if (tile.row[i] < 0) continue;
        Packed x[kRunsOfLane];
        load_inputs<kAligned>(params, tile.token[i], true, column, x);
        load_weights<kAligned>(params, tile.row[i], first, column, weights);
        add_run(weights, x, sums[i]);
      }
    }
  }
  const int64_t width = int64_t{params.parts} * params.rank;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
#pragma unroll
    for (int j = 0; j < kRowsOfWarp; ++j) {
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        sums[i][j] += __shfl_xor_sync(~0u, sums[i][j], distance);
      }
    }
    if (lane == 0 && tile.row[i] >= 0) {
      float* const to =
          params.mid + (int64_t{tile.token[i]} * gridDim.y + blockIdx.y) * width + first;
      *reinterpret_cast<float4*>(to) = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    }
  }
}

// kChunk values of a row of B.
struct ExpandWeights {
  Packed run[kChunk / kRun];
};

__device__ void load_weights(const AdapterParams& params, int row, int64_t o, int chunk,
                             ExpandWeights& weights) {
  const Bf16* const b =
      static_cast<const Bf16*>(params.b) + (row * params.out + o) * params.rank + chunk * kChunk;
#pragma unroll
  for (int i = 0; i < kChunk / kRun; ++i) {
    weights.run[i] = load_run<true>(b + i * kRun, row >= 0 ? kRun : 0);
  }
}

// A thread has one output, of the tokens of a tile.
template <int kTokens>
__global__ void __launch_bounds__(kExpandThreads)
    expand_kernel(const AdapterParams params, const int num_slices) {
  extern __shared__ float4 shared[];
  float* const mid = reinterpret_cast<float*>(shared);  // [kTokens, parts * rank]
  const int64_t o = int64_t{blockIdx.x} * kExpandThreads + threadIdx.x;
  const int64_t token_begin = int64_t{blockIdx.y} * kTokens;
  const bool exists = o < params.out;
  int part = 0;
  while (part + 1 < params.parts && o >= params.part_end[part]) ++part;
  const TileRows<kTokens> tile = rows_of_tile<kTokens>(params, token_begin, part);
  ExpandWeights weights[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i)
    load_weights(params, exists ? tile.row[i] : -1, o, 0, weights[i]);
  dependency_wait();
  dependency_trigger();

  float before[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const Bf16* const y = static_cast<const Bf16*>(params.y) + tile.token[i] * params.out + o;
    before[i] = exists && tile.row[i] >= 0 ? __bfloat162float(*y) : 0.0f;
  }
  // Where a scale is 0 nothing was written, and nothing of it is read below.
  const int width = params.parts * params.rank;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * width; i += kExpandThreads) {
    const int64_t index = token_begin + i / width;
    if (index >= params.tokens) continue;
    const int64_t token = params.order == nullptr ? index : params.order[index];
    if (params.rows[token] < 0) continue;
    const float* const from = params.mid + token * num_slices * width + i % width;
    float sum = 0;
#pragma unroll 4
    for (int slice = 0; slice < num_slices; ++slice) sum += from[int64_t{slice} * width];
    mid[i] = sum;
  }
  __syncthreads();
  if (!exists) return;

  float sums[kTokens] = {};
  for (int chunk = 0; chunk * kChunk < params.rank; ++chunk) {
    if (chunk > 0) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) load_weights(params, tile.row[i], o, chunk, weights[i]);
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (tile.row[i] < 0) continue;
      const float4* const from =
          reinterpret_cast<const float4*>(mid + i * width + part * params.rank + chunk * kChunk);
#pragma unroll
      for (int run = 0; run < kChunk / kRun; ++run) {
        const Floats factors = unpack(weights[i].run[run]);
        const float4 low = from[2 * run];
        const float4 high = from[2 * run + 1];
        const float values[kRun] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int k = 0; k < kRun; ++k) sums[i] = fmaf(factors.v[k], values[k], sums[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int row = tile.row[i];
    if (row < 0) continue;
    float delta = params.scales[row * params.parts + part] * sums[i];
    if (params.product.row != nullptr) {
      const float by = params.product.row[tile.token[i]] * params.product.column[o];
      delta = by == 0.0f ? 0.0f : delta / by;
    }
    Bf16* const y = static_cast<Bf16*>(params.y) + tile.token[i] * params.out + o;
    *y = __float2bfloat16(before[i] + delta);
  }
}

template <int kTokens>
cudaError_t launch_tiles(const AdapterParams& params, cudaStream_t stream) {
  const int width = params.parts * params.rank;
  const auto tiles = static_cast<unsigned>((params.tokens + kTokens - 1) / kTokens);
  const auto slices = static_cast<unsigned>(adapter_slices(params.in));
  const auto shrink =
      params.in % kRun == 0 ? shrink_kernel<true, kTokens> : shrink_kernel<false, kTokens>;
  const cudaError_t error =
      launch_pdl(shrink, dim3(static_cast<unsigned>(width / kRowsOfBlock), slices, tiles),
                 dim3(kShrinkWarps * 32), 0, stream, params, adapter_slice_width(params.in));
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>((params.out + kExpandThreads - 1) / kExpandThreads);
  const size_t shared = sizeof(float) * kTokens * static_cast<size_t>(width);
  return launch_pdl(expand_kernel<kTokens>, dim3(blocks, tiles), dim3(kExpandThreads), shared,
                    stream, params, static_cast<int>(slices));
}

}  // namespace

// The tile changes no sum.
cudaError_t launch_add_adapters(const AdapterParams& params, cudaStream_t stream) {
  if (params.tokens <= kFewTokens || params.parts * params.rank > kWidestTile) {
    return launch_tiles<1>(params, stream);
  }
  return launch_tiles<kTile>(params, stream);
}

}  // namespace rudder::cuda
