#include "rudder/cuda/kernels/adapters/adapter_tiles.cuh"
#include "rudder/cuda/kernels/adapters/adapters.h"
#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kCluster = 8;  // blocks
constexpr int kWarps = 8;    // of a block
constexpr int kThreads = kWarps * 32;
constexpr int kChunk = 32;  // inputs of two multiplications: eight of a thread
constexpr int kTileSums = kTileTokens * kTileRank;
constexpr int kMostChunks = 7;  // of a warp at a time

// Inputs of a warp: whole chunks.
constexpr int64_t slice_width(int64_t in) {
  constexpr int64_t kSlices = int64_t{kCluster} * kWarps;
  return (in + kSlices * kChunk - 1) / (kSlices * kChunk) * kChunk;
}

// kChunks chunks of inputs of 16 rows of A: a thread's eight of rows g and g + 8.
template <int kChunks>
struct Slice {
  uint4 low[kChunks];
  uint4 high[kChunks];
};

template <bool kAligned, int kChunks>
__device__ void load_slice(const AdapterParams& params, const Bf16* a, int64_t column, int64_t end,
                           Slice<kChunks>& slice) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t at = column + i * kChunk;
    slice.low[i] = load_matrix<kAligned>(a + at, end - at);
    slice.high[i] = load_matrix<kAligned>(a + 8 * params.in + at, end - at);
  }
}

// 4 bytes in a block of the cluster, seen behind cluster_barrier(); an address of shared_of_rank().
__device__ void send_to_rank(uint32_t address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// The sums of a tile's tokens over the slice. Two chains of sums, which do not wait for each other.
template <bool kAligned, int kChunks>
__device__ void multiply(const Bf16* x, bool exists, int64_t column, int64_t end,
                         const Slice<kChunks>& slice, float (&sums)[4]) {
  uint4 inputs[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t at = column + i * kChunk;
    const int64_t left = exists ? end - at : 0;
    const Packed run = load_run<kAligned>(x + at, static_cast<int>(left < 0      ? 0
                                                                   : left > kRun ? kRun
                                                                                 : left));
    memcpy(&inputs[i], &run, sizeof(run));
  }
  float second[4] = {};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const uint4 low = slice.low[i];
    const uint4 high = slice.high[i];
    adapter_mma(sums, make_uint2(low.x, low.y), make_uint2(high.x, high.y),
                make_uint2(inputs[i].x, inputs[i].y));
    adapter_mma(second, make_uint2(low.z, low.w), make_uint2(high.z, high.w),
                make_uint2(inputs[i].z, inputs[i].w));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] += second[i];
}

// Grid: kCluster slices of the inputs, parts * rank / 16 pieces of the rank, groups. Shared memory:
// the sums of the warps, by tile; then those that the blocks of the cluster send: block i adds what
// they have of a tile's token i.
template <bool kAligned, int kChunks>
__global__ void __launch_bounds__(kThreads, kChunks <= 2 ? 4 : 2)
    shrink_kernel(const AdapterParams params, const int64_t slice_inputs, const int num_tiles) {
  extern __shared__ float4 shared[];
  float* const own = reinterpret_cast<float*>(shared);        // [kWarps, num_tiles, kTileSums]
  float* const inbox = own + kWarps * num_tiles * kTileSums;  // [kCluster, num_tiles, kTileRank]
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first = static_cast<int>(blockIdx.y) * kTileRank;  // column of mid

  dependency_trigger();
  const ops::AdapterGroup group = load_group(params, blockIdx.z);
  if (group.count == 0) {
    // Some block waits, so that this kernel does not end before the one in front.
    if (blockIdx.y == 0 && blockIdx.z == 0) dependency_wait();
    return;
  }
  cluster_arrive();
  const int tiles = (group.count + kTileTokens - 1) / kTileTokens;
  const int width = params.parts * params.rank;
  const int64_t begin = (int64_t{blockIdx.x} * kWarps + warp) * slice_inputs;
  const int64_t slice_end = begin + slice_inputs;
  const int64_t end = slice_end < params.in ? slice_end : params.in;
  const Bf16* const a = static_cast<const Bf16*>(params.a) +
                        (int64_t{group.row} * width + first + lane / 4) * params.in;
  // All that depends on the group alone is on its way at once.
  const float scale = load_scale(params, group.row, first / params.rank).x;
  int token[kGroupTiles];  // of the thread's column of each tile
#pragma unroll
  for (int tile = 0; tile < kGroupTiles; ++tile) {
    token[tile] = load_token(params, group, tile * kTileTokens + lane / 4);
  }
  Slice<kChunks> slice;
  load_slice<kAligned>(params, a, begin + lane % 4 * kRun, end, slice);
  cluster_wait();
  dependency_wait();
  if (scale == 0.0f) return;  // all of the cluster

  for (int64_t pass = begin; pass == begin || pass < end; pass += kChunks * kChunk) {
    const int64_t column = pass + lane % 4 * kRun;
    if (pass > begin) load_slice<kAligned>(params, a, column, end, slice);
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      if (tile >= tiles) continue;
      const bool exists = token[tile] >= 0;
      const Bf16* const x =
          static_cast<const Bf16*>(params.x) + int64_t{exists ? token[tile] : 0} * params.in;
      float* const to = own + (warp * num_tiles + tile) * kTileSums;
      float sums[4] = {};
      multiply<kAligned>(x, exists, column, end, slice, sums);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // [token, rank]
        float& sum = to[(lane % 4 * 2 + i % 2) * kTileRank + lane / 4 + i / 2 * 8];
        sum = pass > begin ? sum + sums[i] : sums[i];
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < tiles * kTileSums; i += kThreads) {
    const int tile = i / kTileSums;
    const int owner = i % kTileSums / kTileRank;
    if (tile * kTileTokens + owner >= group.count) continue;
    float sum = own[i];
#pragma unroll
    for (int from = 1; from < kWarps; ++from) sum += own[from * num_tiles * kTileSums + i];
    float* const to = inbox + (blockIdx.x * num_tiles + tile) * kTileRank + i % kTileRank;
    send_to_rank(shared_of_rank(static_cast<uint32_t>(__cvta_generic_to_shared(to)), owner), sum);
  }
  __syncwarp();
  cluster_barrier();
  const int tile = thread / kTileRank;
  const int index = tile * kTileTokens + static_cast<int>(blockIdx.x);
  if (tile >= tiles || index >= group.count) return;
  const float* const from = inbox + tile * kTileRank + thread % kTileRank;
  float sum = from[0];
#pragma unroll
  for (int block = 1; block < kCluster; ++block) sum += from[block * num_tiles * kTileRank];
  params.mid[int64_t{group.begin + index} * width + first + thread % kTileRank] = sum;
}
static_assert(kCluster == kTileTokens && kGroupTiles * kTileRank <= kThreads);

template <bool kAligned, int kChunks>
cudaError_t launch_chunks(const AdapterParams& params, cudaStream_t stream) {
  const int64_t tiles = (params.tokens + kTileTokens - 1) / kTileTokens;
  const int num_tiles = static_cast<int>(tiles < kGroupTiles ? tiles : kGroupTiles);
  const size_t shared =
      sizeof(float) * static_cast<size_t>(num_tiles) * (kWarps * kTileSums + kCluster * kTileRank);
  const dim3 grid(kCluster, static_cast<unsigned>(params.parts * params.rank / kTileRank),
                  static_cast<unsigned>(params.most_groups));
  return launch_pdl_in_front(shrink_kernel<kAligned, kChunks>, grid, dim3(kThreads), shared,
                             kCluster, true, stream, params, slice_width(params.in), num_tiles);
}

template <bool kAligned>
cudaError_t launch_slices(const AdapterParams& params, cudaStream_t stream) {
  const int64_t chunks = slice_width(params.in) / kChunk;
  if (chunks == 1) return launch_chunks<kAligned, 1>(params, stream);
  if (chunks == 2) return launch_chunks<kAligned, 2>(params, stream);
  if (chunks <= 4) return launch_chunks<kAligned, 4>(params, stream);
  return launch_chunks<kAligned, kMostChunks>(params, stream);
}

}  // namespace

cudaError_t launch_shrink_adapters(const AdapterParams& params, cudaStream_t stream) {
  return params.in % kRun == 0 ? launch_slices<true>(params, stream)
                               : launch_slices<false>(params, stream);
}

}  // namespace rudder::cuda
