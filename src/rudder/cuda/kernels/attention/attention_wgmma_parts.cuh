// The parts of a tile of rows whose keys are cut (attention_tile_list.cuh): what a consumer leaves
// of one, and how the consumer that is the last adds them up. Included by attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_shared.cuh"
#include "rudder/cuda/kernels/attention/attention_work.cuh"

namespace rudder::cuda {

// Of one consumer and one tile. A thread leaves its sums, and under a softmax what it has of its
// rows, for the same thread of the other blocks.
template <int kHeadDim, bool kGated>
class TileParts {
 public:
  static constexpr int kFloats = consumer_floats(kHeadDim);
  static constexpr int kFours = kFloats / (4 * kGroupThreads) - 1;  // of sums, of a thread

  __device__ TileParts(const AttentionParams& p, const TilePart& part, int32_t consumer,
                       int32_t thread)
      : part_(part), consumer_(consumer), thread_(thread) {
    view_workspace(p.workspace, &work_);
  }

  template <int kParts, int kSums, typename Weights>
  __device__ void leave(const float (&out)[kParts][kSums], const Weights& weights) const {
    static_assert(kParts * kSums == 4 * kFours);
    float4* const own = of_slot(part_.slot);
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
    uint32_t* const arrivals = work_.part_arrivals + kConsumers * part_.first_slot + consumer_;
    const bool last = atomicAdd(arrivals, 1) + 1 == static_cast<uint32_t>(part_.count);
    if (last) *arrivals = 0;  // for the next launch
    __threadfence();
    return last;
  }

  // What a thread has of its rows when those of all parts are added up: maxima and sums of a
  // softmax.
  __device__ SoftmaxRows rows() const {
    SoftmaxRows rows;
#pragma unroll 1
    for (int32_t i = 0; i < part_.count; ++i) {
      const float4 of_this = rows_of(i);
      rows.max[0] = fmaxf(rows.max[0], of_this.x);
      rows.max[1] = fmaxf(rows.max[1], of_this.y);
    }
#pragma unroll 1
    for (int32_t i = 0; i < part_.count; ++i) {
      const float4 of_this = rows_of(i);
      rows.sum[0] = fmaf(of_this.z, exp2_fast(of_this.x - rows.max[0]), rows.sum[0]);
      rows.sum[1] = fmaf(of_this.w, exp2_fast(of_this.y - rows.max[1]), rows.sum[1]);
    }
    return rows;
  }

  // The thread's sums [4 * first, 4 * (first + kCount)) of all parts in their order, whoever is the
  // last. `rows`: of all parts.
  template <int kCount>
  __device__ void add_up(int first, const SoftmaxRows& rows, float4 (&sums)[kCount]) const {
#pragma unroll
    for (float4& four : sums) four = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int32_t i = 0; i < part_.count; ++i) {
      float2 share = make_float2(1, 1);
      if constexpr (!kGated) {
        // A row sees its own token at least, so its maximum over all parts is finite.
        const float4 of_this = rows_of(i);
        share = make_float2(exp2_fast(of_this.x - rows.max[0]), exp2_fast(of_this.y - rows.max[1]));
      }
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const float4 four = __ldcg(of_part(i) + (first + k) * kGroupThreads);
        sums[k].x = fmaf(four.x, share.x, sums[k].x);
        sums[k].y = fmaf(four.y, share.x, sums[k].y);
        sums[k].z = fmaf(four.z, share.y, sums[k].z);
        sums[k].w = fmaf(four.w, share.y, sums[k].w);
      }
    }
  }

 private:
  __device__ float4* of_slot(int32_t slot) const {
    float* const floats = work_.partial_out + int64_t{kConsumers * slot + consumer_} * kFloats;
    return reinterpret_cast<float4*>(floats) + thread_;
  }
  __device__ float4 rows_of(int32_t i) const {
    return __ldcg(of_part(i) + kFours * kGroupThreads);
  }
  __device__ const float4* of_part(int32_t i) const {
    return of_slot(part_.first_slot + i * part_.slot_step);
  }

  const TilePart& part_;
  const int32_t consumer_;
  const int32_t thread_;
  WorkspaceView work_;
};

}  // namespace rudder::cuda
