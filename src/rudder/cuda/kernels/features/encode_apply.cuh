// What a run of kEncode makes of one row, given all its features: which of them are kept, decode(f)
// of the active ones, and what edits change. Included by .cu files only.
//
// A block has some slices of a row's columns, next to each other. Blocks that share a row find out
// the same about it, each for itself, which costs less than one more wait of all blocks.
#pragma once

#include "rudder/cuda/kernels/features/choose_features.cuh"
#include "rudder/cuda/kernels/features/encode_batch.cuh"

namespace rudder::cuda {

struct alignas(16) EncodeApplyShared {
  static constexpr int kSlice = 32 * kRun;  // columns
  static constexpr int kListed = 2048;      // active features that are listed at a time

  float factor[tap::kMaxOpsPerPoint + 1];  // of the decoder row of an edit
  float skipped[kSlice];                   // of the columns at hand
  ActiveFeature listed[kListed];
  union {
    ChoiceShared choice;
    float sums[kEncodeWarps][kSlice];
  };
};

// The slices of a row are cut into parts, each for a block; blocks have the parts of all rows.
struct EncodeShares {
  static constexpr int kSlice = EncodeApplyShared::kSlice;
  int rows, slices, parts;

  __device__ EncodeShares(const EncodeParams& p, const EncodeBatch& batch,
                          const tap::DictionaryHead& head)
      : rows(batch.num_rows),
        slices((head.d_out + kSlice - 1) / kSlice),
        parts(max(1, min(slices, p.num_blocks / batch.num_rows))) {}

  __device__ int count() const { return rows * parts; }
  __device__ int first_slice(int part) const { return slices * part / parts; }
  __device__ int first_column(int part) const { return first_slice(part) * kSlice; }
};

class EncodeApply {
 public:
  // `row`: memory for one.
  __device__ EncodeApply(const EncodeParams& p, const EncodeBatch& batch,
                         const EncodeDictionary& dictionary, EncodeApplyShared& shared, Bf16* row)
      : p_(p),
        batch_(batch),
        dictionary_(dictionary),
        head_(dictionary.head()),
        shared_(shared),
        row_(row),
        width_(static_cast<int>(p.width)),
        shares_(p, batch, head_) {}

  __device__ void run() {
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x); i < shares_.count(); i += p_.num_blocks) {
      const int part = i % shares_.parts;
      const bool selects = head_.k > 0 && head_.k < head_.num_features;
      r_ = i / shares_.parts;
      ops_ = p_.table.ops + batch_.op[r_];
      run_ = batch_.run[r_];
      is_full_ = batch_.is_full[r_] != 0;
      const int64_t at = r_ * p_.feature_stride;
      const RowValues values(p_.features + at, p_.largest + at, head_.num_features);
      take_row(part);
      mark(EncodeMark::kTaken);
      FeatureChoice choice(values, shared_.choice);
      // A clamp of a dictionary that keeps all reads its features alone.
      if (is_full_ || selects) choice.choose(head_.k);
      mark(EncodeMark::kChosen);
      make_factors(choice, part == 0);
      if (is_full_) total_ = choice.list(0, kListed, shared_.listed);
      __syncthreads();
      if (is_full_) prefetch_listed(part);
      mark(EncodeMark::kListed);
#pragma unroll 1
      for (int slice = shares_.first_slice(part); slice < shares_.first_slice(part + 1); ++slice) {
        write_slice(slice * kSlice, choice);
      }
    }
  }

 private:
  static constexpr int kSlice = EncodeApplyShared::kSlice;
  static constexpr int kListed = EncodeApplyShared::kListed;
  static_assert(kEncodeThreads >= kSlice);

  __device__ void mark(EncodeMark what) const {
    mark_encode(p_, what);
  }

  // The row as it was before the batch; decoder rows of edits are asked for.
  __device__ void take_row(int part) {
    __syncthreads();  // the row before is no longer read
    const auto* const from = static_cast<const uint16_t*>(p_.before) + r_ * p_.width;
    auto* const to = reinterpret_cast<uint16_t*>(row_);
    copy_encoded_row(from, width_, [to](int column, auto bits) {
      *reinterpret_cast<decltype(bits)*>(to + column) = bits;
    });
    const int edit = 1 + static_cast<int>(threadIdx.x);
    if (edit < run_ && head_.writes_elsewhere == 0 && dictionary_.is_decoder_aligned()) {
      dictionary_.prefetch_decoder(ops_[edit].feature, shares_.first_column(part),
                                   shares_.first_column(part + 1));
    }
    __syncthreads();
  }
  // This block's part of the decoder rows that it will add up.
  __device__ void prefetch_listed(int part) const {
    if (!dictionary_.is_decoder_aligned()) return;
    for (int i = static_cast<int>(threadIdx.x); i < min(total_, kListed); i += kEncodeThreads) {
      dictionary_.prefetch_decoder(shared_.listed[i].feature, shares_.first_column(part),
                                   shares_.first_column(part + 1));
    }
  }

  __device__ float element(int column) const {
    return __bfloat162float(row_[column]);
  }

  // Of all edits; those that are written elsewhere go to their relays, by one of the row's blocks.
  __device__ void make_factors(const FeatureChoice& choice, bool leaves_relays) {
    for (int i = 1 + encode_warp(); i < run_; i += kEncodeWarps) {
      const float factor = factor_of(choice, ops_[i]);
      if (encode_lane() != 0) continue;
      shared_.factor[i] = factor;
      if (head_.writes_elsewhere != 0 && leaves_relays) {
        const int64_t at = p_.batch.token[batch_.token[r_]];
        __stcg(p_.table.relays + at * tap::kNumRelays + ops_[i].relay, factor);
      }
    }
  }

  // s g c (f' - f); by a warp, to all its lanes.
  __device__ float factor_of(const FeatureChoice& choice, const tap::TapOp& op) const {
    const int token = batch_.token[r_];
    const TokenTapState state{p_.batch.since_prompt + token, p_.batch.slot + token,
                              p_.table.latches};
    const float s = op.strength * scheduled(op.schedule, op, state);
    if (s == 0.0f) return 0.0f;
    const float f = choice.kept_value(op.feature);
    if (op.hi > 0.0f && f <= 0.0f) return 0.0f;
    float dot = 0.0f;
    if (op.gate == tap::GateKind::kHard || op.gate == tap::GateKind::kSoft) {
      const float* const gate = p_.table.vectors + op.gate_vector;
#pragma unroll 4
      for (int c = encode_lane(); c < width_; c += 32) dot = fmaf(element(c), gate[c], dot);
      dot = warp_sum(dot);
    }
    const float g = opened(op.gate, op, dot, state);
    return g * s * batch_.scale[r_].back * (edited_feature(op.edit, f, op.value) - f);
  }

  __device__ void write_slice(int begin, const FeatureChoice& choice) {
    if (is_full_) {
      add_active(begin, choice);
      if (head_.skip != 0) skip_row(begin);
    }
    __syncthreads();
    const int in_slice = static_cast<int>(threadIdx.x);
    const int column = begin + in_slice;
    if (in_slice < kSlice && column < head_.d_out) write(column, in_slice);
    __syncthreads();  // the next slice may come
  }

  __device__ void write(int column, int in_slice) const {
    constexpr int kAtOnce = 4;
    const int64_t token = batch_.token[r_];
    if (head_.writes_elsewhere != 0) {
      if (!is_full_) return;
      p_.table.carried[p_.batch.token[token] * int64_t{head_.d_out} + column] =
          decoded(column, in_slice);
      return;
    }
    float h = is_full_ ? decoded(column, in_slice) : element(column);
#pragma unroll 1
    for (int first = 1; first < run_; first += kAtOnce) {
      float factor[kAtOnce];
      float decoder[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        factor[i] = first + i < run_ ? shared_.factor[first + i] : 0.0f;
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
  __device__ void add_active(int begin, const FeatureChoice& choice) {
    const int column = begin + encode_lane() * kRun;
    Floats sums = {};
#pragma unroll 1
    for (int base = 0; base < total_; base += kListed) {
      if (total_ > kListed) {
        __syncthreads();  // the part before has been read
        choice.list(base, kListed, shared_.listed);
        __syncthreads();
      }
      const int count = min(total_ - base, kListed);
      if (dictionary_.is_decoder_aligned()) {
        add_listed<true, 8>(count, column, sums);
      } else {
        add_listed<false, 1>(count, column, sums);
      }
    }
    keep_sums(sums);
  }
  // kAtOnce: decoder rows that are on the way together.
  template <bool kAligned, int kAtOnce>
  __device__ void add_listed(int count, int column, Floats& sums) const {
    static_assert(kListed % (kEncodeWarps * kAtOnce) == 0);
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

  __device__ void keep_sums(const Floats& sums) {
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
#pragma unroll 4
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
  const EncodeShares shares_;
  // Of the row at hand.
  int r_ = 0;  // of the batch
  const tap::TapOp* ops_ = nullptr;
  int run_ = 0;
  bool is_full_ = false;
  int total_ = 0;  // active features
};

// Asks for what a block will read of its first row and no block writes.
__device__ inline void prefetch_apply(const EncodeParams& p, const EncodeBatch& batch,
                                      const EncodeDictionary& dictionary) {
  const tap::DictionaryHead& head = dictionary.head();
  const EncodeShares shares(p, batch, head);
  const int i = static_cast<int>(blockIdx.x);
  if (i >= shares.count()) return;
  const tap::TapOp* const ops = p.table.ops + batch.op[i / shares.parts];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread > 0 && thread < batch.run[i / shares.parts]) prefetch_line(ops + thread);
  const int part = i % shares.parts;
  const int column = shares.first_column(part) + thread * 32;  // a line has 32 of them
  if (column < shares.first_column(part + 1) && column < head.d_out) {
    prefetch_line(dictionary.at(head.output_bias) + column);
  }
}

// A call, as a product is. `memory` is shared, 16-byte aligned, for EncodeApplyShared and a row.
__device__ __noinline__ inline void apply_features(const EncodeParams& p, const EncodeBatch& batch,
                                                   const EncodeDictionary dictionary,
                                                   uint4* memory) {
  auto& shared = *reinterpret_cast<EncodeApplyShared*>(memory);
  auto* const row = reinterpret_cast<Bf16*>(memory + sizeof(shared) / sizeof(uint4));
  EncodeApply(p, batch, dictionary, shared, row).run();
}

}  // namespace rudder::cuda
