// Brings the exponentials of rows of several chunks to one sum, rows of all layers at once: each
// warp takes pieces of rows. What a warp needs of a layer, its sink included, is in the sums.
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/patterns/pattern_work.cuh"

namespace rudder::cuda {
namespace {

constexpr int kBlocksPerSm = 3;
constexpr int kRuns = 4;                       // that a lane holds at a time
constexpr int kPiece = 4 * 32 * kRun * kRuns;  // keys

__device__ int pieces_of(int keys) {
  return (keys + kPiece - 1) / kPiece;
}

// Keys [begin, end) of a row of `keys`. A warp; begin is a multiple of kPiece.
__device__ void end_piece(const float2* sums, Bf16* row, int keys, int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunks = pattern_chunks(keys);
  float largest = -INFINITY;
  for (int c = lane; c < chunks; c += 32) largest = fmaxf(largest, sums[c].x);
  largest = warp_max(largest);
  if (largest == -INFINITY) return;
  float sum = 0;
  for (int c = lane; c < chunks; c += 32) sum += sums[c].y * expf(sums[c].x - largest);
  sum = warp_sum(sum);
  const bool is_aligned = reinterpret_cast<uintptr_t>(row) % sizeof(Packed) == 0;
  for (int round = begin; round < end; round += 32 * kRun * kRuns) {
    Packed runs[kRuns];
    float2 of_chunk[kRuns];
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int at = round + (i * 32 + lane) * kRun;
      if (at >= end) continue;
      of_chunk[i] = sums[at / kPatternChunk];
      const int left = end - at;
      runs[i] = is_aligned && left >= kRun ? load_run<true>(row + at, left)
                                           : load_run<false>(row + at, left);
    }
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int at = round + (i * 32 + lane) * kRun;
      if (at >= end || of_chunk[i].y == 0.0f) continue;
      const float factor = expf(of_chunk[i].x - largest) / sum;
      Floats weights = unpack(runs[i]);
#pragma unroll
      for (int j = 0; j < kRun; ++j) weights.v[j] *= factor;
      const int left = end - at;
      if (is_aligned && left >= kRun) {
        store_run<true>(row + at, left, pack(weights));
      } else {
        store_run<false>(row + at, left, pack(weights));
      }
    }
  }
}

__global__ void __launch_bounds__(kPatternThreads, kBlocksPerSm)
    end_patterns_kernel(const __grid_constant__ PatternBatch batch, int first_layer,
                        int end_layer) {
  __shared__ int captured[kPatternThreads];  // tokens of a tile
  __shared__ int warp_counts[kPatternWarps];
  dependency_wait();
  dependency_trigger();
  const int layers = end_layer - first_layer;
  // Neighbouring pieces go to different blocks.
  const int num_workers = static_cast<int>(gridDim.x) * kPatternWarps;
  const int worker = static_cast<int>(threadIdx.x) / 32 * static_cast<int>(gridDim.x) +
                     static_cast<int>(blockIdx.x);
  for (int tile = 0; tile < batch.num_tokens; tile += kPatternThreads) {
    const int own = tile + static_cast<int>(threadIdx.x);
    const bool is_captured = own < batch.num_tokens && batch.capture_set[own] >= 0;
    const int count = __syncthreads_count(is_captured);
    if (count == 0) continue;
    const int index = count_up_to(is_captured ? 1 : 0, warp_counts) - 1;
    if (is_captured) captured[index] = own;
    __syncthreads();
    share_pattern_work(
        count * layers, worker, num_workers,
        [&](int item) {
          const TokenPatterns of(batch, captured[item / layers], first_layer + item % layers);
          if (of.seq < 0 || of.entry.keys <= kPatternChunk) return 0;
          return heads_before(of.entry, tap::kMaxPatternHeads) * pieces_of(of.entry.keys);
        },
        [&](int item, int begin, int end) {
          const int token = captured[item / layers];
          const TokenPatterns of(batch, token, first_layer + item % layers);
          const int pieces = pieces_of(of.entry.keys);
          for (int unit = begin; unit < end; ++unit) {
            const int64_t row = of.row(batch, token, unit / pieces);
            const int key = unit % pieces * kPiece;
            end_piece(pattern_sums(batch, row), static_cast<Bf16*>(batch.ring) + row, of.entry.keys,
                      key, min(key + kPiece, of.entry.keys));
          }
        });
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_end_patterns(const PatternBatch& batch, int32_t first_layer, int32_t end_layer,
                                cudaStream_t stream) {
  if (batch.num_tokens <= 0 || first_layer >= end_layer) return cudaSuccess;
  return launch_pdl(end_patterns_kernel, dim3(static_cast<unsigned>(batch.num_sms * kBlocksPerSm)),
                    dim3(kPatternThreads), 0, stream, batch, first_layer, end_layer);
}

}  // namespace rudder::cuda
