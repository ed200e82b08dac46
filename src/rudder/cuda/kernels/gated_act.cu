// out = act(gate) * up (rows.h). Into bf16 every run of 8 columns is on its own. Into fp8 a row
// needs its largest magnitude first: a cluster of blocks has a row in its registers, a run a
// thread, and the blocks tell each other their largest. So one token is spread over as many
// multiprocessors as the cluster has blocks. A cluster goes on to further rows: its columns' scales
// stay in registers, and the next row is worked out while what the other blocks tell of this one is
// on its way.
#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/product_scales.cuh"
#include "rudder/cuda/kernels/rows.h"

namespace rudder::cuda {
namespace {

constexpr int kMaxCluster = 8;
constexpr int kMaxThreads = 512;
static_assert(int64_t{kMaxCluster} * kMaxThreads * kRun >= kMaxQuantisedWidth);
constexpr int kWishedThreads = 256;
// What is on the device at once: three blocks of kWishedThreads on each multiprocessor.
constexpr int64_t kMaxBlocks = 3 * 132;

// kErf: also kGelu, which takes more registers than the rest together.
template <bool kErf>
__device__ float activate(float x, GatedActivation activation) {
  switch (activation) {
    case GatedActivation::kSilu:
      return __fdividef(x, 1.0f + __expf(-x));
    case GatedActivation::kGeluTanh: {
      // 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
      const float u = x * fmaf(x * x, 0.044715f, 1.0f);
      return __fdividef(x, 1.0f + __expf(-1.5957691216f * u));
    }
    case GatedActivation::kGelu:
      if constexpr (kErf) return 0.5f * x * erfcf(-0.70710678f * x);
  }
  return x;
}

// What a thread has of a row, as it is stored: zeros past the end.
struct GatedRun {
  Packed gate;
  Packed up;
  float scale = 1.0f;  // of the row
};

template <bool kAligned>
__device__ GatedRun load_gated(const GatedActParams& p, int64_t row, int i) {
  const Bf16* from = static_cast<const Bf16*>(p.x) + row * 2 * p.width + i;
  const int left = static_cast<int>(p.width) - i;
  GatedRun run;
  run.gate = load_run<kAligned>(from, left);
  run.up = load_run<kAligned>(from + p.width, left);
  if (p.x_scales.row != nullptr) run.scale = p.x_scales.row[row];
  return run;
}

// Of the columns of a run.
struct GatedScales {
  Floats gate;
  Floats up;
};

template <bool kScaled>
__device__ Floats gated(const GatedRun& run, const GatedScales& scales,
                        GatedActivation activation) {
  Floats gate = unpack(run.gate);
  Floats up = unpack(run.up);
  Floats out;
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    if constexpr (kScaled) {
      gate.v[j] *= run.scale * scales.gate.v[j];
      up.v[j] *= run.scale * scales.up.v[j];
    }
    out.v[j] = activate<!kScaled>(gate.v[j], activation) * up.v[j];
  }
  return out;
}

template <bool kAligned>
__global__ void __launch_bounds__(kFlatThreads) gated_act_kernel(const GatedActParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t row = blockIdx.x;
  const int i = flat_column();
  const int left = static_cast<int>(p.width) - i;
  if (left <= 0) return;
  store_run<kAligned>(static_cast<Bf16*>(p.out) + row * p.width + i, left,
                      pack(gated<false>(load_gated<kAligned>(p, row, i), {}, p.activation)));
}

// What the blocks of a cluster tell each other, for two rows in turn: who writes a place again has
// heard of the row in between from all others, who have read it before they told.
struct HighestShared {
  uint32_t of_warp[kMaxThreads / 32];  // bits of floats
  float of_block[2][kMaxCluster];      // zeros past the cluster's size
  uint64_t told[2];
};

__device__ void init_highest(HighestShared& shared) {
  if (threadIdx.x < 2 * kMaxCluster) {
    shared.of_block[threadIdx.x / kMaxCluster][threadIdx.x % kMaxCluster] = 0.0f;
  }
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : shared.told) barrier_init(shared_address(&barrier), 1);
    barrier_init_fence();
  }
  __syncthreads();
}

// Tells the cluster the largest magnitude that this block has of its n-th row.
__device__ void tell_highest(const Floats& y, unsigned n, HighestShared& shared) {
  const unsigned lane = threadIdx.x % 32;
  float highest = 0.0f;
#pragma unroll
  for (const float v : y.v) highest = fmaxf(highest, fabsf(v));  // a NaN is passed over
  // Floats that are not negative have the order of their bits.
  const uint32_t of_warp = __reduce_max_sync(0xffffffffu, __float_as_uint(highest));
  if (lane == 0) shared.of_warp[threadIdx.x / 32] = of_warp;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const uint32_t told = shared_address(&shared.told[n % 2]);
  const uint32_t ranks = cluster_size();
  if (lane == 0) barrier_expect(told, ranks * sizeof(float));
  const uint32_t of_block =
      __reduce_max_sync(0xffffffffu, lane < blockDim.x / 32 ? shared.of_warp[lane] : 0u);
  const uint32_t place = shared_address(&shared.of_block[n % 2][cluster_rank()]);
  if (lane < ranks) {
    store_to_rank(shared_of_rank(place, lane), __uint_as_float(of_block),
                  shared_of_rank(told, lane));
  }
}

// The largest of the n-th row, once all blocks have told.
__device__ float hear_highest(unsigned n, HighestShared& shared) {
  barrier_wait(shared_address(&shared.told[n % 2]), n / 2 % 2);
  float highest = 0.0f;
#pragma unroll
  for (const float one : shared.of_block[n % 2]) highest = fmaxf(highest, one);
  return highest;
}

template <bool kAligned, bool kScaled>
__global__ void __launch_bounds__(kMaxThreads, 2) gated_act_fp8_kernel(const GatedActParams p) {
  __shared__ alignas(16) HighestShared shared;
  const unsigned ranks = cluster_size();
  const int i = static_cast<int>(cluster_rank() * blockDim.x + threadIdx.x) * kRun;
  const int left = static_cast<int>(p.width) - i;
  // Weights' scales do not change: they are fetched while the kernel before this one ends.
  GatedScales scales = {};
  if constexpr (kScaled) {
    scales.gate = load_floats<kAligned>(p.x_scales.column + i, left);
    scales.up = load_floats<kAligned>(p.x_scales.column + p.width + i, left);
  }
  init_highest(shared);
  cluster_arrive();
  dependency_wait();
  dependency_trigger();
  const auto rows = static_cast<unsigned>(p.rows);
  unsigned row = blockIdx.x / ranks;
  const unsigned stride = gridDim.x / ranks;
  GatedRun run = load_gated<kAligned>(p, row, i);
  cluster_wait();
  Floats y = gated<kScaled>(run, scales, p.activation);
  tell_highest(y, 0, shared);
  if (row + stride < rows) run = load_gated<kAligned>(p, row + stride, i);
  for (unsigned n = 0; row < rows; ++n) {
    const unsigned next = row + stride;
    Floats next_y = {};
    if (next < rows) {
      next_y = gated<kScaled>(run, scales, p.activation);
      if (next + stride < rows) run = load_gated<kAligned>(p, next + stride, i);
    }
    const Fp8RowScale scale(hear_highest(n, shared));
    if (next < rows) tell_highest(next_y, n + 1, shared);
    if (i == 0) p.out_scale[row] = scale.value();
    store_run_fp8<kAligned>(static_cast<uint8_t*>(p.out) + int64_t{row} * p.width + i, left,
                            scale.stored(y));
    y = next_y;
    row = next;
  }
}

cudaError_t launch_gated_act_fp8(const GatedActParams& p, bool aligned, cudaStream_t stream) {
  const bool scaled = p.x_scales.row != nullptr;
  if (p.width > kMaxQuantisedWidth || (scaled && !takes_scales(p))) return cudaErrorInvalidValue;
  const int64_t runs = (p.width + kRun - 1) / kRun;
  int64_t cluster = 2;  // at least: a launch without clusters has no st.async
  while (cluster < kMaxCluster && cluster * kWishedThreads < runs) cluster *= 2;
  const int64_t threads = (runs + cluster * 32 - 1) / (cluster * 32) * 32;
  // As many rows for each cluster, as far as that goes.
  const int64_t most = kMaxBlocks / cluster;
  const int64_t rows_each = (p.rows + most - 1) / most;
  const int64_t clusters = (p.rows + rows_each - 1) / rows_each;
  const auto kernel =
      aligned ? (scaled ? gated_act_fp8_kernel<true, true> : gated_act_fp8_kernel<true, false>)
              : (scaled ? gated_act_fp8_kernel<false, true> : gated_act_fp8_kernel<false, false>);
  return launch_pdl_cluster(kernel, dim3(static_cast<unsigned>(clusters * cluster)),
                            dim3(static_cast<unsigned>(threads)), 0, static_cast<unsigned>(cluster),
                            stream, p);
}

}  // namespace

cudaError_t launch_gated_act(const GatedActParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  const bool aligned =
      p.width % kRun == 0 && is_aligned(p.x) && is_aligned(p.out) && is_aligned(p.x_scales.column);
  if (p.out_scale != nullptr) return launch_gated_act_fp8(p, aligned, stream);
  if (p.x_scales.row != nullptr) return cudaErrorInvalidValue;
  const auto kernel = aligned ? gated_act_kernel<true> : gated_act_kernel<false>;
  return launch_pdl(kernel, flat_grid(p.rows, p.width), dim3(kFlatThreads), 0, stream, p);
}

}  // namespace rudder::cuda
