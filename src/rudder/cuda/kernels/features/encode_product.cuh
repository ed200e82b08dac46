// All features of a batch of rows: the product of the encoder with them, on tensor cores
// (m16n8k16), each with its activation. Included by .cu files only.
//
// Few rows lie in shared memory as a whole (encode_flow.cuh). Of many the rows (B) come to shared
// memory by slabs of 256 columns, for all warps of a block.
//
// With up to 16 rows numbers of an encoder come to L2 a slab before they are loaded, since all
// warps wait for each other at a slab's end. Where there are more, that costs more than it saves.
#pragma once

#include "rudder/cuda/kernels/features/encode_flow.cuh"

namespace rudder::cuda {

struct EncodeRing {
  static constexpr int kSlab = kEncodeSlab;
  static constexpr int kStride = kSlab + 32;  // so that lanes of a quarter warp hit all banks
  static constexpr int kStages = 3;
  static constexpr int kStageElements = kBatchRows * kStride;
  static constexpr size_t kBytes = kStages * kStageElements * sizeof(Bf16);
};

// kRowTiles: of eight rows each.
template <int kRowTiles, bool kBf16, bool kAligned, typename Which>
class EncodeProduct {
 public:
  __device__ EncodeProduct(const EncodeParams& p, const EncodeBatch& batch,
                           const EncodeDictionary& dictionary, Bf16* ring, const Which& which)
      : p_(p),
        batch_(batch),
        dictionary_(dictionary),
        which_(which),
        results_(p, batch, dictionary, which),
        num_features_(which.count(dictionary.head())),
        ring_(ring),
        width_(static_cast<int>(p.width)),
        slabs_((width_ + EncodeRing::kSlab - 1) / EncodeRing::kSlab),
        half_(EncodeTiles::half()),
        group_(encode_lane() / 4),
        in_group_(encode_lane() % 4) {}

  __device__ void run() {
    const EncodeTiles tiles(num_features_, p_.num_blocks);
#pragma unroll 1
    for (int first = tiles.begin; first < tiles.end; first += kTilesAtOnce) {
      const int tile = EncodeTiles::of_warp(first);
      next_ = tile + kTilesAtOnce < tiles.end ? tile + kTilesAtOnce : kNoTile;
      take_tile(tile, tile < tiles.end);
    }
  }

 private:
  static constexpr int kTilesAtOnce = EncodeTiles::kAtOnce;
  static constexpr int kNoTile = -1;
  static constexpr int kChunk = 32;  // columns that a warp multiplies at a time
  static constexpr int kChunks = EncodeRing::kSlab / kChunk / 2;  // of a slab, of a warp
  // Chunks that are on the way: as many as registers hold beside the sums.
  static constexpr int kAhead = !kAligned       ? 1
                                : kRowTiles > 4 ? (kBf16 ? 2 : 1)
                                : kBf16         ? kChunks
                                                : 2;
  static constexpr bool kPrefetches = kAligned && 8 * kRowTiles <= kRowsThatPrefetch;
  static_assert(2 * kTilesAtOnce * 32 == kEncodeThreads && kChunks % kAhead == 0);
  static_assert(kTilesAtOnce * (kBatchRows / 8) * 32 * sizeof(float4) <= EncodeRing::kBytes);

  // Of the rows `group_` and `group_ + 8` of the tile.
  struct Runs {
    EncoderRun<kBf16> low, high;
  };

  __device__ void take_tile(int tile, bool is_there) {
    tile_ = tile;
    first_feature_ = tile * EncodeTiles::kFeatures;
    limit_ = is_there ? width_ : 0;
    low_ = encoder_row(first_feature_ + group_);
    high_ = encoder_row(first_feature_ + group_ + 8);
    float sums[kRowTiles][4] = {};
    Runs ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(ahead[i], i);
    if (half_ == 0 && is_there) results_.prefetch(tile);
    __syncthreads();  // the ring is free
    send(0);
    send(1);
#pragma unroll 1
    for (int slab = 0; slab < slabs_; ++slab) {
      asm volatile("cp.async.wait_group %0;" ::"n"(EncodeRing::kStages - 2) : "memory");
      __syncthreads();
      send(slab + EncodeRing::kStages - 1);
      if constexpr (kPrefetches) {
        if (half_ == 0 && is_there) prefetch(slab + 1);
      }
      float of_slab[kRowTiles][4] = {};
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        multiply(of_slab, ahead[i % kAhead], stage(slab) + 2 * i * kChunk);
        load(ahead[i % kAhead], slab * kChunks + i + kAhead);
      }
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[n][j] += of_slab[n][j];
      }
    }
    finish(sums, is_there);
  }

  __device__ const void* encoder_row(int feature) const {
    const int64_t at = int64_t{which_.at(min(feature, num_features_ - 1))} * width_;
    return reinterpret_cast<const char*>(dictionary_.at(dictionary_.head().encoder)) +
           at * static_cast<int64_t>(kBf16 ? sizeof(Bf16) : sizeof(float));
  }

  // This warp's chunk number i of the tile.
  __device__ void load(Runs& runs, int i) const {
    const int column = (2 * i + half_) * kChunk + in_group_ * kRun;
    runs.low.template load<kAligned>(low_, column, limit_ - column);
    runs.high.template load<kAligned>(high_, column, limit_ - column);
  }

  // Behind the tile's last slab comes the first of this warp's next tile.
  __device__ void prefetch(int slab) const {
    const bool is_next = slab == slabs_;
    if (is_next && next_ == kNoTile) return;
    prefetch_tile(dictionary_, which_, is_next ? next_ : tile_, is_next ? 0 : slab, 1);
  }
  __device__ Bf16* stage(int slab) const {
    return ring_ + slab % EncodeRing::kStages * EncodeRing::kStageElements;
  }

  // A slab of all rows; columns behind the last are 0, rows behind the last are what lies there.
  __device__ void send(int slab) const {
    constexpr int kRuns = EncodeRing::kSlab / kRun;  // of a row
    if (slab < slabs_) {
      for (int i = static_cast<int>(threadIdx.x); i < batch_.num_rows * kRuns;
           i += kEncodeThreads) {
        const int r = i / kRuns;
        const int column = i % kRuns * kRun;
        send_run(r, slab * EncodeRing::kSlab + column,
                 stage(slab) + r * EncodeRing::kStride + column);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  // Past L1: another block may have written the row.
  __device__ void send_run(int r, int column, Bf16* to) const {
    const auto* const row =
        static_cast<const uint16_t*>(p_.x) + int64_t{batch_.token[r]} * p_.width;
    if (width_ % kRun == 0) {
      const bool is_inside = column < width_;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                   "l"(row + (is_inside ? column : 0)), "r"(is_inside ? 16 : 0)
                   : "memory");
      return;
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const uint16_t bits = column + i < width_ ? __ldcg(row + column + i) : uint16_t{0};
      reinterpret_cast<uint16_t*>(to)[i] = bits;
    }
  }

  // `from` is the chunk of the tile's first warp in the slab.
  __device__ void multiply(float (&sums)[kRowTiles][4], const Runs& runs, const Bf16* from) const {
    constexpr int kParts = EncoderRun<kBf16>::kParts;
    uint4 low[kParts];
    uint4 high[kParts];
    runs.low.split(low);
    runs.high.split(high);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const uint4 b = *reinterpret_cast<const uint4*>(
          from + half_ * kChunk + (8 * n + group_) * EncodeRing::kStride + in_group_ * kRun);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        encode_mma(sums[n], low[part].x, high[part].x, low[part].y, high[part].y, b.x, b.y);
        encode_mma(sums[n], low[part].z, high[part].z, low[part].w, high[part].w, b.z, b.w);
      }
    }
  }

  // The second warp of a tile hands its part to the first, through the ring's memory.
  __device__ void finish(const float (&sums)[kRowTiles][4], bool is_there) const {
    auto* const parts = reinterpret_cast<float4*>(ring_) +
                        encode_warp() % kTilesAtOnce * kRowTiles * 32 + encode_lane();
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();  // all slabs have been read
    if (half_ == 1) {
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        parts[n * 32] = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
      }
    }
    __syncthreads();
    if (half_ == 1 || !is_there) return;
    results_.store_tile(tile_, sums, [parts](int n) { return parts[n * 32]; });
  }

  const EncodeParams& p_;
  const EncodeBatch& batch_;
  const EncodeDictionary& dictionary_;
  const Which which_;
  const EncodeResults<Which> results_;
  const int num_features_;
  Bf16* const ring_;
  const int width_;
  const int slabs_;
  const int half_;  // which of a tile's two warps
  const int group_;
  const int in_group_;
  // Of the tile at hand.
  int tile_ = 0;
  int next_ = kNoTile;  // this warp's next
  int first_feature_ = 0;
  int limit_ = 0;  // columns that are read
  const void* low_ = nullptr;
  const void* high_ = nullptr;
};

// A call: none of the variants has registers of another.
template <int kRowTiles, bool kBf16, bool kAligned, typename Which>
__device__ __noinline__ void multiply_tiles(const EncodeParams& p, const EncodeBatch& batch,
                                            const EncodeDictionary dictionary, Bf16* ring,
                                            const Which which) {
  EncodeProduct<kRowTiles, kBf16, kAligned, Which>(p, batch, dictionary, ring, which).run();
}
template <bool kBf16, typename Which>
__device__ __noinline__ void multiply_flow(const EncodeParams& p, const EncodeBatch& batch,
                                           const EncodeDictionary dictionary, Bf16* memory,
                                           const Which which) {
  EncodeFlow<kBf16, Which>(p, batch, dictionary, memory, which).run();
}

template <bool kBf16, typename Which>
__device__ void multiply_rows(const EncodeParams& p, const EncodeBatch& batch,
                              const EncodeDictionary& dictionary, Bf16* ring, const Which& which) {
  constexpr int kMost = kBatchRows / 8;
  if (!dictionary.is_encoder_aligned()) {
    multiply_tiles<kMost, kBf16, false>(p, batch, dictionary, ring, which);
  } else if (batch.num_rows <= kFlowRows &&
             EncodeFlowMemory::fits(static_cast<int>(p.width), EncodeRing::kBytes)) {
    multiply_flow<kBf16>(p, batch, dictionary, ring, which);
  } else if (batch.num_rows <= 8) {
    multiply_tiles<1, kBf16, true>(p, batch, dictionary, ring, which);
  } else if (batch.num_rows <= 16) {
    multiply_tiles<2, kBf16, true>(p, batch, dictionary, ring, which);
  } else if (batch.num_rows <= 32) {
    multiply_tiles<4, kBf16, true>(p, batch, dictionary, ring, which);
  } else {
    multiply_tiles<kMost, kBf16, true>(p, batch, dictionary, ring, which);
  }
}

// By all blocks. p.features gets what `which` names, of all rows of the batch; p has x, its width
// and the number of blocks.
template <typename Which>
__device__ void multiply_encoder(const EncodeParams& p, const EncodeBatch& batch,
                                 const EncodeDictionary& dictionary, Bf16* ring,
                                 const Which& which) {
  if (dictionary.head().is_bf16 != 0) {
    multiply_rows<true>(p, batch, dictionary, ring, which);
  } else {
    multiply_rows<false>(p, batch, dictionary, ring, which);
  }
}

}  // namespace rudder::cuda
