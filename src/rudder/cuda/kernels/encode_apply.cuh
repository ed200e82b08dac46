// What a run of kEncode makes of one row, given all its features: which of them are kept, decode(f)
// of the active ones, and what edits change. Included by .cu files only.
//
// A block has some slices of a row's columns. Blocks that share a row find out the same about it,
// each for itself, which costs less than one more wait of all blocks.
#pragma once

#include "rudder/cuda/kernels/encode_batch.cuh"
#include "rudder/cuda/kernels/select_largest.cuh"

namespace rudder::cuda {

struct ActiveFeature {
  int feature;
  float value;
};

struct EncodeApplyShared {
  static constexpr int kSlice = 32 * kRun;  // columns
  static constexpr int kListed = 2048;      // active features that are listed at a time

  float factor[tap::kMaxOpsPerPoint + 1];  // of the decoder row of an edit
  int above[kEncodeWarps];                 // of a warp's part of the features: values above `least`
  int equal[kEncodeWarps];                 // and those that equal it
  float skipped[kSlice];                   // of the columns at hand
  ActiveFeature listed[kListed];
  union {
    SelectShared select;
    float sums[kEncodeWarps][kSlice];
  };
};

class EncodeApply {
 public:
  // `memory` has the row, and behind it a copy of the row's features where they fit.
  __device__ EncodeApply(const EncodeParams& p, const EncodeBatch& batch,
                         const EncodeDictionary& dictionary, EncodeApplyShared& shared,
                         uint4* memory, size_t memory_bytes)
      : p_(p),
        batch_(batch),
        dictionary_(dictionary),
        head_(dictionary.head()),
        shared_(shared),
        row_(reinterpret_cast<Bf16*>(memory)),
        width_(static_cast<int>(p.width)) {
    const size_t row_bytes = (p.width + kRun - 1) / kRun * sizeof(uint4);
    values_ = reinterpret_cast<float*>(reinterpret_cast<char*>(memory) + row_bytes);
    fits_ = head_.num_features <= static_cast<int>((memory_bytes - row_bytes) / sizeof(float));
  }

  __device__ void run() {
    const int slices = (head_.d_out + kSlice - 1) / kSlice;
    const int parts = max(1, min(slices, p_.num_blocks / batch_.num_rows));
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x); i < batch_.num_rows * parts; i += p_.num_blocks) {
      take_row(i / parts);
      make_factors(i % parts == 0);
      if (is_full_) total_ = list_active(0);
      __syncthreads();
#pragma unroll 1
      for (int slice = i % parts; slice < slices; slice += parts) write_slice(slice * kSlice);
    }
  }

 private:
  static constexpr int kSlice = EncodeApplyShared::kSlice;
  static constexpr int kListed = EncodeApplyShared::kListed;
  static constexpr int kAtOnce = 8;  // decoder rows that are on the way together
  static_assert(kListed % (kEncodeWarps * kAtOnce) == 0 && kEncodeThreads >= kSlice);

  // The row as it was before the batch, its features, and which of them are kept.
  __device__ void take_row(int r) {
    r_ = r;
    ops_ = p_.table.ops + batch_.op[r];
    is_full_ = ops_->lo > 0.0f;
    const bool selects = head_.k > 0 && head_.k < head_.num_features;
    is_copied_ = fits_ && (is_full_ || selects);
    __syncthreads();  // the row before is no longer read
    const auto* const from = static_cast<const uint16_t*>(p_.before) + r * p_.width;
    auto* const to = reinterpret_cast<uint16_t*>(row_);
    copy_encoded_row(from, width_, [to](int column, auto bits) {
      *reinterpret_cast<decltype(bits)*>(to + column) = bits;
    });
    if (is_copied_) {
#pragma unroll 8
      for (int j = static_cast<int>(threadIdx.x); j < head_.num_features; j += kEncodeThreads) {
        values_[j] = __ldcg(features() + j);
      }
    }
    __syncthreads();
    kept_ = {};
    if (selects) {
      kept_ = find_largest<kEncodeThreads>([this](int j) { return bits_at(j); }, head_.num_features,
                                           head_.k, shared_.select);
    }
  }

  __device__ const float* features() const {
    return p_.features + r_ * p_.feature_stride;
  }
  __device__ float value_at(int j) const {
    return is_copied_ ? values_[j] : __ldcg(features() + j);
  }
  __device__ unsigned bits_at(int j) const {
    return __float_as_uint(value_at(j));
  }
  __device__ float element(int column) const {
    return __bfloat162float(row_[column]);
  }

  // By a warp, to all its lanes: the value of a feature; 0 where it is not kept.
  __device__ float kept_value(int feature) const {
    const unsigned bits = bits_at(feature);
    if (bits > kept_.least) return __uint_as_float(bits);
    if (bits < kept_.least || bits == 0) return 0.0f;
    unsigned before = 0;  // equal ones
    for (int j = encode_lane(); j < feature; j += 32) before += bits_at(j) == bits ? 1 : 0;
    return __reduce_add_sync(kEncodeLanes, before) < kept_.equal ? __uint_as_float(bits) : 0.0f;
  }

  // Of all edits; those that are written elsewhere go to their relays, by one of the row's blocks.
  __device__ void make_factors(bool leaves_relays) {
    const int64_t at = p_.batch.token[batch_.token[r_]];
    for (int i = 1 + encode_warp(); i < ops_->run; i += kEncodeWarps) {
      const float factor = factor_of(ops_[i]);
      if (encode_lane() != 0) continue;
      shared_.factor[i] = factor;
      if (head_.writes_elsewhere != 0 && leaves_relays) {
        __stcg(p_.table.relays + at * tap::kNumRelays + ops_[i].relay, factor);
      }
    }
  }

  // s g c (f' - f); by a warp, to all its lanes.
  __device__ float factor_of(const tap::TapOp& op) const {
    const int token = batch_.token[r_];
    const TokenTapState state{p_.batch.since_prompt + token, p_.batch.slot + token,
                              p_.table.latches};
    const float s = op.strength * scheduled(op.schedule, op, state);
    if (s == 0.0f) return 0.0f;
    const float f = kept_value(op.feature);
    if (op.hi > 0.0f && f <= 0.0f) return 0.0f;
    float dot = 0.0f;
    if (op.gate == tap::GateKind::kHard || op.gate == tap::GateKind::kSoft) {
      const float* const gate = p_.table.vectors + op.gate_vector;
      for (int c = encode_lane(); c < width_; c += 32) dot = fmaf(element(c), gate[c], dot);
      dot = warp_sum(dot);
    }
    const float g = opened(op.gate, op, dot, state);
    return g * s * batch_.scale[r_].back * (edited_feature(op.edit, f, op.value) - f);
  }

  // Lists the active features from the `base`-th on, in the order of their numbers; returns how
  // many there are in all.
  __device__ int list_active(int base) {
    const int part = (head_.num_features + kEncodeThreads - 1) / kEncodeThreads * 32;
    const int begin = encode_warp() * part;
    const int end = min(begin + part, head_.num_features);
    int above = 0;
    int equal = 0;
    for (int first = begin; first < end; first += 32) {
      const unsigned bits = bits_of_lane(first, end);
      above += __popc(__ballot_sync(kEncodeLanes, bits > kept_.least));
      equal += __popc(__ballot_sync(kEncodeLanes, is_least(bits)));
    }
    if (encode_lane() == 0) {
      shared_.above[encode_warp()] = above;
      shared_.equal[encode_warp()] = equal;
    }
    __syncthreads();
    int total = 0;
    int offset = 0;
    int equal_before = 0;
    int all_equal = 0;
    for (int w = 0; w < kEncodeWarps; ++w) {
      if (w == encode_warp()) {
        equal_before = all_equal;
        offset = total + min(all_equal, static_cast<int>(kept_.equal)) - base;
      }
      total += shared_.above[w];
      all_equal += shared_.equal[w];
    }
    const unsigned before = (1u << encode_lane()) - 1;  // lanes
    for (int first = begin; first < end; first += 32) {
      const unsigned bits = bits_of_lane(first, end);
      const unsigned equals = __ballot_sync(kEncodeLanes, is_least(bits));
      const int rank = equal_before + __popc(equals & before);
      const bool is_kept =
          bits > kept_.least || (is_least(bits) && rank < static_cast<int>(kept_.equal));
      const unsigned all = __ballot_sync(kEncodeLanes, is_kept);
      const int at = offset + __popc(all & before);
      if (is_kept && at >= 0 && at < kListed) {
        shared_.listed[at] = {first + encode_lane(), __uint_as_float(bits)};
      }
      offset += __popc(all);
      equal_before += __popc(equals);
    }
    return total + min(all_equal, static_cast<int>(kept_.equal));
  }
  __device__ unsigned bits_of_lane(int first, int end) const {
    const int j = first + encode_lane();
    return j < end ? bits_at(j) : 0;
  }
  __device__ bool is_least(unsigned bits) const {
    return bits != 0 && bits == kept_.least;
  }

  __device__ void write_slice(int begin) {
    if (is_full_) {
      if (dictionary_.is_decoder_aligned()) {
        add_active<true>(begin);
      } else {
        add_active<false>(begin);
      }
      if (head_.skip != 0) skip_row(begin);
    }
    __syncthreads();
    const int in_slice = static_cast<int>(threadIdx.x);
    const int column = begin + in_slice;
    if (in_slice < kSlice && column < head_.d_out) write(column, in_slice);
    __syncthreads();  // the next slice may come
  }

  __device__ void write(int column, int in_slice) const {
    const int64_t token = batch_.token[r_];
    if (head_.writes_elsewhere != 0) {
      if (!is_full_) return;
      p_.table.carried[p_.batch.token[token] * int64_t{head_.d_out} + column] =
          decoded(column, in_slice);
      return;
    }
    float h = is_full_ ? decoded(column, in_slice) : element(column);
#pragma unroll 1
    for (int first = 1; first < ops_->run; first += kAtOnce) {
      float factor[kAtOnce];
      float decoder[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        factor[i] = first + i < ops_->run ? shared_.factor[first + i] : 0.0f;
        decoder[i] =
            factor[i] != 0.0f ? dictionary_.decoder_at(ops_[first + i].feature, column) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (factor[i] != 0.0f) h = fmaf(factor[i], decoder[i], h);
      }
    }
    static_cast<Bf16*>(p_.x)[token * p_.width + column] = __float2bfloat16(h);
  }

  // sum_j f_j decoder_j of the columns from `begin`, a part for each warp. The list's entries go to
  // the warps in turn, however often it is made.
  template <bool kAligned>
  __device__ void add_active(int begin) {
    const int column = begin + encode_lane() * kRun;
    Floats sums = {};
    for (int base = 0; base < total_; base += kListed) {
      if (total_ > kListed) {
        __syncthreads();  // the part before has been read
        list_active(base);
        __syncthreads();
      }
      const int count = min(total_ - base, kListed);
#pragma unroll 1
      for (int first = encode_warp(); first < count; first += kEncodeWarps * kAtOnce) {
        float by[kAtOnce];
        Floats rows[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int at = first + i * kEncodeWarps;
          by[i] = 0.0f;
          rows[i] = {};
          if (at >= count) continue;
          const ActiveFeature active = shared_.listed[at];
          by[i] = active.value;
          rows[i] = dictionary_.decoder_run<kAligned>(active.feature, column);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int j = 0; j < kRun; ++j) sums.v[j] = fmaf(by[i], rows[i].v[j], sums.v[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      shared_.sums[encode_warp()][encode_lane() * kRun + j] = sums.v[j];
    }
  }

  // skip x of the columns from `begin`: a warp has one at a time.
  __device__ void skip_row(int begin) {
    for (int i = encode_warp(); i < min(kSlice, head_.d_out - begin); i += kEncodeWarps) {
      const float* const by = dictionary_.at(head_.skip) + int64_t{begin + i} * head_.d_in;
      float sum = 0.0f;
      for (int c = encode_lane(); c < head_.d_in; c += 32) sum = fmaf(element(c), by[c], sum);
      sum = warp_sum(sum);
      if (encode_lane() == 0) shared_.skipped[i] = sum;
    }
  }

  // decode(f) at a column of the slice that add_active() has summed.
  __device__ float decoded(int column, int in_slice) const {
    float sum = dictionary_.at(head_.output_bias)[column];
#pragma unroll
    for (int w = 0; w < kEncodeWarps; ++w) sum += shared_.sums[w][in_slice];
    const EncodeScale& scale = batch_.scale[r_];
    sum = fmaf(sum, scale.back, scale.mean);
    return head_.skip != 0 ? sum + shared_.skipped[in_slice] : sum;
  }

  const EncodeParams& p_;
  const EncodeBatch& batch_;
  const EncodeDictionary& dictionary_;
  const tap::DictionaryHead& head_;
  EncodeApplyShared& shared_;
  Bf16* const row_;  // [width]
  const int width_;
  float* values_ = nullptr;  // [num_features]
  bool fits_ = false;        // the features, into the memory of `values_`
  // Of the row at hand.
  int r_ = 0;  // of the batch
  const tap::TapOp* ops_ = nullptr;
  bool is_full_ = false;
  bool is_copied_ = false;
  Kept kept_;
  int total_ = 0;  // active features
};

}  // namespace rudder::cuda
