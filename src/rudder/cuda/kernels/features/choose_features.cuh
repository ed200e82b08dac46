// Which of a row's features are kept, and the list of them in the order of their numbers, by a
// block. Included by .cu files only.
//
// The product leaves the largest of each tile of features. The k-th largest of these is no larger
// than the k-th largest feature, so only tiles that reach it can have one that is kept: their
// features are the candidates, a list for each warp. All threads count, bit by bit, how many tiles
// reach a value, and find the first eleven bits of what the tiles have k-th. That leaves few
// candidates; each of them is compared with all others, which says whether it is kept. Where they
// are many, or tiles are, a radix select finds the bits, eleven and twice ten. Where nothing is
// selected, the candidates are the features above 0. Where a warp's candidates do not fit, all
// features are read instead. Every loop has little code, since little of it is in the caches from
// one encode to the next.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/features/encode_batch.cuh"

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

  static constexpr int kOwnTiles = 8;  // of a lane
  static constexpr int kRanked = 512;  // candidates

  union {
    unsigned counts[kBins];
    struct {
      int reaching[2][kEncodeWarps];           // tiles of a warp that reach a value
      unsigned open[kEncodeWarps][kOwnTiles];  // its tiles that have candidates, a bit each
      ActiveFeature ranked[kRanked];           // all candidates, in their order
      bool is_kept[kRanked];
    };
  };
  unsigned of_warp[kEncodeWarps];
  int above_of_warp[kEncodeWarps];  // kept because they are above `least`
  int equal_of_warp[kEncodeWarps];  // and those that equal it
  unsigned digit;  // of the k-th largest, at the bits at hand; kNoDigit: there are fewer values
  unsigned above;  // values whose digit is larger
  int num_candidates[kEncodeWarps];
  ActiveFeature candidates[kEncodeWarps][kCandidates];
};

// The features of a row and the largest of each tile of them, in the device's memory: past L1,
// since other blocks may have written them.
class RowValues {
 public:
  __device__ RowValues(const float* from, const float* largest, int count)
      : from_(from), largest_(largest), count_(count) {}

  __device__ int count() const { return count_; }
  __device__ int num_tiles() const { return (count_ + tap::kFeatureTile - 1) / tap::kFeatureTile; }
  // Their bits; 0 behind the last.
  __device__ unsigned bits_at(int j) const {
    return j < count_ ? __float_as_uint(__ldcg(from_ + j)) : 0u;
  }
  __device__ unsigned largest_bits(int tile) const {
    return tile < num_tiles() ? __float_as_uint(__ldcg(largest_ + tile)) : 0u;
  }

 private:
  const float* from_;
  const float* largest_;
  int count_;
};

// All threads of the block make the same calls.
class FeatureChoice {
 public:
  __device__ FeatureChoice(const RowValues& values, ChoiceShared& shared)
      : values_(values), shared_(shared) {}

  // The k largest; with k = 0 all that are above 0.
  __device__ void choose(int k) {
    const bool selects = k > 0 && k < values_.count();
    kept_ = {};
    num_ranked_ = 0;
    if (selects && values_.num_tiles() <= ChoiceShared::kOwnTiles * kEncodeThreads) {
      const unsigned floor = open_tiles(k);
      gather(floor, [this](int i, int /*tile*/) { return shared_.open[encode_warp()][i]; });
      if (rank(k)) return;
    } else {
      kept_.equal = static_cast<unsigned>(k);
      source_ = Source::kTiles;
      if (!selects || !find_digit(kFirstShift)) kept_.least = 0;
      const unsigned floor = max(kept_.least, 1u);
      gather(floor, [this, floor](int /*i*/, int tile) {
        return __ballot_sync(kEncodeLanes, values_.largest_bits(tile) >= floor);
      });
      kept_ = {};
      if (!selects) return;
    }
    kept_.equal = static_cast<unsigned>(k);
#pragma unroll 1
    for (int shift = kFirstShift; shift >= 0; shift -= 10) {
      if (find_digit(shift)) continue;
      kept_ = {};  // there are no more than k
      return;
    }
  }

  // By a warp, to all its lanes: the value of a feature; 0 where it is not kept.
  __device__ float kept_value(int feature) const {
    if (num_ranked_ > 0) return ranked_value(feature);
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
    if (num_ranked_ > 0) return list_ranked(base, most, listed);
    return list_kept(values_, shared_, kept_, source_, base, most, listed);
  }

 private:
  static constexpr int kFirstShift = 20;
  static constexpr unsigned kNoDigit = ChoiceShared::kBins;
  static constexpr int kShares = 4;  // threads that compare one candidate with the others
  static constexpr int kOwnBins = ChoiceShared::kBins / kEncodeThreads;
  static_assert(kOwnBins * kEncodeThreads == ChoiceShared::kBins);

  enum class Source { kTiles, kCandidates, kAll };

  template <typename Add>
  __device__ void for_each(const Add& add) const {
    if (source_ == Source::kCandidates) {
      const int count = shared_.num_candidates[encode_warp()];
      for (int i = encode_lane(); i < count; i += 32) {
        add(__float_as_uint(shared_.candidates[encode_warp()][i].value));
      }
      return;
    }
    const bool is_tiles = source_ == Source::kTiles;
    const int count = is_tiles ? values_.num_tiles() : values_.count();
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kEncodeThreads) {
      add(is_tiles ? values_.largest_bits(i) : values_.bits_at(i));
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

  // A warp's part of the tiles.
  __device__ int tiles_of_warp() const {
    return (values_.num_tiles() + kEncodeWarps - 1) / kEncodeWarps;
  }

  // Finds the tiles that may have one of the k largest, and a bound of these, which is above 0.
  __device__ unsigned open_tiles(int k) {
    constexpr int kOwn = ChoiceShared::kOwnTiles;
    const int begin = encode_warp() * tiles_of_warp();
    const int end = min(begin + tiles_of_warp(), values_.num_tiles());
    unsigned largest[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int tile = begin + 32 * i + encode_lane();
      largest[i] = tile < end ? values_.largest_bits(tile) : 0u;
    }
    __syncthreads();  // what was found before has been read
    unsigned floor = 0;
#pragma unroll 1
    for (int bit = 30; bit >= kFirstShift; --bit) {
      const unsigned asked = floor | 1u << bit;
      int own = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) own += largest[i] >= asked ? 1 : 0;
      own = __reduce_add_sync(kEncodeLanes, own);
      int(&reaching)[kEncodeWarps] = shared_.reaching[bit & 1];
      if (encode_lane() == 0) reaching[encode_warp()] = own;
      __syncthreads();
      const int of_warp = encode_lane() < kEncodeWarps ? reaching[encode_lane()] : 0;
      if (__reduce_add_sync(kEncodeLanes, of_warp) >= k) floor = asked;
    }
    floor = max(floor, 1u);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const unsigned open = __ballot_sync(kEncodeLanes, largest[i] >= floor);
      if (encode_lane() == 0) shared_.open[encode_warp()][i] = open;
    }
    __syncwarp();
    return floor;
  }

  // The features whose bits are `floor` at least, a part of them for each warp, in their order. Two
  // tiles make a warp's load. open_of(i, tile): a bit for each of 32 tiles of the warp, the i-th
  // time, of which this lane has `tile`.
  template <typename Open>
  __device__ void gather(unsigned floor, const Open& open_of) {
    constexpr int kAtOnce = 4;
    static_assert(2 * tap::kFeatureTile == 32);
    const int begin = encode_warp() * tiles_of_warp();
    const int end = min(begin + tiles_of_warp(), values_.num_tiles());
    const unsigned before = (1u << encode_lane()) - 1;  // lanes
    ActiveFeature* const own = shared_.candidates[encode_warp()];
    int count = 0;
    int i = 0;
#pragma unroll 1
    for (int first = begin; first < end; first += 32) {
      const int tile = first + encode_lane();
      unsigned open = open_of(i++, tile < end ? tile : values_.num_tiles());
      const auto next = [&] {
        const int lane = __ffs(static_cast<int>(open)) - 1;
        open &= open - 1;
        return lane < 0 ? values_.num_tiles() : first + lane;
      };
#pragma unroll 1
      while (open != 0) {
        ActiveFeature found[kAtOnce];
#pragma unroll
        for (ActiveFeature& one : found) {
          const int low = next();
          const int high = next();
          one.feature = (encode_lane() < tap::kFeatureTile ? low : high) * tap::kFeatureTile +
                        encode_lane() % tap::kFeatureTile;
          one.value = __uint_as_float(values_.bits_at(one.feature));
        }
#pragma unroll
        for (const ActiveFeature& one : found) {
          const bool is_in = __float_as_uint(one.value) >= floor;
          const unsigned all = __ballot_sync(kEncodeLanes, is_in);
          const int at = count + __popc(all & before);
          if (is_in && at < ChoiceShared::kCandidates) own[at] = one;
          count += __popc(all);
        }
      }
    }
    if (encode_lane() == 0) shared_.num_candidates[encode_warp()] = count;
    const bool fit = __syncthreads_or(count > ChoiceShared::kCandidates ? 1 : 0) == 0;
    source_ = fit ? Source::kCandidates : Source::kAll;
  }

  // Which candidates are among the k largest. False: they are too many for that.
  __device__ bool rank(int k) {
    if (source_ != Source::kCandidates) return false;
    const auto [before, total] = candidates_before();
    if (total > ChoiceShared::kRanked) return false;
    const ActiveFeature* const own = shared_.candidates[encode_warp()];
    const int count = shared_.num_candidates[encode_warp()];
    for (int i = encode_lane(); i < count; i += 32) shared_.ranked[before + i] = own[i];
    __syncthreads();
    const auto bits_of = [this](int i) { return __float_as_uint(shared_.ranked[i].value); };
    const int part = static_cast<int>(threadIdx.x) % kShares;
#pragma unroll 1
    for (int first = 0; first < total; first += kEncodeThreads / kShares) {
      const int i = first + static_cast<int>(threadIdx.x) / kShares;
      const unsigned bits = bits_of(min(i, total - 1));
      int larger = 0;
#pragma unroll 4
      for (int j = part; j < total; j += kShares) {
        const unsigned other = bits_of(j);
        larger += other > bits || (other == bits && j < i) ? 1 : 0;
      }
#pragma unroll
      for (int step = 1; step < kShares; step *= 2) {
        larger += __shfl_xor_sync(kEncodeLanes, larger, step);
      }
      if (part == 0 && i < total) shared_.is_kept[i] = larger < k;
    }
    __syncthreads();
    num_ranked_ = total;
    return true;
  }
  struct Sums {
    int before, total;
  };
  // Of the candidates: those of the warps before, and of all.
  __device__ Sums candidates_before() const {
    Sums sums = {};
#pragma unroll
    for (int w = 0; w < kEncodeWarps; ++w) {
      const int count = shared_.num_candidates[w];
      sums.before += w < encode_warp() ? count : 0;
      sums.total += count;
    }
    return sums;
  }

  __device__ float ranked_value(int feature) const {
    unsigned bits = 0;
    for (int i = encode_lane(); i < num_ranked_; i += 32) {
      const ActiveFeature one = shared_.ranked[i];
      if (one.feature == feature && shared_.is_kept[i]) bits = __float_as_uint(one.value);
    }
    return __uint_as_float(__reduce_max_sync(kEncodeLanes, bits));
  }

  __device__ int list_ranked(int base, int most, ActiveFeature* listed) const {
    static_assert(ChoiceShared::kRanked <= kEncodeThreads);
    const int i = static_cast<int>(threadIdx.x);
    const bool is_kept = i < num_ranked_ && shared_.is_kept[i];
    const unsigned all = __ballot_sync(kEncodeLanes, is_kept);
    if (encode_lane() == 0) shared_.above_of_warp[encode_warp()] = __popc(all);
    __syncthreads();
    int index = __popc(all & ((1u << encode_lane()) - 1)) - base;
    int total = 0;
#pragma unroll
    for (int w = 0; w < kEncodeWarps; ++w) {
      index += w < encode_warp() ? shared_.above_of_warp[w] : 0;
      total += shared_.above_of_warp[w];
    }
    if (is_kept && index >= 0 && index < most) listed[index] = shared_.ranked[i];
    return total;
  }

  // A call: rows with many active features make it again and again.
  __device__ __noinline__ static int list_kept(const RowValues values, ChoiceShared& shared,
                                               const Kept kept, Source source, int base, int most,
                                               ActiveFeature* listed) {
    if (source == Source::kCandidates) {
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
  Source source_ = Source::kAll;  // of digits
  int num_ranked_ = 0;            // 0: kept_ says which are kept
};

}  // namespace rudder::cuda
