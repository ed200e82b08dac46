// The plan of a step (latent_plan.h), by one block. A chunk is as long as makes the step shortest
// by latent_cost(), as far as there is room for partial results.
#include "rudder/cuda/kernels/latents/latent_attention.h"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kWarps = 32;
constexpr int kThreads = kWarps * 32;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr long long kNever = 0x7fffffffffffffff;

__device__ int32_t sum_of_warp(int32_t v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}
__device__ int32_t max_of_warp(int32_t v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v = max(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}
// Of this lane and those before it.
__device__ int32_t scan_of_warp(int32_t v, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, v, step);
    if (lane >= step) v += before;
  }
  return v;
}

__device__ LatentSeq seq_of(const LatentAttentionParams& p, int32_t s, int32_t row_tile,
                            bool by_token) {
  LatentSeq seq;
  const bool is_behind = s == p.bounds.num_seqs;
  seq.q_begin = p.q_begin[s];
  seq.q_len = (is_behind ? p.bounds.num_tokens : p.q_begin[s + 1]) - seq.q_begin;
  seq.kv_len = is_behind ? 0 : p.kv_len[s];
  seq.table_row = is_behind ? 0 : p.table_row[s];
  seq.row_tiles = latent_row_tiles(seq.q_len, p.config.num_heads, row_tile, by_token);
  return seq;
}

__device__ int32_t chunks_of(const LatentSeq& seq, int32_t chunk) {
  return max(1, latent_tiles(latent_tiles(seq.kv_len, kLatentTokens), chunk));
}

// What a candidate costs, in front of its number, where longer ones come first: the least is the
// best. A whole warp.
__device__ long long rank_of(const LatentAttentionParams& p, const LatentPlan& plan,
                             int32_t candidate, int32_t row_tile, int lane) {
  const int32_t chunk = latent_chunk(candidate);
  int32_t items = 0;
  int32_t parts = 0;
  int32_t longest = 0;
  for (int32_t s = lane; s < plan.num_seqs; s += 32) {
    const LatentSeq& seq = plan.seqs()[s];
    const int32_t chunks = chunks_of(seq, chunk);
    items += seq.row_tiles * chunks;
    if (chunks > 1) parts += seq.row_tiles * chunks;
    longest = max(longest, min(chunk, latent_tiles(seq.kv_len, kLatentTokens)));
  }
  items = sum_of_warp(items);
  parts = sum_of_warp(parts);
  longest = max_of_warp(longest);
  const int32_t most = p.config.whole_sequences ? 0 : latent_parts(row_tile, p.config.num_sms);
  if (parts > most) return kNever;
  return latent_cost(items, longest, latent_blocks(row_tile, p.config.num_sms)) * kLatentChunks +
         kLatentChunks - 1 - candidate;
}

// Numbers items, parts and merges. One warp.
__device__ void number(LatentPlan& plan, int lane) {
  int32_t items = 0;
  int32_t parts = 0;
  int32_t merges = 0;
  for (int32_t first = 0; first < plan.num_seqs; first += 32) {
    const int32_t s = first + lane;
    LatentSeq seq;
    seq.chunks = 1;
    if (s < plan.num_seqs) {
      seq = plan.seqs()[s];
      seq.chunks = chunks_of(seq, plan.chunk);
    }
    const bool is_cut = seq.chunks > 1;
    const int32_t own = seq.row_tiles * seq.chunks;
    const int32_t to_item = scan_of_warp(own, lane);
    const int32_t to_part = scan_of_warp(is_cut ? own : 0, lane);
    const int32_t to_merge = scan_of_warp(is_cut ? seq.row_tiles : 0, lane);
    seq.first_item = items + to_item - own;
    seq.first_part = parts + to_part - (is_cut ? own : 0);
    seq.first_merge = merges + to_merge - (is_cut ? seq.row_tiles : 0);
    if (s < plan.num_seqs) plan.seqs()[s] = seq;
    items += __shfl_sync(kAllLanes, to_item, 31);
    parts += __shfl_sync(kAllLanes, to_part, 31);
    merges += __shfl_sync(kAllLanes, to_merge, 31);
  }
  if (lane == 0) {
    plan.num_items = items;
    plan.num_merges = merges;
  }
}

__global__ void __launch_bounds__(kThreads)
    latent_plan_kernel(const __grid_constant__ LatentAttentionParams p, int32_t row_tile,
                       bool by_token) {
  __shared__ long long best[kWarps];
  dependency_wait();
  dependency_trigger();
  auto& plan = *static_cast<LatentPlan*>(p.workspace);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  if (thread == 0) plan.num_seqs = p.bounds.num_seqs + 1;
  for (int32_t s = thread; s <= p.bounds.num_seqs; s += kThreads) {
    plan.seqs()[s] = seq_of(p, s, row_tile, by_token);
  }
  __syncthreads();
  long long rank = kNever;
  for (int32_t candidate = warp; candidate < kLatentChunks; candidate += kWarps) {
    rank = min(rank, rank_of(p, plan, candidate, row_tile, lane));
  }
  if (lane == 0) best[warp] = rank;
  __syncthreads();
  if (warp > 0) return;
  rank = best[lane];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    rank = min(rank, __shfl_xor_sync(kAllLanes, rank, step));
  }
  if (lane == 0) {
    plan.chunk = latent_chunk(kLatentChunks - 1 - static_cast<int32_t>(rank % kLatentChunks));
  }
  __syncwarp();
  number(plan, lane);
}

}  // namespace

size_t latent_workspace_bytes(const LatentAttentionConfig& config, int32_t max_seqs) {
  const size_t row = sizeof(float2) + sizeof(float) * static_cast<size_t>(config.rank);
  const int32_t parts = config.whole_sequences ? 0 : latent_parts(kLatentMaxRows, config.num_sms);
  return latent_plan_bytes(max_seqs) + static_cast<size_t>(parts) * kLatentMaxRows * row;
}

cudaError_t launch_latent_plan(const LatentAttentionParams& params, cudaStream_t stream) {
  if (params.bounds.num_tokens <= 0) return cudaSuccess;
  return launch_pdl(latent_plan_kernel, dim3(1), dim3(kThreads), 0, stream, params,
                    latent_row_tile_of(params), latent_by_token(params));
}

}  // namespace rudder::cuda
