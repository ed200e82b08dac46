// Selection over a row that a cluster holds in shared memory: the token at an ordinal of the order
// (top-k, the best for log-probabilities), or the one that brings the weight of all before it and
// its own to a given mass (top-p). Included by sample.cu only.
//
// The ordinals that may hold the answer are a range. Each pass counts the tokens of 4096 equal
// parts of the range and keeps the parts that can hold the answer, until so few tokens are in it
// that one block can sort them. Ordinals are whole numbers that differ from token to token, so that
// a pass always narrows, however many tokens are equal.
#pragma once

#include "rudder/cuda/kernels/sampling/sample_team.cuh"

namespace rudder::cuda {

inline constexpr int kBuckets = 4096;
inline constexpr int kBucketBits = 12;
inline constexpr int kListCapacity = 2048;
inline constexpr int kBucketsOfThread = kBuckets / kSampleThreads;
inline constexpr int kEntriesOfThread = kListCapacity / kSampleThreads;

struct Range {
  Ordinal low;        // the answer is >= low
  Ordinal high;       // and < high
  uint32_t above;     // tokens >= high
  uint32_t reaching;  // tokens >= low
  bool is_answer;     // low is the answer: nothing is left to look at
};

// In the shared memory of every block of a cluster. Between selections `histogram` and `list_size`
// are zero.
struct SelectMemory {
  union {
    uint32_t histogram[kBuckets];
    Ordinal list[kListCapacity];
  };
  uint32_t list_size;
  uint32_t list_begin;  // of this block's ordinals in the leader's list
  double scan[kSampleWarps];
  int reached;
  Range range;     // of the leader; all blocks read it
  Ordinal answer;  // likewise
};

// What is selected of a slice in shared memory.
struct Target {
  bool is_mass = false;  // else a count
  double value = 0;      // the mass, or k: the k-th token of the order
};

// One block's: the first of `parts` numbers a thread, in the order of threads, that brings the sum,
// which begins at `base`, to `target`; -1 where rounding or the target keeps the sum below.
// `part(i)` is the i-th number, never negative.
template <int kParts, typename Part>
__device__ int first_reaching(const Team& team, SelectMemory& memory, double base, double target,
                              Part part) {
  const int first = static_cast<int>(threadIdx.x) * kParts;
  double own = 0;
#pragma unroll 1
  for (int i = first; i < first + kParts; ++i) own += part(i);
  const double inclusive = team.inclusive_sum(own);
  __syncthreads();  // memory.scan is not read any more
  if (team.lane() == 31) memory.scan[team.warp()] = inclusive;
  if (threadIdx.x == 0) memory.reached = -1;
  __syncthreads();
  double warps = base;
#pragma unroll 1
  for (int w = 0; w < team.warp(); ++w) warps += memory.scan[w];
  // What one thread has through it is to the bit what the next has before it, so that exactly one
  // finds the crossing.
  double before = __shfl_up_sync(0xffffffffu, inclusive, 1);
  before = team.lane() == 0 ? warps : warps + before;
  if (warps + inclusive >= target && (before < target || threadIdx.x == 0)) {
    int i = first;
#pragma unroll 1
    for (; i < first + kParts - 1; ++i) {
      before += part(i);
      if (before >= target) break;
    }
    memory.reached = i;
  }
  __syncthreads();
  return memory.reached;
}

// Runs f(ordinal, value) for each token of this warp's chunks whose ordinal is at least `low`.
template <typename F>
__device__ void for_each_from(const float* values, const Slice& slice, Ordinal low, F f) {
  const uint32_t low_key = key_of_ordinal(low);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int chunk = slice.first_chunk; chunk < slice.end_chunk; ++chunk) {
    const int i = chunk * kChunk + lane * 4;
    const float4 x = *reinterpret_cast<const float4*>(values + i);
    const float v[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t key = key_of(v[j]);
      if (key < low_key) continue;
      const Ordinal ordinal = ordinal_of(key, slice.begin + i + j);
      if (ordinal >= low) f(ordinal, v[j]);
    }
  }
}

__device__ inline int shift_of(const Range& range) {
  const int bits = 64 - __clzll(static_cast<long long>(range.high - range.low - 1));
  return bits > kBucketBits ? bits - kBucketBits : 0;
}

// The leader's: the parts of `range` that can hold the answer, into memory.range; the histogram is
// zero after it. `above` is the measure of the tokens past the range. Buckets are counted from the
// top. A bucket's mass is known but for where in it its tokens lie: the answer is not before the
// bucket that reaches the target with all of them at the upper end, nor past the one that does with
// all at the lower end.
__device__ inline void narrow(const Team& team, SelectMemory& memory, const Range& range,
                              const Target& target, double above) {
  const int shift = shift_of(range);
  const auto low_of = [&](int from_top) {
    return min(range.low + (static_cast<Ordinal>(kBuckets - 1 - from_top) << shift), range.high);
  };
  int reached[2];
#pragma unroll 1
  for (int at_lower = 0; at_lower < 2; ++at_lower) {
    reached[1] = first_reaching<kBucketsOfThread>(
        team, memory, above, target.value, [&](int from_top) -> double {
          const double n = memory.histogram[kBuckets - 1 - from_top];
          if (n == 0 || !target.is_mass) return n;
          const Ordinal edge = at_lower != 0 ? low_of(from_top) : low_of(from_top - 1) - 1;
          return n * value_of_key(key_of_ordinal(edge));
        });
    if (at_lower == 0) reached[0] = reached[1];
  }
  // Where rounding kept the sum below, the answer is the range's end.
  const bool is_answer = reached[0] < 0;
  const int top = is_answer ? kBuckets - 1 : reached[0];
  const int bottom = reached[1] < 0 ? kBuckets - 1 : reached[1];
  if (threadIdx.x == 0) {
    memory.range = {low_of(bottom), low_of(top - 1), range.above, range.above, is_answer};
  }
  __syncthreads();
  uint32_t before_top = 0;
  uint32_t to_bottom = 0;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kBuckets; i += kSampleThreads) {
    const uint32_t count = memory.histogram[kBuckets - 1 - i];
    memory.histogram[kBuckets - 1 - i] = 0;
    before_top += i < top ? count : 0;
    to_bottom += i <= bottom ? count : 0;
  }
  before_top = __reduce_add_sync(0xffffffffu, before_top);
  to_bottom = __reduce_add_sync(0xffffffffu, to_bottom);
  if (team.lane() == 0) {
    atomicAdd(&memory.range.above, before_top);
    atomicAdd(&memory.range.reaching, to_bottom);
  }
}

// Descending, over one block; `size` is a power of two.
__device__ inline void sort_ordinals(Ordinal* list, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += kSampleThreads) {
        const int low = pair / step * step * 2 + pair % step;
        const int high = low + step;
        const Ordinal a = list[low];
        const Ordinal b = list[high];
        const bool is_descending = (low & run) == 0;
        if ((a < b) == is_descending) {
          list[low] = b;
          list[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

// The leader's: sets memory.answer from the sorted list of the range's tokens.
__device__ inline void answer_from_list(const Team& team, SelectMemory& memory, int size,
                                        uint32_t skipped, const Target& target, double above) {
  if (!target.is_mass) {
    if (threadIdx.x == 0) {
      memory.answer = memory.list[static_cast<int>(target.value) - 1 - static_cast<int>(skipped)];
    }
    return;
  }
  const int reached =
      first_reaching<kEntriesOfThread>(team, memory, above, target.value, [&](int i) -> double {
        return i < size ? value_of_key(key_of_ordinal(memory.list[i])) : 0.0f;
      });
  // Rounding may have kept the sum below.
  const int index = reached < 0 ? size - 1 : min(reached, size - 1);
  if (threadIdx.x == 0) memory.answer = memory.list[index];
}

// Puts the ordinals in [low, high) of all blocks into the leader's list and returns the thread's
// weight above. The lists of the others are zero again when the cluster has met.
__device__ inline double collect(Team& team, SelectMemory& memory, const float* values,
                                 const Slice& slice, Ordinal low, Ordinal high) {
  double above = 0;
  for_each_from(values, slice, low, [&](Ordinal ordinal, float value) {
    if (ordinal >= high) {
      above += value;
    } else {
      memory.list[atomicAdd(&memory.list_size, 1u)] = ordinal;
    }
  });
  return above;
}

// Every block but the leader hands over its own list.
__device__ inline void hand_over(Team& team, SelectMemory& memory) {
  if (team.is_leader()) return;
  __syncthreads();
  const uint32_t size = memory.list_size;
  if (size == 0) return;
  if (threadIdx.x == 0) {
    memory.list_begin = atomicAdd(team.of_block(&memory.list_size, 0), size);
  }
  __syncthreads();
  Ordinal* const to = team.of_block(memory.list, 0) + memory.list_begin;
  for (uint32_t i = threadIdx.x; i < size; i += kSampleThreads) {
    to[i] = memory.list[i];
    memory.list[i] = 0;
  }
  if (threadIdx.x == 0) memory.list_size = 0;
}

// Counts the tokens of a range into the leader's histogram; returns the thread's weight above it.
__device__ inline double count_range(Team& team, SelectMemory& memory, const float* values,
                                     const Slice& slice, const Range& range) {
  const int shift = shift_of(range);
  double above = 0;
  for_each_from(values, slice, range.low, [&](Ordinal ordinal, float value) {
    if (ordinal >= range.high) {
      above += value;
    } else {
      atomicAdd(&memory.histogram[(ordinal - range.low) >> shift], 1u);
    }
  });
  if (!team.is_leader()) {
    __syncthreads();
    uint32_t* const to = team.of_block(memory.histogram, 0);
#pragma unroll 1
    for (int b = static_cast<int>(threadIdx.x); b < kBuckets; b += kSampleThreads) {
      const uint32_t count = memory.histogram[b];
      if (count == 0) continue;
      atomicAdd(to + b, count);
      memory.histogram[b] = 0;
    }
  }
  return above;
}

// The answer, to every thread of the cluster: the ordinal of the token that reaches the target, of
// those in [range.low, range.high) and those past it. With `wants_best`, for a count up to half of
// kListCapacity and a range that reaches up to the first token, best(list) is called by the
// leader's threads with the sorted ordinals of all tokens down to the answer and further.
template <typename Best>
__device__ Ordinal select(Team& team, SelectMemory& memory, const float* values, const Slice& slice,
                          Range range, const Target& target, bool wants_best, Best best) {
  uint32_t in_list = 0;
  do {
    const double own = count_range(team, memory, values, slice, range);
    const double mass = team.sum(own);  // and all counts are with the leader
    if (team.is_leader()) {
      narrow(team, memory, range, target, target.is_mass ? mass : range.above);
    }
    team.sync();
    range = *team.of_block(&memory.range, 0);
    if (range.reaching == range.above) range.is_answer = true;
    in_list = range.reaching - (wants_best ? 0 : range.above);
  } while (!range.is_answer && in_list > static_cast<uint32_t>(kListCapacity));
  if (range.is_answer) return range.low;

  const Ordinal high = wants_best ? ~Ordinal{0} : range.high;
  const double own = collect(team, memory, values, slice, range.low, high);
  hand_over(team, memory);
  const double above = team.sum(own);  // and all ordinals are with the leader
  if (team.is_leader()) {
    const int size = static_cast<int>(memory.list_size);
    int padded = 1;
    while (padded < size) padded *= 2;
    sort_ordinals(memory.list, padded);
    answer_from_list(team, memory, size, wants_best ? 0 : range.above, target, above);
    if (wants_best) best(memory.list);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kSampleThreads) memory.list[i] = 0;
    if (threadIdx.x == 0) memory.list_size = 0;
  }
  team.sync();
  return *team.of_block(&memory.answer, 0);
}

}  // namespace rudder::cuda
