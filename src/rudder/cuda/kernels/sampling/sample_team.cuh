// What the sampling kernels share: the cluster of blocks that works on one row, its exchanges, the
// order of tokens, exp as the CPU computes it. Included by sample*.cu files only.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "rudder/cuda/kernels/sampling/sample.h"

namespace rudder::cuda {

inline constexpr int kCluster = 8;  // blocks a row
inline constexpr int kSampleThreads = 512;
inline constexpr int kSampleWarps = kSampleThreads / 32;
inline constexpr int kTeamWarps = kCluster * kSampleWarps;
inline constexpr int kChunk = 128;  // tokens that a warp reads at a time

inline constexpr float kLargest = 3.402823466e38f;

// Tokens that one block has of a row, in chunks that its warps share out in runs: the order of
// tokens is that of blocks, warps, chunks, lanes.
struct Slice {
  int begin = 0;        // first token
  int count = 0;        // tokens; 0 past the end of a small vocabulary
  int first_chunk = 0;  // of this warp
  int end_chunk = 0;
};

// Tokens of a block, before the end of the vocabulary is taken into account.
__host__ __device__ constexpr int64_t slice_width(int64_t vocab) {
  return (vocab + kCluster * kChunk - 1) / (kCluster * kChunk) * kChunk;
}

__device__ inline Slice slice_of(int64_t vocab, int rank, int warp) {
  const int width = static_cast<int>(slice_width(vocab));
  Slice slice;
  slice.begin = min(rank * width, static_cast<int>(vocab));
  slice.count = min(width, static_cast<int>(vocab) - slice.begin);
  const int chunks = (slice.count + kChunk - 1) / kChunk;
  const int per_warp = (chunks + kSampleWarps - 1) / kSampleWarps;
  slice.first_chunk = min(warp * per_warp, chunks);
  slice.end_chunk = min(slice.first_chunk + per_warp, chunks);
  return slice;
}

// An ordinal in the order of tokens: larger = more likely, equal values by the lower id first. The
// upper bits order values (NaN of the sign below -Inf), the lower 20 hold the id counted down.
using Ordinal = uint64_t;
inline constexpr int kIdBits = 20;
inline constexpr uint32_t kIdMask = (1u << kIdBits) - 1;
static_assert(kMaxSampleVocab <= kIdMask, "ids fit");

__device__ inline uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ inline float value_of_key(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}
__device__ inline Ordinal first_ordinal(uint32_t key) {  // the lowest of a value
  return uint64_t{key} << kIdBits;
}
__device__ inline Ordinal ordinal_of(uint32_t key, int token) {
  return first_ordinal(key) | (kIdMask - static_cast<uint32_t>(token));
}
__device__ inline uint32_t key_of_ordinal(Ordinal ordinal) {
  return static_cast<uint32_t>(ordinal >> kIdBits);
}
__device__ inline int token_of_ordinal(Ordinal ordinal) {
  return static_cast<int>(kIdMask - (static_cast<uint32_t>(ordinal) & kIdMask));
}
inline constexpr Ordinal kNoOrdinal = 0;             // of a slice without anything above -Inf
inline constexpr Ordinal kBadOrdinal = ~0ull;        // of a NaN or +Inf, above all
inline constexpr uint32_t kLowestKey = 0x007fffffu;  // key_of(-Inf)

// Comes after every number, before none: fills a slice's last chunk.
__device__ inline float filler() {
  return __uint_as_float(0xffc00000u);
}

// e^x for x <= 0 with the bits of exp_of in src/rudder/cpu/sample_kernels.cpp: nothing is fused.
__device__ inline float exp_of(float x) {
  constexpr float kLowest = -87.0f;
  constexpr float kRound = 12582912.0f;
  const float clamped = x > kLowest ? x : kLowest;
  const float shifted = __fadd_rn(__fmul_rn(clamped, 1.44269504f), kRound);
  const float n = __fsub_rn(shifted, kRound);
  const float r =
      __fadd_rn(__fsub_rn(clamped, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, 2.12194440e-4f));
  float p = __fadd_rn(__fmul_rn(r, 1.9875691500e-4f), 1.3981999507e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
  p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
  p = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.0f);
  const uint32_t exponent = (__float_as_uint(shifted) << 23) + (127u << 23);
  p = __fmul_rn(p, __uint_as_float(exponent));
  return x > kLowest ? p : 0.0f;
}
__device__ inline float weight_of(float x, float max, float scale) {
  return exp_of(__fmul_rn(__fsub_rn(x, max), scale));
}

// Of each warp of the cluster, in the order of tokens: lane l has those of warps 4 l to 4 l + 3.
struct OfWarps {
  uint64_t v[4];
};

// One thread's view of the blocks that work on its row.
class Team {
 public:
  // `slots` [2][kSampleWarps] in shared memory.
  __device__ explicit Team(uint64_t (*slots)[kSampleWarps])
      : cluster_(cooperative_groups::this_cluster()), slots_(slots) {}

  __device__ int rank() const { return static_cast<int>(cluster_.block_rank()); }
  __device__ bool is_leader() const { return rank() == 0; }
  __device__ int warp() const { return static_cast<int>(threadIdx.x) / 32; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  __device__ void sync() { cluster_.sync(); }
  template <typename T>
  __device__ T* of_block(T* shared, int rank) {
    return cluster_.map_shared_rank(shared, static_cast<unsigned>(rank));
  }

  // A barrier of the cluster, and every warp's word to every warp. Two sets of slots in turn: who
  // writes a set again has passed the barrier that all others reach after they read it.
  __device__ OfWarps exchange(uint64_t of_this_warp) {
    uint64_t* const slots = slots_[turn_];
    turn_ ^= 1;
    if (lane() == 0) slots[warp()] = of_this_warp;
    cluster_.sync();
    const uint64_t* from = of_block(slots, lane() * 4 / kSampleWarps);
    OfWarps all;
#pragma unroll
    for (int i = 0; i < 4; ++i) all.v[i] = from[lane() * 4 % kSampleWarps + i];
    return all;
  }

  // Sum over all threads of the cluster, the same bits in each.
  __device__ double sum(double of_this_thread) {
    const OfWarps all = exchange(bits_of(warp_sum_of(of_this_thread)));
    double sum = 0;
#pragma unroll
    for (const uint64_t bits : all.v) sum += double_of(bits);
    return warp_sum_of(sum);
  }

  __device__ static double warp_sum_of(double v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
  }
  __device__ static uint64_t warp_max_of(uint64_t v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const uint64_t other = __shfl_xor_sync(0xffffffffu, v, step);
      v = v > other ? v : other;
    }
    return v;
  }
  // Sum over this lane and those before it.
  __device__ double inclusive_sum(double v) const {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const double other = __shfl_up_sync(0xffffffffu, v, step);
      if (lane() >= step) v += other;
    }
    return v;
  }
  __device__ static uint64_t bits_of(double v) {
    return static_cast<uint64_t>(__double_as_longlong(v));
  }
  __device__ static double double_of(uint64_t bits) {
    return __longlong_as_double(static_cast<long long>(bits));
  }

 private:
  cooperative_groups::cluster_group cluster_;
  uint64_t (*slots_)[kSampleWarps];
  int turn_ = 0;
};

// Four tokens of a lane: the largest so far of this thread, the first among equals.
struct Highest {
  float value = -__builtin_huge_valf();
  int token = 0;

  __device__ void see(const float4& x, int first_token) {
    const float highest = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
    if (highest > value) {
      value = highest;
      token = first_token + (x.x == highest ? 0 : x.y == highest ? 1 : x.z == highest ? 2 : 3);
    }
  }
  __device__ Ordinal ordinal() const {
    return value > -__builtin_huge_valf() ? ordinal_of(key_of(value), token) : kNoOrdinal;
  }
};

__device__ inline bool is_bad(const float4& x) {
  return !(x.x <= kLargest) | !(x.y <= kLargest) | !(x.z <= kLargest) | !(x.w <= kLargest);
}

// Tokens [i, i + 4) of a slice as they lie in memory, -0 as +0 so that they are equal in bits too;
// past the end the filler.
__device__ inline float4 load_four(const float* slice, int i, int count, bool aligned) {
  float4 x = make_float4(filler(), filler(), filler(), filler());
  if (aligned) {
    if (i >= count) return x;
    x = __ldcs(reinterpret_cast<const float4*>(slice + i));
    return make_float4(__fadd_rn(x.x, 0.0f), __fadd_rn(x.y, 0.0f), __fadd_rn(x.z, 0.0f),
                       __fadd_rn(x.w, 0.0f));
  }
  if (i < count) x.x = __fadd_rn(slice[i], 0.0f);
  if (i + 1 < count) x.y = __fadd_rn(slice[i + 1], 0.0f);
  if (i + 2 < count) x.z = __fadd_rn(slice[i + 2], 0.0f);
  if (i + 3 < count) x.w = __fadd_rn(slice[i + 3], 0.0f);
  return x;
}

// Which tokens of a slice may come, by the mask of its row. Slices begin at whole words.
struct SliceMask {
  const uint32_t* words;
  int count;

  // The bits of tokens [i, i + 4), lowest first, i a multiple of 4; more bits above them.
  __device__ uint32_t four(int i) const { return i < count ? words[i / 32] >> (i % 32) : 15u; }
};
struct NoMask {
  __device__ static uint32_t four(int) { return 15u; }
};

__device__ inline bool has_mask(const ops::SampleRow& params) {
  return params.mask_row >= 0;
}
__device__ inline SliceMask mask_of(const SampleParams& p, const ops::SampleRow& params,
                                    const Slice& slice) {
  const int64_t words = (p.vocab + 31) / 32;
  return {p.masks + params.mask_row * words + slice.begin / 32, slice.count};
}

__device__ inline float4 allowed(const float4& x, uint32_t bits) {
  constexpr float kBanned = -__builtin_huge_valf();
  return make_float4((bits & 1) != 0 ? x.x : kBanned, (bits & 2) != 0 ? x.y : kBanned,
                     (bits & 4) != 0 ? x.z : kBanned, (bits & 8) != 0 ? x.w : kBanned);
}

// Reads this warp's tokens of a row from memory; keep(i, four) is called for each lane's four, i
// counted from the slice, as they are under the mask. Returns the thread's highest ordinal,
// kBadOrdinal where a number is none, also under the mask.
template <typename Mask, typename Keep>
__device__ Ordinal scan_memory(const float* row, const Slice& slice, bool aligned, Mask mask,
                               Keep keep) {
  constexpr int kAhead = 4;  // loads in flight
  const float* const from = row + slice.begin;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Highest highest;
  bool bad = false;
  for (int chunk = slice.first_chunk; chunk < slice.end_chunk; chunk += kAhead) {
    float4 x[kAhead];
    uint32_t bits[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = chunk + a < slice.end_chunk ? (chunk + a) * kChunk + lane * 4 : slice.count;
      x[a] = load_four(from, i, slice.count, aligned);
      bits[a] = mask.four(i);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (chunk + a >= slice.end_chunk) break;
      const int i = (chunk + a) * kChunk + lane * 4;
      // The filler is no number either.
      bad |= i + 4 <= slice.count && is_bad(x[a]);
      for (int j = i; i + 4 > slice.count && j < slice.count; ++j) bad |= !(from[j] <= kLargest);
      const float4 four = allowed(x[a], bits[a]);
      keep(i, four);
      highest.see(four, slice.begin + i);
    }
  }
  return bad ? kBadOrdinal : highest.ordinal();
}

// The highest ordinal of all the row, from each thread's.
__device__ inline Ordinal highest_of(const OfWarps& all) {
  Ordinal highest = kNoOrdinal;
#pragma unroll
  for (const Ordinal ordinal : all.v) highest = ordinal > highest ? ordinal : highest;
  return Team::warp_max_of(highest);
}

struct SampledRow {
  int token = -1;  // -1: kNumerical
  float logprob = 0.0f;
  int rank = 0;
};

__device__ inline void write_sampled(const SampleParams& p, int64_t row, const SampledRow& sampled,
                                     ops::SampleEnd end) {
  reinterpret_cast<int4*>(p.sampled)[row] = make_int4(
      sampled.token, static_cast<int>(end), __float_as_int(sampled.logprob), sampled.rank);
}

// True when the row is not to be sampled; what is to be said of it has been written then.
__device__ inline bool is_masked(const SampleParams& p, int64_t row, const ops::SampleRow& params,
                                 bool is_writer) {
  if (params.slot == p.padding_slot) return true;
  if (p.state.ended[params.slot] == 0) return false;
  if (is_writer) write_sampled(p, row, SampledRow{}, ops::SampleEnd::kMasked);
  return true;
}

// Why the sequence ends with a token that was sampled for this row.
__device__ inline ops::SampleEnd end_of(const ops::SampleRow& params, int token, bool is_stop) {
  if (token < 0) return ops::SampleEnd::kNumerical;
  if (is_stop) return ops::SampleEnd::kStopId;
  return params.position + 1 >= params.max_len ? ops::SampleEnd::kLength : ops::SampleEnd::kNone;
}

// The slot's last token is that of the row.
__device__ inline void carry_token(const SampleParams& p, const ops::SampleRow& params, int token) {
  p.state.carry[params.slot] = token;
  if (p.state.carry_position != nullptr) p.state.carry_position[params.slot] = params.position;
}

// Called by one warp: the result, and what the next step needs of it. With drafts the result alone:
// whether it counts is not known yet.
__device__ inline void finish_row(const SampleParams& p, int64_t row, const ops::SampleRow& params,
                                  const SampledRow& sampled) {
  bool is_stop = false;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (p.any_drafts) {
    if (lane == 0) write_sampled(p, row, sampled, ops::SampleEnd::kNone);
    return;
  }
  for (int i = lane; i < params.num_stop_ids; i += 32) {
    is_stop |= p.lists[params.stop_begin + i] == sampled.token;
  }
  is_stop = __any_sync(0xffffffffu, is_stop);
  if (lane != 0) return;
  const ops::SampleEnd end = end_of(params, sampled.token, is_stop);
  if (sampled.token >= 0) {
    carry_token(p, params, sampled.token);
    if (params.has_penalties != 0) {
      ++p.state.output_count[params.slot * p.state.vocab + sampled.token];
    }
  }
  if (end != ops::SampleEnd::kNone) p.state.ended[params.slot] = 1;
  write_sampled(p, row, sampled, end);
}

}  // namespace rudder::cuda
