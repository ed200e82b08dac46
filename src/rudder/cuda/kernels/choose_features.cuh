// Which of a row's features are kept, and the list of them in the order of their numbers, by a
// block. Included by .cu files only.
//
// The k largest are found by a radix select: eleven bits of all values, which leaves few candidates
// (the values that have the k-th largest's first digits, or larger ones); they are listed, each
// warp's part apart, and what is behind reads the lists alone: ten bits of the candidates, ten
// more, and who is kept. Where nothing is selected, the candidates are the values above 0. A warp
// whose candidates do not fit sends the block back to the values themselves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/encode_batch.cuh"

namespace rudder::cuda {

// Of numbers that are not negative, as bits: those above `least` are kept, and the first `equal` of
// those that equal it. Zeros never are.
struct Kept {
  unsigned least = 0;
  unsigned equal = 0;
};

struct ActiveFeature {
  int feature;
  float value;
};

struct ChoiceShared {
  static constexpr int kBins = 2048;
  static constexpr int kCandidates = 128;  // of a warp

  unsigned counts[kBins];
  unsigned of_warp[kEncodeWarps];
  int above_of_warp[kEncodeWarps];  // kept because they are above `least`
  int equal_of_warp[kEncodeWarps];  // and those that equal it
  unsigned digit;  // of the k-th largest, at the bits at hand; kNoDigit: there are fewer values
  unsigned above;  // values whose digit is larger
  int num_candidates[kEncodeWarps];
  ActiveFeature candidates[kEncodeWarps][kCandidates];
};

// The features of a row, four at a time: in the device's memory, past L1, since other blocks may
// have written them, or copied to a block's shared memory.
class RowValues {
 public:
  // `copy` is 16-byte aligned shared memory, for copied_floats().
  __device__ RowValues(const float* from, int count, float* copy)
      : from_(from),
        copy_(copy),
        count_(count),
        is_aligned_(reinterpret_cast<uintptr_t>(from) % 16 == 0) {}

  // Floats of shared memory that a copy takes.
  __host__ __device__ static constexpr int64_t copied_floats(int64_t count) {
    return (count + 3) / 4 * 4;
  }

  // By all threads: it is there when they have called wait_for_copy().
  __device__ void start_copy() {
    is_copied_ = true;
    for (int i = static_cast<int>(threadIdx.x); i < num_quads(); i += kEncodeThreads) {
      if (is_aligned_ && 4 * i + 4 <= count_) {
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(copy_ + 4 * i)),
            "l"(from_ + 4 * i)
            : "memory");
      } else {
        *reinterpret_cast<uint4*>(copy_ + 4 * i) = load(i);
      }
    }
  }
  __device__ static void wait_for_copy() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
  }

  __device__ int count() const { return count_; }
  __device__ int num_quads() const { return (count_ + 3) / 4; }
  // The bits of the values from 4 i on; 0 behind the last.
  __device__ uint4 quad(int i) const {
    return is_copied_ ? *reinterpret_cast<const uint4*>(copy_ + 4 * i) : load(i);
  }
  __device__ unsigned bits_at(int j) const {
    return __float_as_uint(is_copied_ ? copy_[j] : __ldcg(from_ + j));
  }

 private:
  __device__ uint4 load(int i) const {
    if (is_aligned_ && 4 * i + 4 <= count_) {
      return __ldcg(reinterpret_cast<const uint4*>(from_ + 4 * i));
    }
    return load_some(from_ + 4 * i, count_ - 4 * i);
  }
  // A call, which is rare.
  __device__ __noinline__ static uint4 load_some(const float* from, int left) {
    const auto at = [=](int j) { return j < left ? __float_as_uint(__ldcg(from + j)) : 0u; };
    return make_uint4(at(0), at(1), at(2), at(3));
  }

  const float* from_;
  float* copy_;
  int count_;
  bool is_aligned_;
  bool is_copied_ = false;
};

// All threads of the block make the same calls.
class FeatureChoice {
 public:
  __device__ FeatureChoice(const RowValues& values, ChoiceShared& shared)
      : values_(values), shared_(shared) {}

  // The k largest; with k = 0 all that are above 0.
  __device__ void choose(int k) {
    kept_ = {};
    is_gathered_ = false;
    const bool selects = k > 0 && k < values_.count();
    if (!selects) return gather(1);
    kept_.equal = static_cast<unsigned>(k);
#pragma unroll 1
    for (int shift = kFirstShift; shift >= 0; shift -= 10) {
      if (!find_digit(shift)) {  // there are no more than k
        kept_ = {};
        return gather(1);
      }
      if (shift == kFirstShift) gather(max(kept_.least, 1u));
    }
  }

  // By a warp, to all its lanes: the value of a feature; 0 where it is not kept.
  __device__ float kept_value(int feature) const {
    const unsigned bits = values_.bits_at(feature);
    if (bits > kept_.least) return __uint_as_float(bits);
    if (bits < kept_.least || bits == 0) return 0.0f;
    unsigned before = 0;  // equal ones
    for (int j = encode_lane(); j < feature; j += 32) before += values_.bits_at(j) == bits ? 1 : 0;
    return __reduce_add_sync(kEncodeLanes, before) < kept_.equal ? __uint_as_float(bits) : 0.0f;
  }

  // Lists those that are kept, from the `base`-th on and up to `most` of them; returns how many
  // there are in all. The list is there behind the next barrier of the block.
  __device__ int list(int base, int most, ActiveFeature* listed) const {
    return list_kept(values_, shared_, kept_, is_gathered_, base, most, listed);
  }

 private:
  static constexpr int kFirstShift = 20;
  static constexpr unsigned kNoDigit = ChoiceShared::kBins;
  static constexpr int kOwnBins = ChoiceShared::kBins / kEncodeThreads;
  static_assert(kOwnBins * kEncodeThreads == ChoiceShared::kBins);

  // Counts the digits of the candidates, or of all values where these are not known.
  template <typename Add>
  __device__ void for_each(const Add& add) const {
    if (is_gathered_) {
      const int count = shared_.num_candidates[encode_warp()];
      for (int i = encode_lane(); i < count; i += 32) {
        add(__float_as_uint(shared_.candidates[encode_warp()][i].value));
      }
      return;
    }
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < values_.num_quads(); i += kEncodeThreads) {
      const uint4 quad = values_.quad(i);
      add(quad.x);
      add(quad.y);
      add(quad.z);
      add(quad.w);
    }
  }

  // The next digit of the kept_.equal-th largest of the values that have the digits before: eleven
  // bits (the sign is 0), then twice ten. False: there are fewer.
  __device__ bool find_digit(int shift) {
    const int bins = shift == kFirstShift ? ChoiceShared::kBins : ChoiceShared::kBins / 2;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < bins; i += kEncodeThreads) {
      shared_.counts[i] = 0;
    }
    if (threadIdx.x == 0) shared_.digit = kNoDigit;
    __syncthreads();
    const unsigned known = kept_.least >> shift >> 10;
    const unsigned mask = static_cast<unsigned>(bins) - 1;
    for_each([&](unsigned bits) {
      const bool is_open = shift == kFirstShift || bits >> shift >> 10 == known;
      if (bits != 0 && is_open) atomicAdd(&shared_.counts[bits >> shift & mask], 1u);
    });
    __syncthreads();
    take_digit(kept_.equal, bins);
    __syncthreads();
    if (shared_.digit == kNoDigit) return false;
    kept_.least |= shared_.digit << shift;
    kept_.equal -= shared_.above;
    return true;
  }

  // The digit that the `wanted`-th largest value has: a thread has some digits next to each other,
  // the first thread the largest.
  __device__ void take_digit(unsigned wanted, int bins) {
    const int largest =
        bins - 1 - static_cast<int>(threadIdx.x) * kOwnBins;  // below 0: it has none
    unsigned own = 0;
#pragma unroll
    for (int i = 0; i < kOwnBins; ++i) own += largest >= i ? shared_.counts[largest - i] : 0;
    unsigned above = own;  // and those of the lanes before
    for (unsigned step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(kEncodeLanes, above, step);
      if (threadIdx.x % 32 >= step) above += other;
    }
    if (encode_lane() == 31) shared_.of_warp[encode_warp()] = above;
    __syncthreads();
    above -= own;
#pragma unroll
    for (int w = 0; w < kEncodeWarps; ++w) above += w < encode_warp() ? shared_.of_warp[w] : 0;
    if (above >= wanted || above + own < wanted) return;
    int digit = largest;
    while (above + shared_.counts[digit] < wanted) above += shared_.counts[digit--];
    shared_.digit = static_cast<unsigned>(digit);
    shared_.above = above;
  }

  // The features whose bits are `floor` at least, a part of them for each warp, in their order.
  __device__ void gather(unsigned floor) {
    const int part = (values_.num_quads() + kEncodeWarps - 1) / kEncodeWarps;
    const int begin = encode_warp() * part;
    const int end = min(begin + part, values_.num_quads());
    const unsigned before = (1u << encode_lane()) - 1;  // lanes
    ActiveFeature* const own = shared_.candidates[encode_warp()];
    int count = 0;
#pragma unroll 4
    for (int first = begin; first < end; first += 32) {
      const int i = first + encode_lane();
      const uint4 quad = i < end ? values_.quad(i) : make_uint4(0, 0, 0, 0);
      const unsigned bits[4] = {quad.x, quad.y, quad.z, quad.w};
      unsigned is_in[4];
      int at = count;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        is_in[e] = __ballot_sync(kEncodeLanes, bits[e] >= floor);
        at += __popc(is_in[e] & before);
        count += __popc(is_in[e]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (bits[e] < floor) continue;
        if (at < ChoiceShared::kCandidates) own[at] = {4 * i + e, __uint_as_float(bits[e])};
        ++at;
      }
    }
    if (encode_lane() == 0) shared_.num_candidates[encode_warp()] = count;
    is_gathered_ = __syncthreads_or(count > ChoiceShared::kCandidates ? 1 : 0) == 0;
  }

  // A call: rows with many active features make it again and again.
  __device__ __noinline__ static int list_kept(const RowValues values, ChoiceShared& shared,
                                               const Kept kept, bool is_gathered, int base,
                                               int most, ActiveFeature* listed) {
    if (is_gathered) {
      const ActiveFeature* const own = shared.candidates[encode_warp()];
      const int count = shared.num_candidates[encode_warp()];
      const auto at = [=](int i) { return i < count ? own[i] : ActiveFeature{0, 0.0f}; };
      return list_part(0, count, at, shared, kept, base, most, listed);
    }
    const int part = (values.count() + kEncodeThreads - 1) / kEncodeThreads * 32;
    const int begin = encode_warp() * part;
    const int end = min(begin + part, values.count());
    const auto at = [&](int j) {
      return ActiveFeature{j, j < end ? __uint_as_float(values.bits_at(j)) : 0.0f};
    };
    return list_part(begin, end, at, shared, kept, base, most, listed);
  }

  // at(i): a feature and its value, in the order of the features; those of this warp have i from
  // `begin` to `end`, what is behind has the value 0.
  template <typename At>
  __device__ static int list_part(int begin, int end, const At& at, ChoiceShared& shared,
                                  const Kept& kept, int base, int most, ActiveFeature* listed) {
    const auto is_least = [&](unsigned bits) { return bits != 0 && bits == kept.least; };
    int above = 0;
    int equal = 0;
#pragma unroll 2
    for (int first = begin; first < end; first += 32) {
      const unsigned bits = __float_as_uint(at(first + encode_lane()).value);
      above += __popc(__ballot_sync(kEncodeLanes, bits > kept.least));
      equal += __popc(__ballot_sync(kEncodeLanes, is_least(bits)));
    }
    if (encode_lane() == 0) {
      shared.above_of_warp[encode_warp()] = above;
      shared.equal_of_warp[encode_warp()] = equal;
    }
    __syncthreads();
    int total = 0;
    int offset = -base;
    int equal_before = 0;
    int all_equal = 0;
    const int most_equal = static_cast<int>(kept.equal);
#pragma unroll
    for (int w = 0; w < kEncodeWarps; ++w) {
      if (w == encode_warp()) {
        equal_before = all_equal;
        offset += total + min(all_equal, most_equal);
      }
      total += shared.above_of_warp[w];
      all_equal += shared.equal_of_warp[w];
    }
    const unsigned before = (1u << encode_lane()) - 1;  // lanes
#pragma unroll 1
    for (int first = begin; first < end; first += 32) {
      const ActiveFeature one = at(first + encode_lane());
      const unsigned bits = __float_as_uint(one.value);
      const unsigned equals = __ballot_sync(kEncodeLanes, is_least(bits));
      const int rank = equal_before + __popc(equals & before);
      const bool is_kept = bits > kept.least || (is_least(bits) && rank < most_equal);
      const unsigned all = __ballot_sync(kEncodeLanes, is_kept);
      const int index = offset + __popc(all & before);
      if (is_kept && index >= 0 && index < most) listed[index] = one;
      offset += __popc(all);
      equal_before += __popc(equals);
    }
    return total + min(all_equal, most_equal);
  }

  const RowValues& values_;
  ChoiceShared& shared_;
  Kept kept_;
  bool is_gathered_ = false;  // the candidates are all that can be kept
};

}  // namespace rudder::cuda
