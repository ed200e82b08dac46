// What the products of an encode share: tiles of features, how an encoder's numbers come, and what
// becomes of a tile's sums. Included by .cu files only.
//
// A block has a run of tiles of 16 features, up to eight at a time. Two warps share a tile and take
// turns along the rows, 32 columns at a time: an encoder's number is read by one lane of the
// device, straight to a register (it is the A operand), several chunks ahead.
//
// The tensor core's k index is only a name: lane t of a group holds columns [8 t, 8 t + 8) of 32,
// of an encoder row and of a token alike, and each half of them is one k step.
//
// A sum's order is: products of a slab in the tensor core, slabs in fp32, the two warps' parts. It
// does not depend on the number of rows. Encoders of f32 are split into three bf16 each, whose sum
// is the number: products are exact in both cases.
#pragma once

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/features/encode_batch.cuh"

namespace rudder::cuda {

inline constexpr int kEncodeSlab = 256;  // columns

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
  const int begin = first_slab * kEncodeSlab;
  const int columns = min(num_slabs * kEncodeSlab, head.d_in - begin);
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

// What becomes of a tile's sums: activations, and the largest of a row's.
template <typename Which>
class EncodeResults {
 public:
  __device__ EncodeResults(const EncodeParams& p, const EncodeBatch& batch,
                           const EncodeDictionary& dictionary, const Which& which)
      : p_(p),
        batch_(batch),
        dictionary_(dictionary),
        which_(which),
        num_features_(which.count(dictionary.head())) {}

  // Asks for what store_tile() reads; by a warp.
  __device__ void prefetch(int tile) const {
    const int feature = tile * EncodeTiles::kFeatures + encode_lane();
    if (encode_lane() >= EncodeTiles::kFeatures || feature >= num_features_) return;
    const tap::DictionaryHead& head = dictionary_.head();
    const int j = which_.at(feature);
    for (const int32_t begin : {head.scale, head.bias, head.gate, head.encoder_sum}) {
      prefetch_line(dictionary_.at(begin) + j);
    }
  }

  // By the tile's first warp; other(n) is the part of the second in the sums of row tile n.
  template <int kRowTiles, typename Other>
  __device__ void store_tile(int tile, const float (&sums)[kRowTiles][4],
                             const Other& other) const {
    const int feature = tile * EncodeTiles::kFeatures + encode_lane() / 4;
    const Form forms[2] = {form_of(feature), form_of(feature + 8)};
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const float4 part = other(n);
      const int r = 8 * n + 2 * (encode_lane() % 4);
      const float first =
          fmaxf(store(forms[0], r, sums[n][0] + part.x), store(forms[1], r, sums[n][2] + part.z));
      const float second = fmaxf(store(forms[0], r + 1, sums[n][1] + part.y),
                                 store(forms[1], r + 1, sums[n][3] + part.w));
      if (p_.largest == nullptr) continue;
      store_largest(tile, r, first);
      store_largest(tile, r + 1, second);
    }
  }

 private:
  // Of the tile's features of a row; `own` is the largest of this lane's two.
  __device__ void store_largest(int tile, int r, float own) const {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      own = fmaxf(own, __shfl_xor_sync(kEncodeLanes, own, step));
    }
    if (encode_lane() / 4 == 0 && r < batch_.num_rows) {
      __stcg(p_.largest + r * p_.feature_stride + tile, own);
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
};

}  // namespace rudder::cuda
