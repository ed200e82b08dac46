#include "rudder/cuda/kernels/streams/connect_four.cuh"

#include <algorithm>

namespace rudder::cuda {
namespace {

using four::FourBlock;
using four::FourShared;
using four::kStreams;
using four::kThreads;

template <int kMap, int kRows>
__global__ void __launch_bounds__(kThreads, 2)
    connect_four_kernel(const __grid_constant__ ConnectStreamsParams p,
                        const __grid_constant__ TapParams<kStreamPoints> taps, const int slice,
                        const int map_rows) {
  extern __shared__ __align__(128) float map[];
  __shared__ FourShared<kMap, kRows> shared;
  auto* const x = reinterpret_cast<Bf16*>(map + int64_t{map_rows} * kStreams * slice);
  FourBlock<kMap, kRows>(p, taps, slice, map, x, shared).run();
}

// Columns of a block: whole runs.
int slice_of(int64_t width) {
  constexpr int64_t kUnit = int64_t{kStreamCluster} * kRun;
  return static_cast<int>((width + kUnit - 1) / kUnit * kRun);
}
int map_rows_of(const ConnectStreamsParams& p) {
  if (p.delta == nullptr) return kStreams;
  return std::max(kStreams, (p.pre != nullptr ? 2 : 1) * kStreams +
                                (p.iterations > 0 ? kStreams * kStreams : 0));
}
size_t shared_bytes(const ConnectStreamsParams& p, int rows) {
  const auto cells = static_cast<size_t>(kStreams * slice_of(p.width));
  return cells * (static_cast<size_t>(map_rows_of(p)) * sizeof(float) +
                  static_cast<size_t>(rows) * sizeof(Bf16));
}
constexpr size_t kMostShared = 227 * 1024 - 20 * 1024;  // beside what the kernels declare

template <int kMap, int kRows>
cudaError_t launch_four(const ConnectStreamsParams& p, const TapParams<kStreamPoints>& taps,
                        cudaStream_t stream) {
  const auto kernel = connect_four_kernel<kMap, kRows>;
  const size_t bytes = shared_bytes(p, kRows);
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  const auto clusters = static_cast<unsigned>((p.rows + kRows - 1) / kRows);
  // A multiprocessor's memory is divided for two blocks, of this boundary and the next, and for the
  // products between them.
  constexpr bool kMostOfItIsShared = true;
  return launch_pdl_in_front(kernel, dim3(clusters * kStreamCluster), dim3(kThreads), bytes,
                             kStreamCluster, kMostOfItIsShared, stream, p, taps, slice_of(p.width),
                             map_rows_of(p));
}

// Few clusters read the maps, as far as eight have all rows.
template <int kMap>
cudaError_t launch_rows(const ConnectStreamsParams& p, const TapParams<kStreamPoints>& taps,
                        cudaStream_t stream) {
  constexpr int64_t kClusters = 8;
  if (p.rows <= kClusters || shared_bytes(p, 2) > kMostShared) {
    return launch_four<kMap, 1>(p, taps, stream);
  }
  if (p.rows <= 2 * kClusters || shared_bytes(p, 4) > kMostShared) {
    return launch_four<kMap, 2>(p, taps, stream);
  }
  if (p.rows <= 4 * kClusters || shared_bytes(p, 8) > kMostShared) {
    return launch_four<kMap, 4>(p, taps, stream);
  }
  return launch_four<kMap, 8>(p, taps, stream);
}

}  // namespace

bool takes_four(const ConnectStreamsParams& p) {
  return p.streams == kStreams && p.width % kRun == 0 && is_aligned(p.x) && is_aligned(p.delta) &&
         is_aligned(p.out) && is_aligned(p.write.fn) && is_aligned(p.read.fn) &&
         shared_bytes(p, 1) <= kMostShared &&
         !(p.delta != nullptr && p.pre != nullptr && p.iterations == 0);
}

bool takes_norm(const ConnectStreamsParams& p) {
  return takes_four(p) && p.out != nullptr && p.width <= most_normed_width(kThreads) &&
         is_aligned(p.norm.weight) && is_aligned(p.norm.out);
}

cudaError_t launch_connect_four(const ConnectStreamsParams& p, const TapParams<kStreamPoints>& taps,
                                cudaStream_t stream) {
  // How many rows of the write's map are asked for.
  if (p.iterations == 0) return launch_rows<1>(p, taps, stream);
  return p.delta != nullptr && p.pre != nullptr ? launch_rows<6>(p, taps, stream)
                                                : launch_rows<5>(p, taps, stream);
}

}  // namespace rudder::cuda
