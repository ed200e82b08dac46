// The product of an encode with few rows (encode_product.cuh has it for any). The rows lie in
// shared memory as a whole, so no warp waits for another but the two that share a tile, and the
// encoder's numbers keep coming from one tile to the next. Sums have the order of
// encode_product.cuh: a row has the same bits in both. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/features/encode_tiles.cuh"

namespace rudder::cuda {

inline constexpr int kFlowRows = 8;

// How shared memory is divided.
struct EncodeFlowMemory {
  static constexpr int kPad = 32;  // so that lanes of a quarter warp hit all banks
  // Of the sums of a tile's second warp, two in turn.
  static constexpr int kParts = 2 * EncodeTiles::kAtOnce * 32;

  // Elements of a row; whole slabs.
  __device__ static int stride(int width) {
    return (width + kEncodeSlab - 1) / kEncodeSlab * kEncodeSlab + kPad;
  }
  __device__ static size_t rows_bytes(int width) {
    return size_t{kFlowRows} * stride(width) * sizeof(Bf16);
  }
  __device__ static bool fits(int width, size_t bytes) {
    return rows_bytes(width) + kParts * sizeof(float4) <= bytes;
  }
};

// Of rows that are aligned.
template <bool kBf16, typename Which>
class EncodeFlow {
 public:
  using Memory = EncodeFlowMemory;

  __device__ EncodeFlow(const EncodeParams& p, const EncodeBatch& batch,
                        const EncodeDictionary& dictionary, Bf16* memory, const Which& which)
      : p_(p),
        batch_(batch),
        dictionary_(dictionary),
        which_(which),
        results_(p, batch, dictionary, which),
        num_features_(which.count(dictionary.head())),
        width_(static_cast<int>(p.width)),
        stride_(Memory::stride(width_)),
        chunks_((width_ + kEncodeSlab - 1) / kEncodeSlab * kAhead),
        rows_(memory),
        parts_(reinterpret_cast<float4*>(memory + kFlowRows * stride_)) {}

  __device__ void run() {
    const EncodeTiles tiles(num_features_, p_.num_blocks);
    end_ = tiles.end;
    begin_tile(EncodeTiles::of_warp(tiles.begin));
    Runs ahead[kAhead];
#pragma unroll
    for (Runs& runs : ahead) load(runs);
    load_rows();
    int turn = 0;
#pragma unroll 1
    for (int tile = EncodeTiles::of_warp(tiles.begin); tile < end_; tile += kTilesAtOnce) {
      if (half() == 0) results_.prefetch(tile);
      float sums[1][4] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < chunks_; chunk += kAhead) {
        float of_slab[4] = {};
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          multiply(of_slab, ahead[i], chunk + i);
          load(ahead[i]);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[0][j] += of_slab[j];
      }
      finish(tile, sums, turn);
      turn ^= 1;
    }
  }

 private:
  static constexpr int kTilesAtOnce = EncodeTiles::kAtOnce;
  static constexpr int kChunk = 32;  // columns that a warp multiplies at a time
  static constexpr int kAhead = kEncodeSlab / kChunk / 2;  // chunks on the way: a warp's of a slab

  // Of the rows `group()` and `group() + 8` of a tile.
  struct Runs {
    EncoderRun<kBf16> low, high;
  };

  __device__ static int half() {
    return EncodeTiles::half();
  }
  __device__ static int group() {
    return encode_lane() / 4;
  }
  __device__ static int in_group() {
    return encode_lane() % 4;
  }
  __device__ static int pair() {
    return encode_warp() % kTilesAtOnce;
  }
  // Of this lane, where its warp multiplies chunk number i of a tile.
  __device__ static int column(int i) {
    return (2 * i + half()) * kChunk + in_group() * kRun;
  }

  // What load() goes on with.
  __device__ void begin_tile(int tile) {
    next_tile_ = tile;
    next_chunk_ = 0;
    limit_ = tile < end_ ? width_ : 0;
    low_ = encoder_row(tile * EncodeTiles::kFeatures + group());
    high_ = encoder_row(tile * EncodeTiles::kFeatures + group() + 8);
  }
  __device__ const void* encoder_row(int feature) const {
    const int64_t at = int64_t{which_.at(min(feature, num_features_ - 1))} * width_;
    return reinterpret_cast<const char*>(dictionary_.at(dictionary_.head().encoder)) +
           at * static_cast<int64_t>(kBf16 ? sizeof(Bf16) : sizeof(float));
  }
  __device__ void load(Runs& runs) {
    const int at = column(next_chunk_);
    runs.low.template load<true>(low_, at, limit_ - at);
    runs.high.template load<true>(high_, at, limit_ - at);
    if (++next_chunk_ == chunks_) begin_tile(next_tile_ + kTilesAtOnce);
  }

  // Past L1: another block may have written them. Columns behind the last are 0.
  __device__ void load_rows() const {
    const int runs = (stride_ - Memory::kPad) / kRun;
    for (int r = 0; r < batch_.num_rows; ++r) {
      const auto* const row =
          static_cast<const uint16_t*>(p_.x) + int64_t{batch_.token[r]} * p_.width;
      for (int i = static_cast<int>(threadIdx.x); i < runs; i += kEncodeThreads) {
        const bool is_inside = i * kRun < width_;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         shared_address(rows_ + r * stride_ + i * kRun)),
                     "l"(row + (is_inside ? i * kRun : 0)), "r"(is_inside ? 16 : 0)
                     : "memory");
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
  }

  __device__ void multiply(float (&sums)[4], const Runs& runs, int chunk) const {
    constexpr int kParts = EncoderRun<kBf16>::kParts;
    uint4 low[kParts];
    uint4 high[kParts];
    runs.low.split(low);
    runs.high.split(high);
    const uint4 b = *reinterpret_cast<const uint4*>(rows_ + group() * stride_ + column(chunk));
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      encode_mma(sums, low[part].x, high[part].x, low[part].y, high[part].y, b.x, b.y);
      encode_mma(sums, low[part].z, high[part].z, low[part].w, high[part].w, b.z, b.w);
    }
  }

  // The second warp hands its part to the first, which has read the one before the last when the
  // pair meets.
  __device__ void finish(int tile, const float (&sums)[1][4], int turn) const {
    float4& part = parts_[(turn * kTilesAtOnce + pair()) * 32 + encode_lane()];
    if (half() == 1) part = make_float4(sums[0][0], sums[0][1], sums[0][2], sums[0][3]);
    asm volatile("bar.sync %0, 64;" ::"r"(1 + pair()) : "memory");
    if (half() == 0) results_.store_tile(tile, sums, [&part](int /*n*/) { return part; });
  }

  const EncodeParams& p_;
  const EncodeBatch& batch_;
  const EncodeDictionary& dictionary_;
  const Which which_;
  const EncodeResults<Which> results_;
  const int num_features_;
  const int width_;
  const int stride_;
  const int chunks_;  // of a tile, of a warp
  Bf16* const rows_;
  float4* const parts_;
  int end_ = 0;
  // Of what load() goes on with.
  int next_tile_ = 0;
  int next_chunk_ = 0;
  int limit_ = 0;  // columns that are read
  const void* low_ = nullptr;
  const void* high_ = nullptr;
};

}  // namespace rudder::cuda
