// The warp of the wgmma kernel that brings q to a consumer and takes its results away. Included by
// attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention_device.cuh"
#include "rudder/cuda/kernels/attention_wgmma_shared.cuh"

namespace rudder::cuda {

// Brings the q of a consumer, tile after tile, and takes its results away: a warp. Where a consumer
// keeps q, it brings that of the next tile while one is computed, and results of the tile before go
// out meanwhile. Else both have the same memory: q comes when the results that lie there are out.
template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
class Carrier {
 public:
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kWeighting, kTrees>;
  static constexpr int kRowChunks = S::kOutColumns / 8;  // 16-byte chunks of a row that it carries
  static constexpr int kRowLanes = kRowChunks <= 8 ? 8 : kRowChunks <= 16 ? 16 : 32;
  static constexpr int kStep = 32 / kRowLanes;  // rows that a warp has at once
  static constexpr int kBatch = 4;              // chunks of a lane that are on their way at once
  static_assert(kRowChunks <= kRowLanes && 32 % (kBatch * kStep) == 0);
  static_assert(S::kQBytes / 512 % kBatch == 0);

  __device__ Carrier(const AttentionParams& params, Shared& shared, int32_t consumer)
      : p_(params),
        shared_(shared),
        consumer_(consumer),
        lane_(static_cast<int32_t>(threadIdx.x) % 32) {}

  __device__ void run() {
    for (;; ++fetched_) {
      const int32_t slot = stage_of<kTileStages>(fetched_);
      barrier_wait(shared_address(&shared_.tile_ring.full[slot]), phase_of<kTileStages>(fetched_));
      const TileWork& tile = shared_.tile[slot];
      if (tile.num_pages == 0) break;
      if constexpr (S::kKeepsQ) {
        barrier_wait(shared_address(&shared_.q_empty[consumer_]), q_phase(fetched_) ^ 1);
        fetch_q(tile);
        if (fetched_ - stored_ == kTileStages - 1) store_out();
      } else {
        if (fetched_ - stored_ == S::kQStages) store_out();
        fetch_q(tile);
      }
    }
    while (stored_ < fetched_) store_out();
  }

 private:
  __device__ static int32_t q_stage(int32_t tile) {
    return S::kQStages == 1 ? 0 : stage_of<S::kQStages>(tile);
  }
  __device__ static uint32_t q_phase(int32_t tile) { return phase_of<S::kQStages>(tile); }

  // Calls chunks(addresses in shared memory, indices of the chunks in q and out or -1 past the end)
  // for the lane's chunks of a tile, kBatch at once. A lane has one chunk of every kStep-th row, so
  // that its addresses are constants apart.
  template <typename Chunks>
  __device__ void for_chunks(const TileWork& tile, int32_t buffer, const Chunks& chunks) const {
    const int32_t r = lane_ / kRowLanes;
    const int32_t c = lane_ % kRowLanes;
    const uint32_t base =
        shared_address(shared_.q[consumer_][buffer]) + chunk_offset<S::kQGroupBytes>(r, c);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      // Each lane finds out where a row begins.
      const int32_t row = tile.row_begin + S::first_row(consumer_) + half * 32 + lane_;
      const int64_t first_column = S::first_column(consumer_);
      const auto begin =
          row < tile.rows.count
              ? static_cast<int32_t>((tile.rows.template offset<kHeadDim>(row) + first_column) / 8)
              : -1;
#pragma unroll
      for (int first = 0; first < 32; first += kBatch * kStep) {
        uint32_t address[kBatch];
        int32_t index[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int behind = first + i * kStep;
          const int32_t at = __shfl_sync(kAllLanes, begin, r + behind);
          address[i] = (base ^ (behind % 8 << 4)) + (half * 32 + behind) * 128;
          index[i] = at < 0 || c >= kRowChunks ? -1 : at + c;
        }
        chunks(address, index);
      }
    }
  }

  // Rows past the end become zeros. Where the consumer keeps q, the warp does not wait for it.
  __device__ void fetch_q(const TileWork& tile) const {
    for_chunks(tile, q_stage(fetched_),
               [&](const uint32_t(&to)[kBatch], const int32_t(&index)[kBatch]) {
#pragma unroll
                 for (int i = 0; i < kBatch; ++i) {
                   asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to[i]),
                                "l"(static_cast<const uint4*>(p_.q) + max(index[i], 0)),
                                "r"(index[i] < 0 ? 0 : 16)
                                : "memory");
                 }
               });
    const uint32_t full = shared_address(&shared_.q_full[consumer_][q_stage(fetched_)]);
    if constexpr (S::kKeepsQ) {
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full) : "memory");
    } else {
      asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
      if constexpr (S::kFp8) narrow_q();
      fence_async_proxy();
      barrier_arrive(full);
    }
  }

  // q of the stage becomes f16, whatever lies where.
  __device__ void narrow_q() const {
    const uint32_t begin = shared_address(shared_.q[consumer_][q_stage(fetched_)]) + lane_ * 16;
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < S::kQBytes / 512; first += kBatch) {
      uint4 v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) v[i] = load_shared(begin + (first + i) * 512);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        store_shared(begin + (first + i) * 512, uint4{half_of_bf16(v[i].x), half_of_bf16(v[i].y),
                                                      half_of_bf16(v[i].z), half_of_bf16(v[i].w)});
      }
    }
  }

  // Of the oldest tile whose results have not gone out.
  __device__ void store_out() {
    const int32_t stage = q_stage(stored_);
    const int32_t slot = stage_of<kTileStages>(stored_);
    barrier_wait(shared_address(&shared_.out_full[consumer_][stage]), q_phase(stored_));
    if (shared_.has_results[consumer_][stage]) {
      for_chunks(shared_.tile[slot], S::kKeepsQ ? S::kOutBuffer : stage,
                 [&](const uint32_t(&from)[kBatch], const int32_t(&index)[kBatch]) {
                   uint4 v[kBatch];
#pragma unroll
                   for (int i = 0; i < kBatch; ++i) v[i] = load_shared(from[i]);
#pragma unroll
                   for (int i = 0; i < kBatch; ++i) {
                     if (index[i] >= 0) static_cast<uint4*>(p_.out)[index[i]] = v[i];
                   }
                 });
    }
    if constexpr (S::kKeepsQ) barrier_arrive(shared_address(&shared_.out_empty[consumer_]));
    barrier_arrive(shared_address(&shared_.tile_ring.empty[slot]));
    ++stored_;
  }

  const AttentionParams& p_;
  Shared& shared_;
  const int32_t consumer_;
  const int32_t lane_;
  int32_t fetched_ = 0;  // tiles
  int32_t stored_ = 0;
};

}  // namespace rudder::cuda
