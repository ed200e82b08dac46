// The warp of the wgmma kernel that brings q to a consumer and takes its results away. Included by
// attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_e4m3_rows.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_shared.cuh"

namespace rudder::cuda {

// Brings the q of a consumer, tile after tile, and takes its results away: a warp. Where a consumer
// keeps q, it brings that of the next tile while one is computed, and results of the tile before go
// out meanwhile. Else both have the same memory: q comes when the results that lie there are out.
template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees, bool kCuts>
class Carrier {
 public:
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kWeighting, kTrees>;
  static constexpr int kRowChunks = S::kOutColumns / 8;  // 16-byte chunks of a row that it carries
  static constexpr int kRowLanes = kRowChunks <= 8 ? 8 : kRowChunks <= 16 ? 16 : 32;
  static constexpr int kStep = 32 / kRowLanes;  // rows that a warp has at once
  static constexpr int kBatch = 4;              // chunks of a lane that are on their way at once
  static_assert(kRowChunks <= kRowLanes && 32 % (kBatch * kStep) == 0);
  // Where products read q in shared memory the warp waits for it, and rounds it for an fp8 cache.
  static constexpr bool kWaitsForQ = !S::kKeepsQ;

  __device__ Carrier(const AttentionParams& params, Shared& shared, int32_t consumer)
      : p_(params),
        shared_(shared),
        consumer_(consumer),
        lane_(static_cast<int32_t>(threadIdx.x) % 32) {}

  __device__ void run() {
    int32_t out = 0;  // tiles whose results have not gone out
    while (true) {
      barrier_wait(shared_address(&shared_.tile_ring.full[slot_.stage]), slot_.phase);
      const TileWork& tile = shared_.tile[slot_.stage];
      if (tile.num_pages == 0) break;
      if constexpr (S::kKeepsQ) {
        barrier_wait(shared_address(&shared_.q_empty[consumer_]), q_.phase ^ 1);
        fetch_q(tile);
        if (out == kTileStages - 1) store_out(out);
      } else {
        if (out == S::kQStages) store_out(out);
        fetch_q(tile);
      }
      if constexpr (kWaitsForQ) finish_q();
      slot_.advance();
      q_.advance();
      ++out;
    }
    while (out > 0) store_out(out);
  }

 private:
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

  // Rows past the end become zeros.
  __device__ void fetch_q(const TileWork& tile) const {
    for_chunks(tile, q_.stage, [&](const uint32_t(&to)[kBatch], const int32_t(&index)[kBatch]) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to[i]),
                     "l"(static_cast<const uint4*>(p_.q) + max(index[i], 0)),
                     "r"(index[i] < 0 ? 0 : 16)
                     : "memory");
      }
    });
    if constexpr (!kWaitsForQ) {
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(q_full())
                   : "memory");
    }
  }
  __device__ void finish_q() const {
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    if constexpr (S::kFp8) {
      __syncwarp();
      round_q();
    }
    fence_async_proxy();
    barrier_arrive(q_full());
  }
  __device__ uint32_t q_full() const {
    return shared_address(&shared_.q_full[consumer_][q_.stage]);
  }

  // Makes e4m3 of the rows that came, each lane 32 columns of every fourth row. Of 128 columns they
  // lie where the first 64 of bf16 were.
  __device__ void round_q() const {
    static_assert(S::kOutColumns == 256);
    const int32_t r = lane_ / 8;
    const int32_t c = lane_ % 8;
    const uint32_t q = shared_address(shared_.q[consumer_][q_.stage]);
    const uint32_t from = q + chunk_offset<S::kQGroupBytes>(r, 2 * c);
    const uint32_t to = q + chunk_offset<S::kQGroupBytes>(r, c);
    if constexpr (S::kWide) {  // a row's columns are those of both carriers
#pragma unroll 1
      for (int first = 0; first < kConsumerRows; first += 4) {
        uint4 v[2][2];
        load_columns(below(from, first), v);
        const uint32_t top = top_of(v);
        if (c == 0) shared_.q_top[consumer_][first + r] = top;
      }
      asm volatile("bar.sync %0, 64;" ::"n"(kCarrierBarrier) : "memory");
    }
#pragma unroll 1
    for (int first = 0; first < kConsumerRows; first += 4) {
      uint4 v[2][2];
      load_columns(below(from, first), v);
      uint32_t top = 0;
      if constexpr (S::kWide) {
        top = max(shared_.q_top[0][first + r], shared_.q_top[1][first + r]);
      } else {
        top = top_of(v);
      }
      const auto rounding = RowRounding::of(top);
      if (c == 0) shared_.q_scale[consumer_][q_.stage][first + r] = rounding.back;
      __syncwarp();  // the rows have been read
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        const uint4 low = v[group][0];
        const uint4 high = v[group][1];
        store_shared(below(to, first) + group * kRoundedGroupBytes,
                     uint4{rounding(low.x, low.y), rounding(low.z, low.w), rounding(high.x, high.y),
                           rounding(high.z, high.w)});
      }
    }
    if constexpr (S::kWide) {  // q_top is read before the next one
      asm volatile("bar.sync %0, 64;" ::"n"(kCarrierBarrier) : "memory");
    }
  }
  // From one group of 128 columns to the next.
  static constexpr int kRoundedGroupBytes = 2 * S::kQGroupBytes;
  // The address of the same chunk some rows below.
  __device__ static uint32_t below(uint32_t chunk, int rows) {
    return (chunk ^ (rows % 8 << 4)) + rows * 128;
  }
  // 16 neighbouring columns of both groups.
  __device__ static void load_columns(uint32_t from, uint4 (&v)[2][2]) {
#pragma unroll
    for (int group = 0; group < 2; ++group) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        v[group][i] = load_shared((from ^ (i << 4)) + group * kRoundedGroupBytes);
      }
    }
  }
  // The largest magnitude of eight lanes' columns, as bf16.
  __device__ static uint32_t top_of(const uint4 (&v)[2][2]) {
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4& chunk = v[i / 2][i % 2];
      for (const uint32_t two : {chunk.x, chunk.y, chunk.z, chunk.w}) {
        top = larger_magnitudes(top, two);
      }
    }
    top = max(top >> 16, top & 0xffffu);
#pragma unroll
    for (int behind = 1; behind < 8; behind *= 2) {
      top = max(top, __shfl_xor_sync(kAllLanes, top, behind));
    }
    return top;
  }

  // Of the oldest of the `out` tiles whose results have not gone out.
  __device__ void store_out(int32_t& out) {
    barrier_wait(shared_address(&shared_.out_full[consumer_][out_.stage]), out_.phase);
    if (!kCuts || shared_.has_results[consumer_][out_.stage]) {
      for_chunks(shared_.tile[out_slot_.stage], S::kKeepsQ ? S::kOutBuffer : out_.stage,
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
    barrier_arrive(shared_address(&shared_.tile_ring.empty[out_slot_.stage]));
    out_.advance();
    out_slot_.advance();
    --out;
  }

  const AttentionParams& p_;
  Shared& shared_;
  const int32_t consumer_;
  const int32_t lane_;
  RingCursor<kTileStages> slot_;
  RingCursor<S::kQStages> q_;
  RingCursor<kTileStages> out_slot_;
  RingCursor<S::kQStages> out_;
};

}  // namespace rudder::cuda
