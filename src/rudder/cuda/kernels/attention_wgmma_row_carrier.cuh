// The warp of the wgmma kernel that brings q to a consumer that keeps it in registers, and takes
// the consumer's results away. Included by attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention_device.cuh"
#include "rudder/cuda/kernels/attention_wgmma_shared.cuh"

namespace rudder::cuda {

// Rows go through the copy engine, each by itself: a warp, a lane has two of the 64. q of the next
// tile comes while one is computed, and results of the tile before go out meanwhile.
template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
class RowCarrier {
 public:
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kWeighting, kTrees>;
  static constexpr int kRowBytes = kHeadDim * 2;
  static_assert(kRowBytes % 16 == 0 && S::kQRowBytes % 16 == 0);

  __device__ RowCarrier(const AttentionParams& params, Shared& shared, int32_t consumer)
      : p_(params),
        shared_(shared),
        consumer_(consumer),
        lane_(static_cast<int32_t>(threadIdx.x) % 32) {}

  __device__ void run() {
    RingCursor<kTileStages> slot;
    int32_t out = 0;  // tiles whose results have not gone out
    while (true) {
      barrier_wait(shared_address(&shared_.tile_ring.full[slot.stage]), slot.phase);
      const TileWork& tile = shared_.tile[slot.stage];
      if (tile.num_pages == 0) break;
      barrier_wait(shared_address(&shared_.q_empty[consumer_]), q_.phase ^ 1);
      fetch_q(tile);
      if (out == kTileStages - 1) store_out(out);
      slot.advance();
      q_.advance();
      ++out;
    }
    while (out > 0) store_out(out);
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");  // what was read is written
  }

 private:
  // Calls row(address in shared memory, where the row begins in q and out) for the lane's rows.
  template <typename Row>
  __device__ void for_rows(const TileWork& tile, int32_t buffer, const Row& row) const {
    const int32_t first = tile.row_begin + S::first_row(consumer_);
    const uint32_t base = shared_address(shared_.q[consumer_][buffer]);
#pragma unroll
    for (int32_t r = 0; r < kConsumerRows; r += 32) {
      if (first + r + lane_ >= tile.rows.count) break;
      row(base + (r + lane_) * S::kQRowBytes,
          tile.rows.template offset<kHeadDim>(first + r + lane_));
    }
  }

  // Rows past the end hold what was there: whatever they give is not stored.
  __device__ void fetch_q(const TileWork& tile) const {
    const uint32_t full = shared_address(&shared_.q_full[consumer_][q_.stage]);
    const int32_t left = tile.rows.count - tile.row_begin - S::first_row(consumer_);
    if (lane_ == 0) {
      barrier_expect(full, static_cast<uint32_t>(max(min(left, kConsumerRows), 0) * kRowBytes));
    }
    __syncwarp();
    for_rows(tile, S::kQBuffer, [&](uint32_t to, int64_t offset) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(to),
          "l"(static_cast<const __nv_bfloat16*>(p_.q) + offset), "n"(kRowBytes), "r"(full)
          : "memory");
    });
  }

  // Of the oldest of the `out` tiles whose results have not gone out.
  __device__ void store_out(int32_t& out) {
    barrier_wait(shared_address(&shared_.out_full[consumer_][out_.stage]), out_.phase);
    if (shared_.has_results[consumer_][out_.stage]) {
      for_rows(shared_.tile[out_slot_.stage], S::kOutBuffer, [&](uint32_t from, int64_t offset) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         static_cast<__nv_bfloat16*>(p_.out) + offset),
                     "r"(from), "n"(kRowBytes)
                     : "memory");
      });
      asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    barrier_arrive(shared_address(&shared_.out_empty[consumer_]));
    barrier_arrive(shared_address(&shared_.tile_ring.empty[out_slot_.stage]));
    out_.advance();
    out_slot_.advance();
    --out;
  }

  const AttentionParams& p_;
  Shared& shared_;
  const int32_t consumer_;
  const int32_t lane_;
  RingCursor<S::kQStages> q_;
  RingCursor<kTileStages> out_slot_;
  RingCursor<S::kQStages> out_;
};

}  // namespace rudder::cuda
