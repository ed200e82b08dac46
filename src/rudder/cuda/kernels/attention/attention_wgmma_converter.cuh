// The warpgroup of the wgmma kernel that makes f16 of the values of fp8 pages. Included by
// attention_wgmma.cu only.
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_wgmma_shared.cuh"

namespace rudder::cuda {

// Makes f16 of e4m3: a warpgroup.
template <int kHeadDim, KvType kType, Weighting kWeighting, bool kTrees>
class Converter {
 public:
  using S = Shape<kHeadDim, kType, kWeighting, kTrees>;
  using Shared = WgmmaShared<kHeadDim, kType, kWeighting, kTrees>;

  __device__ explicit Converter(Shared& shared)
      : shared_(shared), thread_(static_cast<int32_t>(threadIdx.x) % kGroupThreads) {}

  __device__ void run() {
    RingCursor<kTileStages> slot;
    while (true) {
      barrier_wait(shared_address(&shared_.tile_ring.full[slot.stage]), slot.phase);
      const TileWork& tile = shared_.tile[slot.stage];
      const int32_t pages = tile.num_pages;
      int32_t tokens = tile.end() - tile.first_page * kPageTokens;
      slot.advance();
      if (pages == 0) return;
      for (int32_t first = 0; first < pages; first += S::kPages, tokens -= S::kTokens) {
        convert(tokens);
      }
    }
  }

 private:
  // Rows of the tokens from `tokens` on become zeros.
  __device__ void convert(int32_t tokens) {
    barrier_wait(shared_address(&shared_.raw_ring.full[raw_.stage]), raw_.phase);
    barrier_wait(shared_address(&shared_.v_ring.empty[v_cursor_.stage]), v_cursor_.phase ^ 1);
    // A thread has one chunk (16 raw bytes) of every kStep-th row, all at the same place in the
    // swizzle. A quarter of a warp has four neighbouring chunks of two rows, so that no two lanes
    // meet in a bank: the rows' numbers differ in bit 2, which the swizzle of the raw ones tells
    // apart, and in bit 0, which that of the wide ones does.
    constexpr int kParts = S::kWide ? 2 : 1;         // of a row, one after the other
    constexpr int kChunks = kHeadDim / kParts / 16;  // of a part
    constexpr int kFours = (kChunks + 3) / 4;        // and fours of them
    constexpr int kStep = 32 / kFours;
    constexpr int kEach = S::kTokens / kStep;
    constexpr int kBatch = 4;
    static_assert(kStep % 8 == 0 && kEach % kBatch == 0);
    const int32_t pair = thread_ / 8 / kFours;
    const int32_t row = (pair / 4 * 8 + pair % 4) ^ (thread_ % 8 < 4 ? 0 : 5);
    const int32_t in_part = thread_ / 8 % kFours * 4 + thread_ % 4;
#pragma unroll 1
    for (int part = 0; part < kParts && in_part < kChunks; ++part) {
      const int32_t chunk = part * kChunks + in_part;
      const uint32_t read =
          shared_address(shared_.raw[raw_.stage]) + chunk_offset<S::kGroupBytes>(row, chunk);
      const uint32_t write =
          shared_address(shared_.v[v_cursor_.stage]) + chunk_offset<S::kGroupBytes>(row, 2 * chunk);
#pragma unroll
      for (int begin = 0; begin < kEach; begin += kBatch) {
        uint4 raw[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) raw[i] = load_shared(read + (begin + i) * kStep * 128);
        if (tokens < S::kTokens) {
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            const int32_t token = token_of_row<S::kInRuns>(row + (begin + i) * kStep);
            if (token >= tokens) raw[i] = uint4{};
          }
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const uint32_t to = write + (begin + i) * kStep * 128;
          store_wide(to, raw[i].x, raw[i].y);
          store_wide(to ^ 16, raw[i].z, raw[i].w);
        }
      }
    }
    fence_async_proxy();
    warp_arrive(shared_.v_ring.full[v_cursor_.stage]);
    warp_arrive(shared_.raw_ring.empty[raw_.stage]);
    raw_.advance();
    v_cursor_.advance();
  }

  __device__ static void store_wide(uint32_t to, uint32_t four, uint32_t next_four) {
    const uint2 low = widen_four(four);
    const uint2 high = widen_four(next_four);
    store_shared(to, uint4{low.x, low.y, high.x, high.y});
  }

  Shared& shared_;
  const int32_t thread_;
  RingCursor<S::kStages> v_cursor_;
  RingCursor<S::kRawStages> raw_;
};

}  // namespace rudder::cuda
