// The warpgroup of the wgmma kernel that makes f16 of fp8 pages. Included by attention_wgmma.cu
// only.
#pragma once

#include "rudder/cuda/kernels/attention_device.cuh"
#include "rudder/cuda/kernels/attention_wgmma_shared.cuh"

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
      warp_arrive(shared_.tile_ring.empty[slot.stage]);
      slot.advance();
      if (pages == 0) return;
      for (int32_t first = 0; first < pages; first += S::kPages, tokens -= S::kTokens) {
        convert(shared_.k_ring, shared_.k, S::kTokens);
        convert(shared_.v_ring, shared_.v, tokens);
        cursor_.advance();
      }
    }
  }

 private:
  // Tokens from `tokens` on become zeros.
  __device__ void convert(Ring& ring, uint8_t (&tiles)[S::kStages][S::kTileBytes], int32_t tokens) {
    const int32_t stage = cursor_.stage;
    barrier_wait(shared_address(&shared_.raw_ring.full[raw_.stage]), raw_.phase);
    barrier_wait(shared_address(&ring.empty[stage]), cursor_.phase ^ 1);
    // A thread has one chunk (16 raw bytes) of every kStep-th row, all at the same place in the
    // swizzle.
    constexpr int kChunks = kHeadDim / 16;  // of a row
    constexpr int kStep = kChunks == 6 ? 16 : kGroupThreads / kChunks;
    constexpr int kEach = S::kTokens / kStep;
    constexpr int kBatch = 4;
    static_assert(kStep % 8 == 0 && kEach % kBatch == 0);
    const int32_t row = thread_ / kChunks;
    const int32_t chunk = thread_ % kChunks;
    if (row < kStep) {
      // Of every other column group the second half goes first: no two lanes of a quarter of a warp
      // meet in a bank.
      const int32_t swapped = chunk / 4 % 2;
      const uint32_t read =
          shared_address(shared_.raw[raw_.stage]) + chunk_offset<S::kTokens * 128>(row, chunk);
      const uint32_t write =
          shared_address(tiles[stage]) + chunk_offset<S::kGroupBytes>(row, 2 * chunk + swapped);
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
          if (swapped != 0) raw[i] = uint4{raw[i].z, raw[i].w, raw[i].x, raw[i].y};
          store_wide(write + (begin + i) * kStep * 128, raw[i].x, raw[i].y);
          store_wide((write ^ 16) + (begin + i) * kStep * 128, raw[i].z, raw[i].w);
        }
      }
    }
    fence_async_proxy();
    warp_arrive(ring.full[stage]);
    warp_arrive(shared_.raw_ring.empty[raw_.stage]);
    raw_.advance();
  }

  __device__ static void store_wide(uint32_t to, uint32_t four, uint32_t next_four) {
    store_shared(to,
                 uint4{widen(four), widen(four >> 16), widen(next_four), widen(next_four >> 16)});
  }

  Shared& shared_;
  const int32_t thread_;
  RingCursor<S::kStages> cursor_;  // of K and V
  RingCursor<S::kRawStages> raw_;
};

}  // namespace rudder::cuda
