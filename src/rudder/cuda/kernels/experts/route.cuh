// What the kernels that choose experts share: the choice of one token, and the list of who chose
// which. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/experts/route.h"

namespace rudder::cuda {

inline constexpr unsigned kAll = 0xffffffffu;
inline constexpr float kLeastSum = 1e-20f;  // so that weights that are all zero stay zero

// Numbers that have the order of the floats; above all of them what is no number.
__device__ inline uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

struct NoChange {};

// One token's choice, by a warp: a lane has every 32nd expert. `shares` [experts] in shared memory:
// what a choice weighs; `scores` what it is chosen by.
template <int kEach>
class Router {
 public:
  __device__ Router(const RouteParams& p, float* shares, float* scores)
      : p_(p), shares_(shares), scores_(scores) {}

  // Of lane j the j-th choice. logit_of(expert) has the token's; change(scores), of steered tokens,
  // changes what they are chosen by, in shared memory.
  template <typename LogitOf, typename Change = NoChange>
  __device__ int32_t run(int64_t token, LogitOf logit_of, Change change = {}) {
    const int32_t expert = choose(p_.k, logit_of, change);
    write(token, expert);
    return expert;
  }

  // The first `count` choices; nothing is written.
  template <typename LogitOf, typename Change = NoChange>
  __device__ int32_t choose(int count, LogitOf logit_of, Change change = {}) {
    load(logit_of, change);
    if (p_.groups > 1) leave_groups();
    const int lane = static_cast<int>(threadIdx.x % 32);
    int32_t expert = 0;  // the lane-th choice
    for (int j = 0; j < count; ++j) {
      const int32_t next = take_largest();
      if (lane == j) expert = next;
    }
    return expert;
  }

  // All choices and what they weigh, of lane j those of the j-th.
  __device__ void write(int64_t token, int32_t expert) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float share = lane < p_.k ? shares_[expert] : 0.0f;
    if (p_.kind == ops::RouterKind::kTopThenSoftmax) {
      const float most = __shfl_sync(kAll, share, 0);
      share = lane < p_.k ? expf(share - most) : 0.0f;
      share /= warp_sum(share);
    }
    if (p_.renormalises) share /= warp_sum(share) + kLeastSum;
    if (lane < p_.k) {
      p_.chosen[token * p_.k + lane] = expert;
      share *= p_.scale;
      if (p_.expert_scales != nullptr) share *= p_.expert_scales[expert];
      p_.weights[token * p_.k + lane] = share;
    }
  }

 private:
  __device__ static int expert_of(int i) { return static_cast<int>(threadIdx.x % 32) + 32 * i; }

  template <typename LogitOf, typename Change>
  __device__ void load(LogitOf logit_of, Change change) {
    float share[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = expert_of(i);
      share[i] = e < p_.experts ? logit_of(e) : -INFINITY;
    }
    if (p_.kind == ops::RouterKind::kSoftmaxThenTop) {
      float most = -INFINITY;
#pragma unroll
      for (const float value : share) most = fmaxf(most, value);
      most = warp_max(most);
      float total = 0;
#pragma unroll
      for (float& value : share) total += value = expf(value - most);
      total = warp_sum(total);
#pragma unroll
      for (float& value : share) value /= total;
    } else if (p_.kind == ops::RouterKind::kSigmoid) {
#pragma unroll
      for (float& value : share) value = sigmoid(value);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = expert_of(i);
      keys_[i] = 0;
      if (e >= p_.experts) continue;
      const float score = p_.correction == nullptr ? share[i] : share[i] + p_.correction[e];
      shares_[e] = share[i];
      scores_[e] = score;
      keys_[i] = key_of(score);
    }
    __syncwarp();
    if constexpr (!std::is_same_v<Change, NoChange>) {
      change(scores_);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int e = expert_of(i);
        if (e < p_.experts) keys_[i] = key_of(scores_[e]);
      }
    }
  }
  // Above 0, which is what has been taken.
  __device__ static uint32_t key_of(float score) {
    return max(ordered(score), 1u);
  }

  // A lane has a group: its score, then whether so many others come before it.
  __device__ void leave_groups() {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int size = p_.experts / p_.groups;
    uint32_t key = 0;
    if (lane < p_.groups) {
      float first = -INFINITY;
      float second = -INFINITY;
      for (int e = lane * size; e < (lane + 1) * size; ++e) {
        const float score = scores_[e];
        second = fmaxf(second, fminf(first, score));
        first = fmaxf(first, score);
      }
      key = key_of(size == 1 ? first : first + second);
    }
    int before = 0;
    for (int other = 0; other < p_.groups; ++other) {
      const uint32_t its = __shfl_sync(kAll, key, other);
      before += its > key || (its == key && other < lane) ? 1 : 0;
    }
    const unsigned kept = __ballot_sync(kAll, lane < p_.groups && before < p_.kept_groups);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = expert_of(i);
      if (e < p_.experts && (kept >> (e / size) & 1) == 0) keys_[i] = 0;
    }
  }

  // The expert of the largest key that is left; of equal ones the lowest.
  __device__ int32_t take_largest() {
    uint32_t most = 0;
#pragma unroll
    for (const uint32_t key : keys_) most = max(most, key);
    most = __reduce_max_sync(kAll, most);
    unsigned mine = kMostExperts;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {
      if (keys_[i] == most) mine = static_cast<unsigned>(expert_of(i));
    }
    const unsigned expert = __reduce_min_sync(kAll, mine);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (static_cast<unsigned>(expert_of(i)) == expert) keys_[i] = 0;
    }
    return static_cast<int32_t>(expert);
  }

  const RouteParams& p_;
  float* const shares_;
  float* const scores_;
  uint32_t keys_[kEach];
};

// What the block that makes the list has in shared memory.
struct ListShared {
  int32_t counts[kMostExperts];
  int32_t begins[kMostExperts];  // of the pairs of an expert
  int32_t runs[kMostExperts];    // the first of its runs
  int32_t hit;
  bool is_last;
};

// Behind the pairs of all experts, which counts have: by the first warp.
__device__ inline void sum_counts(const RouteParams& p, ListShared& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  int32_t pairs = 0;
  int32_t runs = 0;
  int32_t hit = 0;
  for (int base = 0; base < p.experts; base += 32) {
    const int e = base + lane;
    const int32_t count = e < p.experts ? shared.counts[e] : 0;
    const int32_t own = (count + p.list.run_pairs - 1) / p.list.run_pairs;
    int32_t pairs_to = count;
    int32_t runs_to = own;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t more_pairs = __shfl_up_sync(kAll, pairs_to, step);
      const int32_t more_runs = __shfl_up_sync(kAll, runs_to, step);
      if (lane >= step) pairs_to += more_pairs;
      if (lane >= step) runs_to += more_runs;
    }
    if (e < p.experts) {
      shared.begins[e] = pairs + pairs_to - count;
      shared.runs[e] = runs + runs_to - own;
    }
    hit += __popc(__ballot_sync(kAll, count > 0));
    pairs += __shfl_sync(kAll, pairs_to, 31);
    runs += __shfl_sync(kAll, runs_to, 31);
  }
  if (lane == 0) {
    *p.list.num_runs = runs;
    shared.hit = hit;
  }
}

__device__ inline void count_hits(const RouteParams& p, int32_t hit) {
  const int size = min(kHitSizes - 1, 32 - __clz(static_cast<int>(p.tokens) - 1));
  p.list.hits[2 * size] += 1;
  p.list.hits[2 * size + 1] += hit;
}

// By all threads of a block that has the counts of all experts.
__device__ inline void make_runs(const RouteParams& p, ListShared& shared) {
  const auto thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread < 32) sum_counts(p, shared);
  __syncthreads();
  if (thread == 0) count_hits(p, shared.hit);
  for (int e = thread; e < p.experts; e += static_cast<int>(blockDim.x)) {
    const int32_t count = shared.counts[e];
    ExpertRun* to = p.list.runs + shared.runs[e];
    for (int32_t first = 0; first < count; first += p.list.run_pairs) {
      *to++ = {e, shared.begins[e] + first, min(p.list.run_pairs, count - first), 0};
    }
  }
}

// By all threads of a block, in front of list_pairs().
__device__ inline void begin_list(const RouteParams& p, ListShared& shared) {
  if (gridDim.x > 1) return;  // else all that it counts stays in shared memory
  for (auto e = static_cast<int>(threadIdx.x); e < p.experts; e += static_cast<int>(blockDim.x)) {
    shared.counts[e] = 0;
  }
  __syncthreads();
}

// By all threads of the one block that is last; all pairs have their offsets, and counts are there.
__device__ inline void make_list(const RouteParams& p, ListShared& shared) {
  const auto threads = static_cast<int>(blockDim.x);
  const auto thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < p.experts; e += threads) {
    shared.counts[e] = __ldcg(p.list.counts + e);
    p.list.counts[e] = 0;
  }
  make_runs(p, shared);
  const auto pairs = static_cast<int>(p.tokens * p.k);
#pragma unroll 4
  for (int pair = thread; pair < pairs; pair += threads) {
    p.list.pairs[shared.begins[__ldcg(p.chosen + pair)] + __ldcg(p.list.offsets + pair)] = pair;
  }
}

// By all threads of every block: each has the expert of a pair, or has none. The block that is last
// makes the list.
__device__ inline void list_pairs(const RouteParams& p, ListShared& shared, bool has_pair,
                                  int64_t pair, int32_t expert) {
  const bool is_alone = gridDim.x == 1;
  int32_t offset = 0;
  if (has_pair) offset = atomicAdd((is_alone ? shared.counts : p.list.counts) + expert, 1);
  if (is_alone) {
    make_runs(p, shared);
    if (has_pair) p.list.pairs[shared.begins[expert] + offset] = static_cast<int32_t>(pair);
    return;
  }
  if (has_pair) p.list.offsets[pair] = offset;
  // What this block wrote is seen by whoever sees that it is done.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* const done = p.list.counts + p.experts;
    shared.is_last = atomicAdd(done, 1) == static_cast<int>(gridDim.x) - 1;
    if (shared.is_last) *done = 0;
  }
  __syncthreads();
  if (!shared.is_last) return;
  __threadfence();
  make_list(p, shared);
}

}  // namespace rudder::cuda
