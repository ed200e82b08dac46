// The parts of a tile of rows whose keys are cut (attention_tile_list.cuh): what a consumer leaves
// of one, and how the consumer that is the last adds them up. Included by attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention_device.cuh"
#include "rudder/cuda/kernels/attention_wgmma_shared.cuh"
#include "rudder/cuda/kernels/attention_work.cuh"

namespace rudder::cuda {

// Of one consumer and one tile. A thread leaves its sums, and under a softmax what it has of its
// rows, for the same thread of the other blocks.
template <int kHeadDim, bool kGated>
class TileParts {
 public:
  static constexpr int kFloats = consumer_floats(kHeadDim);
  static constexpr int kFours = kFloats / (4 * kGroupThreads) - 1;  // of sums, of a thread

  __device__ TileParts(const AttentionParams& p, const TileWork& tile, int32_t consumer,
                       int32_t thread)
      : tile_(tile), consumer_(consumer), thread_(thread) {
    view_workspace(p.workspace, &work_);
  }

  template <int kParts, int kSums, typename Weights>
  __device__ void leave(const float (&out)[kParts][kSums], const Weights& weights) const {
    static_assert(kParts * kSums == 4 * kFours);
    float4* const own = of_slot(tile_.slot);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int e = 0; e < kSums; e += 4) {
        own[(part * kSums + e) / 4 * kGroupThreads] =
            make_float4(out[part][e], out[part][e + 1], out[part][e + 2], out[part][e + 3]);
      }
    }
    if constexpr (!kGated) own[kFours * kGroupThreads] = weights.rows();
    __threadfence();
  }

  // By one thread of the consumer, when all have left theirs: are the other parts there?
  __device__ bool is_last() const {
    uint32_t* const arrivals = work_.part_arrivals + kConsumers * tile_.first_slot + consumer_;
    const bool last = atomicAdd(arrivals, 1) + 1 == static_cast<uint32_t>(tile_.parts);
    if (last) *arrivals = 0;  // for the next launch
    __threadfence();
    return last;
  }

  // All parts in their order, whoever is the last.
  template <int kParts, int kSums, typename Weights>
  __device__ void add_up(float (&out)[kParts][kSums], Weights& weights) const {
    float2 most = make_float2(minus_infinity(), minus_infinity());
    float2 sum = make_float2(0, 0);
    if constexpr (!kGated) {
#pragma unroll 1
      for (int32_t i = 0; i < tile_.parts; ++i) {
        const float4 rows = __ldcg(of_part(i) + kFours * kGroupThreads);
        most = make_float2(fmaxf(most.x, rows.x), fmaxf(most.y, rows.y));
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (float& total : out[part]) total = 0;
    }
#pragma unroll 1
    for (int32_t i = 0; i < tile_.parts; ++i) {
      const float4* const from = of_part(i);
      float2 share = make_float2(1, 1);
      if constexpr (!kGated) {
        const float4 rows = __ldcg(from + kFours * kGroupThreads);
        // A row sees its own token at least, so its maximum over all parts is finite.
        share = make_float2(exp2_fast(rows.x - most.x), exp2_fast(rows.y - most.y));
        sum = make_float2(fmaf(rows.z, share.x, sum.x), fmaf(rows.w, share.y, sum.y));
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int e = 0; e < kSums; e += 4) {
          const float4 four = __ldcg(from + (part * kSums + e) / 4 * kGroupThreads);
          out[part][e] = fmaf(four.x, share.x, out[part][e]);
          out[part][e + 1] = fmaf(four.y, share.x, out[part][e + 1]);
          out[part][e + 2] = fmaf(four.z, share.y, out[part][e + 2]);
          out[part][e + 3] = fmaf(four.w, share.y, out[part][e + 3]);
        }
      }
    }
    if constexpr (!kGated) weights.take_rows(most, sum);
  }

 private:
  __device__ float4* of_slot(int32_t slot) const {
    float* const floats = work_.partial_out + int64_t{kConsumers * slot + consumer_} * kFloats;
    return reinterpret_cast<float4*>(floats) + thread_;
  }
  __device__ const float4* of_part(int32_t i) const {
    return of_slot(tile_.first_slot + i * tile_.slot_step);
  }

  const TileWork& tile_;
  const int32_t consumer_;
  const int32_t thread_;
  WorkspaceView work_;
};

}  // namespace rudder::cuda
