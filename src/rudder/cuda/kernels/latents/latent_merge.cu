// Adds up the sums of rows whose keys several chunks have (latent_plan.h). A thread has four
// columns of a row; threads of a row are a team, of which a block has some. Where rows are many a
// team has a row of its own and all of its chunks; else a block's teams divide the chunks of one
// row.
#include <cuda_bf16.h>

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/latents/latent_attention.h"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerSm = 2;

// Four columns of a row over some chunks.
struct ChunkSum {
  float2 max_sum = make_float2(minus_infinity(), 0);
  float4 sum = {};

  __device__ void add(const float2& other, const float4& values) {
    const float top = fmaxf(max_sum.x, other.x);
    const float shift = top == minus_infinity() ? 0.0f : top;
    const float mine = exp2_fast(max_sum.x - shift);
    const float its = exp2_fast(other.x - shift);
    max_sum = make_float2(top, max_sum.y * mine + other.y * its);
    sum.x = sum.x * mine + values.x * its;
    sum.y = sum.y * mine + values.y * its;
    sum.z = sum.z * mine + values.z * its;
    sum.w = sum.w * mine + values.w * its;
  }
};

// A tile of rows with several chunks.
struct MergeTile {
  LatentSeq seq;
  int32_t tile;

  __device__ MergeTile(const LatentPlan& plan, int32_t merge) {
    int32_t low = 0;
    int32_t high = plan.num_seqs;
    while (high - low > 1) {
      const int32_t mid = (low + high) / 2;
      (plan.seqs()[mid].first_merge <= merge ? low : high) = mid;
    }
    seq = plan.seqs()[low];
    tile = merge - seq.first_merge;
  }
};

template <int kRank>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    latent_merge_kernel(const __grid_constant__ LatentAttentionParams p, int32_t row_tile,
                        bool by_token) {
  constexpr int kTeam = kRank / 4;
  constexpr int kTeams = kThreads / kTeam;
  __shared__ ChunkSum teams[kTeams][kTeam];
  const auto& plan = *static_cast<const LatentPlan*>(p.workspace);
  const int column = static_cast<int>(threadIdx.x) % kTeam * 4;
  const int team = static_cast<int>(threadIdx.x) / kTeam;
  // What is in front of the kernel in front, which made the plan, has ended.
  const bool divides = plan.num_merges * row_tile <= 4 * static_cast<int32_t>(gridDim.x);
  const int32_t rows_each = divides ? 1 : kTeams;
  const int32_t items = plan.num_merges * row_tile / rows_each;
  dependency_wait();
  dependency_trigger();
#pragma unroll 1
  for (auto item = static_cast<int32_t>(blockIdx.x); item < items;
       item += static_cast<int32_t>(gridDim.x)) {
    const int32_t first = item * rows_each;  // of the block's rows, all of one tile
    const MergeTile merge(plan, first / row_tile);
    const LatentSeq& seq = merge.seq;
    const LatentRows rows =
        latent_rows(merge.tile, seq.q_len, p.config.num_heads, row_tile, by_token);
    const int32_t row = first % row_tile + (divides ? 0 : team);
    if (first % row_tile >= rows.count) continue;
    ChunkSum total;
    if (row < rows.count) {
      const int32_t step = divides ? kTeams : 1;
#pragma unroll 4
      for (int32_t chunk = divides ? team : 0; chunk < seq.chunks; chunk += step) {
        const LatentPart part =
            latent_part(p, row_tile, seq.first_part + merge.tile * seq.chunks + chunk);
        total.add(__ldcg(&part.max_sum[row]),
                  __ldcg(reinterpret_cast<const float4*>(part.values + row * kRank + column)));
      }
    }
    if (divides) {
      teams[team][column / 4] = total;
      __syncthreads();
      if (team == 0) {
#pragma unroll
        for (int i = 1; i < kTeams; ++i) {
          total.add(teams[i][column / 4].max_sum, teams[i][column / 4].sum);
        }
      }
      __syncthreads();
    }
    if (row >= rows.count || (divides && team > 0)) continue;
    const float over = latent_share(p, rows.first + row, total.max_sum);
    const int64_t at = int64_t{seq.q_begin} * p.config.num_heads + rows.first + row;
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.out) + at * p.config.row + column) =
        make_uint2(pack_bf16(total.sum.x * over, total.sum.y * over),
                   pack_bf16(total.sum.z * over, total.sum.w * over));
  }
}

template <int kRank>
cudaError_t launch(const LatentAttentionParams& params, cudaStream_t stream) {
  return launch_pdl(
      latent_merge_kernel<kRank>, dim3(static_cast<unsigned>(kBlocksPerSm * params.config.num_sms)),
      dim3(kThreads), 0, stream, params, latent_row_tile_of(params), latent_by_token(params));
}

}  // namespace

cudaError_t launch_latent_merge(const LatentAttentionParams& params, cudaStream_t stream) {
  return params.config.rank == 512 ? launch<512>(params, stream) : launch<256>(params, stream);
}

}  // namespace rudder::cuda
