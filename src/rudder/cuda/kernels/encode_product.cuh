// All features of a batch of rows: the product of the encoder with them, on tensor cores
// (m16n8k16), each with its activation. Included by .cu files only.
//
// A block has a run of tiles of 16 features, up to eight at a time. Two warps share a tile and take
// turns along the rows, 32 columns at a time: an encoder's number is read by one lane of the
// device, straight to a register (it is the A operand), several chunks ahead. The rows (B) come to
// shared memory by slabs of 256 columns, for all warps.
//
// The tensor core's k index is only a name: lane t of a group holds columns [8 t, 8 t + 8) of 32,
// of an encoder row and of a token alike, and each half of them is one k step.
//
// Where there are few rows, numbers of an encoder come to L2 a slab before they are loaded:
// registers alone hold too few that are on the way. Where there are many, that costs more than it
// saves.
//
// A sum's order is: products of a slab in the tensor core, slabs in fp32, the two warps' parts. It
// does not depend on the number of rows. Encoders of f32 are split into three bf16 each, whose sum
// is the number: products are exact in both cases.
#pragma once

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/encode_batch.cuh"

namespace rudder::cuda {

struct EncodeRing {
  static constexpr int kSlab = 256;           // columns
  static constexpr int kStride = kSlab + 32;  // so that lanes of a quarter warp hit all banks
  static constexpr int kStages = 3;
  static constexpr int kStageElements = kBatchRows * kStride;
  static constexpr size_t kBytes = kStages * kStageElements * sizeof(Bf16);
};

// c[16 x 8] += a[16 x 16] . b[16 x 8]
__device__ inline void encode_mma(float (&c)[4], uint32_t low0, uint32_t high0, uint32_t low1,
                                  uint32_t high1, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(low0), "r"(high0), "r"(low1), "r"(high1), "r"(b0), "r"(b1));
}

// Eight numbers of an encoder row, as the multiplication takes them: kParts operands whose sum they
// are.
template <bool kBf16>
class EncoderRun;

template <>
class EncoderRun<true> {
 public:
  static constexpr int kParts = 1;

  __device__ static uint4 load16(const void* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
  }

  template <bool kAligned>
  __device__ void load(const void* row, int column, int left) {
    const Bf16* const from = static_cast<const Bf16*>(row) + column;
    if constexpr (kAligned) {
      bits_ = left > 0 ? load16(from) : make_uint4(0, 0, 0, 0);
    } else {
      const Packed packed = load_run<false>(from, left);
      memcpy(&bits_, &packed, sizeof(bits_));
    }
  }
  __device__ void split(uint4 (&parts)[kParts]) const { parts[0] = bits_; }

 private:
  uint4 bits_;
};

template <>
class EncoderRun<false> {
 public:
  static constexpr int kParts = 3;

  template <bool kAligned>
  __device__ void load(const void* row, int column, int left) {
    const float* const from = static_cast<const float*>(row) + column;
    if constexpr (kAligned) {
      const bool is_inside = left > 0;
      const uint4 zero = make_uint4(0, 0, 0, 0);
      const uint4 halves[2] = {is_inside ? EncoderRun<true>::load16(from) : zero,
                               is_inside ? EncoderRun<true>::load16(from + 4) : zero};
      memcpy(&values_, &halves, sizeof(values_));
    } else {
      values_ = load_floats<false>(from, left);
    }
  }
  // The smallest first.
  __device__ void split(uint4 (&parts)[kParts]) const {
    Floats rest = values_;
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part) {
      const Packed packed = pack(rest);
      const Floats taken = unpack(packed);
#pragma unroll
      for (int i = 0; i < kRun; ++i) rest.v[i] -= taken.v[i];
      memcpy(&parts[part], &packed, sizeof(parts[part]));
    }
  }

 private:
  Floats values_;
};

// Which features a product computes, in which order: column i of its result is at(i).
struct AllFeatures {
  __device__ static int count(const tap::DictionaryHead& head) { return head.num_features; }
  __device__ static int at(int i) { return i; }
};
struct ListedFeatures {
  const int32_t* listed;
  int num_listed;

  __device__ int count(const tap::DictionaryHead& /*head*/) const { return num_listed; }
  __device__ int at(int i) const { return listed[i]; }
};

// The tiles of features that a block has.
struct EncodeTiles {
  static constexpr int kFeatures = tap::kFeatureTile;
  static constexpr int kAtOnce = kEncodeWarps / 2;  // two warps share one
  int begin, end;

  __device__ EncodeTiles(int num_features, int num_blocks) {
    const int64_t tiles = (num_features + kFeatures - 1) / kFeatures;
    begin = static_cast<int>(tiles * blockIdx.x / num_blocks);
    end = static_cast<int>(tiles * (blockIdx.x + 1) / num_blocks);
  }
  // The tile that this warp has of those from `first` on.
  __device__ static int of_warp(int first) { return first + encode_warp() % kAtOnce; }
  __device__ static int half() { return encode_warp() / kAtOnce; }
};

// Up to so many rows a product asks for a slab of the encoder ahead of its loads (ADR 0044).
inline constexpr int kRowsThatPrefetch = 16;

// By the first of a tile's warps, of aligned rows: lane i asks for some slabs of the tile's row i.
template <typename Which>
__device__ void prefetch_tile(const EncodeDictionary& dictionary, const Which& which, int tile,
                              int first_slab, int num_slabs) {
  const tap::DictionaryHead& head = dictionary.head();
  const int i = tile * EncodeTiles::kFeatures + encode_lane();
  if (encode_lane() >= EncodeTiles::kFeatures || i >= which.count(head)) return;
  const int begin = first_slab * EncodeRing::kSlab;
  const int columns = min(num_slabs * EncodeRing::kSlab, head.d_in - begin);
  const int bytes = head.is_bf16 != 0 ? 2 : 4;  // of a number
  const int64_t at = (int64_t{which.at(i)} * head.d_in + begin) * bytes;
  prefetch_bulk(reinterpret_cast<const char*>(dictionary.at(head.encoder)) + at, columns * bytes);
}

// What a block of a product of all features reads first.
__device__ inline void prefetch_encoder(const EncodeParams& p, const EncodeBatch& batch,
                                        const EncodeDictionary& dictionary) {
  const EncodeTiles tiles(dictionary.head().num_features, p.num_blocks);
  const int tile = EncodeTiles::of_warp(tiles.begin);
  if (EncodeTiles::half() != 0 || tile >= tiles.end || !dictionary.is_encoder_aligned()) return;
  prefetch_tile(dictionary, AllFeatures{}, tile, 0, batch.num_rows <= kRowsThatPrefetch ? 2 : 1);
}

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
    if (half_ == 0 && is_there) prefetch_form(first_feature_ + encode_lane());
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
  // What form_of() reads.
  __device__ void prefetch_form(int feature) const {
    if (encode_lane() >= EncodeTiles::kFeatures || feature >= num_features_) return;
    const tap::DictionaryHead& head = dictionary_.head();
    const int j = which_.at(feature);
    for (const int32_t begin : {head.scale, head.bias, head.gate, head.encoder_sum}) {
      prefetch_line(dictionary_.at(begin) + j);
    }
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
    const Form forms[2] = {form_of(first_feature_ + group_), form_of(first_feature_ + group_ + 8)};
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const float4 other = parts[n * 32];
      const int r = 8 * n + 2 * in_group_;
      const float first =
          fmaxf(store(forms[0], r, sums[n][0] + other.x), store(forms[1], r, sums[n][2] + other.z));
      const float second = fmaxf(store(forms[0], r + 1, sums[n][1] + other.y),
                                 store(forms[1], r + 1, sums[n][3] + other.w));
      if (p_.largest == nullptr) continue;
      store_largest(r, first);
      store_largest(r + 1, second);
    }
  }
  // Of the tile's features of a row; `own` is the largest of this lane's two.
  __device__ void store_largest(int r, float own) const {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      own = fmaxf(own, __shfl_xor_sync(kEncodeLanes, own, step));
    }
    if (group_ == 0 && r < batch_.num_rows) {
      __stcg(p_.largest + r * p_.feature_stride + tile_, own);
    }
  }

  // The activation of a feature.
  struct Form {
    int feature;
    float scale, bias, gate, weights;
  };
  __device__ Form form_of(int feature) const {
    const tap::DictionaryHead& head = dictionary_.head();
    const int j = which_.at(min(feature, num_features_ - 1));
    return {feature, dictionary_.at(head.scale)[j], dictionary_.at(head.bias)[j],
            dictionary_.at(head.gate)[j], dictionary_.at(head.encoder_sum)[j]};
  }
  // Returns the value; 0 where there is none.
  __device__ float store(const Form& form, int r, float sum) const {
    if (r >= batch_.num_rows || form.feature >= num_features_) return 0.0f;
    const EncodeScale& scale = batch_.scale[r];
    const float y = fmaf(-scale.mean, form.weights, sum) * scale.by;
    // A zero without a sign: values are compared by their bits.
    const float value = (y > form.gate ? fmaxf(fmaf(form.scale, y, form.bias), 0.0f) : 0.0f) + 0.0f;
    __stcg(p_.features + r * p_.feature_stride + form.feature, value);
    return value;
  }

  const EncodeParams& p_;
  const EncodeBatch& batch_;
  const EncodeDictionary& dictionary_;
  const Which which_;
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
__device__ void multiply_rows(const EncodeParams& p, const EncodeBatch& batch,
                              const EncodeDictionary& dictionary, Bf16* ring, const Which& which) {
  constexpr int kMost = kBatchRows / 8;
  if (!dictionary.is_encoder_aligned()) {
    multiply_tiles<kMost, kBf16, false>(p, batch, dictionary, ring, which);
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
