// Taps on the device: looks up what a token's row asks for at the points that a kernel passes, runs
// the programs on a row that the registers of a team of threads hold, and copies captured rows to
// the ring. Included by .cu files only; formulas: tap/program.h; reference: testing/reference_taps.
//
// What it costs. A token of row 0 that is not captured: its row number, its capture set and a word
// of each point, asked for before the row itself, and a branch. A steered token: its program's
// place, the op and the op's vector, three loads that need one another. With few tokens they are
// made before the kernel ahead has ended (a product that streams weights leaves room for blocks
// that wait); with many, beside the loads of other rows. kAdd and kPatch have no sums; all sums of
// another op are one exchange between the threads.
#pragma once

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/taps.h"

namespace rudder::cuda {

// What copies ahead of the step wrote (tap.T9). Before dependency_wait() it is read past L1, which
// might hold what a step before left there; behind it, blocks of one multiprocessor share what L1
// has.
template <bool kEarly>
__device__ int32_t load_word(const int32_t* from) {
  return kEarly ? __ldcg(from) : *from;
}
// Likewise, to shared memory. Both 16-byte aligned.
template <bool kEarly>
__device__ void copy_async(float4* shared, const float* from) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kEarly) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  }
}
// For all copies that the thread has started.
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
__device__ inline void prefetch_to_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// What every op is asked; the rest of TapOpParams only where its kind needs it.
struct TapOpHead {
  TapKind kind;
  TapGate gate;
  TapSchedule schedule;
  int32_t v1;
  float strength;

  __device__ explicit TapOpHead(const TapOpParams& op) {
    const int4 low = *reinterpret_cast<const int4*>(&op);
    const int4 high = *(reinterpret_cast<const int4*>(&op) + 1);
    kind = static_cast<TapKind>(low.x);
    gate = static_cast<TapGate>(low.y);
    schedule = static_cast<TapSchedule>(low.z);
    v1 = high.x;
    strength = __int_as_float(high.w);
  }
};

// What an op may need to know of a row: p = h . v1, p2 = h . v2, the gate's h . vg, and |h|^2.
struct TapSums {
  float p, p2, gate, squares;
};
struct WantedTapSums {
  bool p, p2, gate, squares;

  __device__ explicit WantedTapSums(const TapOpHead& op)
      : p(op.kind == TapKind::kAxis || op.kind == TapKind::kSwap || op.kind == TapKind::kRotate ||
          op.kind == TapKind::kAddRenorm || op.kind == TapKind::kScore),
        p2(op.kind == TapKind::kRotate),
        gate(op.gate == TapGate::kHard || op.gate == TapGate::kSoft),
        squares(op.kind == TapKind::kAddNorm || op.kind == TapKind::kAddRenorm) {}

  __device__ bool any() const { return p || p2 || gate || squares; }
  __device__ TapSums warp_sums(TapSums sums) const {
    if (p) sums.p = warp_sum(sums.p);
    if (p2) sums.p2 = warp_sum(sums.p2);
    if (gate) sums.gate = warp_sum(sums.gate);
    if (squares) sums.squares = warp_sum(sums.squares);
    return sums;
  }
};

// What an op makes of a row: keep h + c1 v1 + c2 v2.
struct TapChange {
  float keep = 1.0f;
  float c1 = 0.0f;
  float c2 = 0.0f;
  bool has_second = false;

  // h + g (op(h) - h).
  __device__ TapChange scaled(float g) const {
    return {fmaf(g, keep - 1.0f, 1.0f), g * c1, g * c2, has_second};
  }
  __device__ Floats applied(Floats h, const Floats& v1) const {
#pragma unroll
    for (int j = 0; j < kRun; ++j) h.v[j] = fmaf(c1, v1.v[j], __fmul_rn(keep, h.v[j]));
    return h;
  }
  __device__ Floats second_applied(Floats h, const Floats& v2) const {
#pragma unroll
    for (int j = 0; j < kRun; ++j) h.v[j] = fmaf(c2, v2.v[j], h.v[j]);
    return h;
  }
};

// To 2 units in the last place, like the other functions here: an exact one is a call, whose
// registers a row would have to make room for.
__device__ inline float fast_sqrt(float x) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

// Of an op at strength s on a row of these sums.
__device__ inline TapChange change_of(TapKind kind, const TapOpParams& op, float s,
                                      const TapSums& sums) {
  const float p = sums.p;
  switch (kind) {
    case TapKind::kPatch:
      return {1.0f - s, s, 0.0f, false};
    case TapKind::kAxis:
      return {1.0f, s * (fminf(fmaxf(fmaf(op.a, p, op.b), op.lo), op.hi) - p), 0.0f, false};
    case TapKind::kSwap:
      return {1.0f, -s * p, s * p, true};
    case TapKind::kRotate: {
      if (op.lo > 0.0f && p <= 0.0f) return {};
      const float r = fast_sqrt(fmaf(p, p, sums.p2 * sums.p2));
      return {1.0f, s * fmaf(r, op.a, -p), s * fmaf(r, op.b, -sums.p2), true};
    }
    case TapKind::kAdd:
      return {1.0f, s, 0.0f, false};
    case TapKind::kAddNorm:
      return {1.0f, s * fast_sqrt(sums.squares), 0.0f, false};
    case TapKind::kAddRenorm: {
      // |h + s v1|^2
      const float squares = fmaf(s * s, op.norm_squared, fmaf(2.0f * s, p, sums.squares));
      if (op.lo > 0.0f && squares <= sums.squares) return {1.0f, s, 0.0f, false};
      if (squares <= 0.0f) return {};
      const float keep = fast_sqrt(__fdividef(sums.squares, squares));
      return {keep, keep * s, 0.0f, false};
    }
    case TapKind::kScore:
      break;
  }
  return {};
}

__device__ inline void add_dot(float& sum, const Floats& a, const Floats& b) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) sum = fmaf(a.v[j], b.v[j], sum);
}

// A row is one block's: thread t has the runs t, t + threads, ... of it.
class BlockTeam {
 public:
  struct Shared {
    TapSums of_warp[2][32];
  };

  __device__ explicit BlockTeam(Shared& shared) : shared_(shared) {}

  __device__ int first_column() const { return static_cast<int>(threadIdx.x) * kRun; }
  __device__ int column_stride() const { return static_cast<int>(blockDim.x) * kRun; }
  __device__ bool is_leader() const { return threadIdx.x == 0; }

  // Over all threads, to every thread, in an order that their number alone decides. Two sets of
  // places in turn: who writes one again has passed the barrier that all reach after they read it.
  __device__ TapSums sum(TapSums sums, const WantedTapSums& wanted) {
    TapSums* const of_warp = shared_.of_warp[turn_];
    turn_ ^= 1;
    const unsigned lane = threadIdx.x % 32;
    sums = wanted.warp_sums(sums);
    if (lane == 0) of_warp[threadIdx.x / 32] = sums;
    __syncthreads();
    return wanted.warp_sums(lane < blockDim.x / 32 ? of_warp[lane] : TapSums{});
  }

 private:
  Shared& shared_;
  int turn_ = 0;
};

// Of dynamic shared memory that a vector needs.
inline size_t tap_vector_bytes(int runs_per_thread, unsigned threads) {
  return static_cast<size_t>(runs_per_thread) * threads * kRun * sizeof(float);
}
// A launch of more than 48 KiB, what the kernel declares included, has to be allowed.
template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, size_t dynamic_bytes) {
  constexpr size_t kAlwaysAllowed = 40 * 1024;
  if (dynamic_bytes <= kAlwaysAllowed) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(dynamic_bytes));
}
// Up to this many rows, all blocks are on the device at once and begin before the kernel ahead of
// them ends.
inline constexpr int64_t kEarlyTapRows = 264;

// What is read in pieces of 16 bytes, and what is, or is not, as the rows are.
inline bool are_tables_aligned(const TapTableParams& table) {
  return is_aligned(table.ops) && is_aligned(table.latches);
}
inline bool are_rows_aligned(const TapTableParams& table) {
  return is_aligned(table.vectors) && is_aligned(table.ring);
}

// The programs of one token at the points of a kernel, and its captures. All threads of the team
// make the same calls: load_armed(), load(), look_up(), then at() for each point in turn.
//
// kRuns: runs of a row that a thread has. kAligned: as of load_run(), of vectors and ring; if so,
// an op's first vector goes through shared memory, where every thread has the runs that it reads.
template <typename Team, int kPoints, int kRuns, bool kAligned>
class TokenTaps {
 public:
  using Row = Floats[kRuns];

  // `fetched`: tap_vector_bytes() of shared memory.
  __device__ TokenTaps(const TapParams<kPoints>& params, Team& team, float4* fetched, int64_t width)
      : p_(params), team_(team), fetched_(fetched), width_(static_cast<int>(width)) {}

  // Loads that nothing waits for yet. They may stand before dependency_wait(): what they read was
  // written by copies that the step's first kernel waited for in full, and the blocks of a kernel
  // start after all blocks of the kernel ahead of it have started, and so on back to that first
  // one. Whether the points are armed, each for one of the first lanes:
  __device__ void load_armed() {
    armed_ = lane_point() >= 0 ? load_word<true>(p_.table.armed + lane_point()) : 0;
  }
  // The row and the set of the token that is looked up next:
  __device__ void load(int64_t token) {
    row_ = p_.table.points != nullptr ? load_word<true>(p_.batch.row + token) : 0;
    set_ = p_.table.captures != nullptr ? load_word<true>(p_.batch.capture_set + token) : -1;
  }

  // Some token has something to do here.
  __device__ bool is_armed() const { return __any_sync(kAllLanes, armed_ != 0); }

  // What the loaded token has to do at each point: early, before dependency_wait(), with the first
  // op's vector; or behind it and behind the loads of the row, which then need not wait for this.
  template <bool kEarly>
  __device__ void look_up(int token) {
    token_ = token;
    is_active_ = false;
    has_early_ = false;
    if (row_ == 0 && set_ < 0) return;
    word_ = 0;
    before_ = -1;
    after_ = -1;
    if (armed_ != 0 && row_ != 0) {
      const int64_t place = int64_t{row_} * p_.table.num_points + lane_point();
      word_ = load_word<kEarly>(p_.table.points + place);
    }
    if (armed_ != 0 && set_ >= 0) {
      const int64_t place = int64_t{set_} * p_.table.num_points + lane_point();
      before_ = load_word<kEarly>(p_.table.captures + 2 * place);
      after_ = load_word<kEarly>(p_.table.captures + 2 * place + 1);
    }
    const unsigned steered = __ballot_sync(kAllLanes, (word_ & 0xff) != 0);
    is_active_ = steered != 0 || __any_sync(kAllLanes, before_ >= 0 || after_ >= 0);
    if (kEarly && steered != 0) fetch_early(__shfl_sync(kAllLanes, word_, __ffs(steered) - 1));
  }

  __device__ bool is_active() const { return is_active_; }

  // The row at a point is captured, steered and captured.
  __device__ void at(int number, Row& h) {
    if (!is_active_) return;
    const int before = __shfl_sync(kAllLanes, before_, number);
    if (before >= 0) capture(before, h);
    const int word = __shfl_sync(kAllLanes, word_, number);
    const TapOpParams* op = p_.table.ops + (word >> 8);
    for (int left = word & 0xff; left > 0; --left) run_op(*op++, h);
    const int after = __shfl_sync(kAllLanes, after_, number);
    if (after >= 0) capture(after, h);
  }
  // Two points at which the row is the same.
  __device__ void at_both(int first, Row& h) {
    if (!is_active_) return;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) at(first + i, h);
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffu;

  __device__ int column(int r) const {
    return team_.first_column() + r * team_.column_stride();
  }
  // The point that this lane looks up, or -1; every warp looks up all of them.
  __device__ int lane_point() const {
    const unsigned lane = threadIdx.x % 32;
    return lane < kPoints ? p_.point[lane] : -1;
  }

  // Of the first op that the token runs: the op to L2, its first vector to shared memory.
  __device__ void fetch_early(int32_t word) {
    if constexpr (!kAligned) return;
    const TapOpParams* op = p_.table.ops + (word >> 8);
    prefetch_to_l2(op);
    fetch<true>(load_word<true>(&op->v1));
    has_early_ = true;
  }
  template <bool kEarly>
  __device__ void fetch(int32_t vector) const {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int i = column(r);
      if (i >= width_) continue;
      copy_async<kEarly>(fetched(r, 0), p_.table.vectors + vector + i);
      copy_async<kEarly>(fetched(r, 1), p_.table.vectors + vector + i + 4);
    }
  }
  // Threads next to each other have places next to each other.
  __device__ float4* fetched(int r, int half) const {
    return fetched_ + (2 * r + half) * static_cast<int>(blockDim.x) + threadIdx.x;
  }
  __device__ Floats fetched_run(int r) const {
    Floats out = {};
    if (column(r) >= width_) return out;
    memcpy(&out.v[0], fetched(r, 0), sizeof(float4));
    memcpy(&out.v[4], fetched(r, 1), sizeof(float4));
    return out;
  }

  __device__ Floats vector_run(int32_t vector, int r) const {
    const int i = column(r);
    const float* from = p_.table.vectors + vector + i;
    return load_floats<kAligned>(from, width_ - i);
  }

  __device__ void capture(int place, const Row& h) const {
    const int64_t record = p_.batch.capture_begin[token_];
    Bf16* to = static_cast<Bf16*>(p_.table.ring) + (record + place) * kTapCaptureUnit;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int i = column(r);
      store_run<kAligned>(to + i, width_ - i, pack(h[r]));
    }
  }

  __device__ void run_op(const TapOpParams& op, Row& h) {
    const TapOpHead head(op);
    if constexpr (kAligned) {
      if (!has_early_) fetch<false>(head.v1);
      has_early_ = false;
      wait_for_copies();
    }
    const auto v1 = [&](int r) {
      if constexpr (kAligned) {
        return fetched_run(r);
      } else {
        return vector_run(head.v1, r);
      }
    };
    const bool is_score = head.kind == TapKind::kScore;
    const float s = is_score ? 0.0f : head.strength * scheduled(head.schedule, op);
    if (is_score ? since_prompt() >= 0 : s == 0.0f) return;
    const WantedTapSums wanted(head);
    TapSums sums = {};
    if (wanted.any()) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        if (wanted.p) add_dot(sums.p, h[r], v1(r));
        if (wanted.p2) add_dot(sums.p2, h[r], vector_run(op.v2, r));
        if (wanted.gate) add_dot(sums.gate, h[r], vector_run(op.gate_vector, r));
        if (wanted.squares) add_dot(sums.squares, h[r], h[r]);
      }
      sums = team_.sum(sums, wanted);
    }
    if (is_score) {
      if (team_.is_leader()) add_sample(op.latch, sums.p);
      return;
    }
    const float g = opened(head, op, sums.gate);
    if (g == 0.0f) return;
    TapChange change = change_of(head.kind, op, s, sums);
    if (g != 1.0f) change = change.scaled(g);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      h[r] = change.applied(h[r], v1(r));
      if (change.has_second) h[r] = change.second_applied(h[r], vector_run(op.v2, r));
    }
  }

  __device__ int since_prompt() const {
    return p_.batch.since_prompt[token_];
  }

  // The schedule's factor.
  __device__ float scheduled(TapSchedule schedule, const TapOpParams& op) const {
    if (schedule == TapSchedule::kConstant) return 1.0f;
    const int n = since_prompt();
    if (schedule == TapSchedule::kWindow) return n >= op.begin && n < op.end ? 1.0f : 0.0f;
    if (n >= op.end) return op.to;
    if (n <= op.begin) return op.from;
    const float part = __fdividef(static_cast<float>(int64_t{n} - op.begin),
                                  static_cast<float>(int64_t{op.end} - op.begin));
    return fmaf(op.to - op.from, part, op.from);
  }

  // The gate's factor.
  __device__ float opened(const TapOpHead& head, const TapOpParams& op, float dot) const {
    if (head.gate == TapGate::kNone) return 1.0f;
    float score = dot;
    if (head.gate == TapGate::kScoreHard || head.gate == TapGate::kScoreSoft) {
      if (since_prompt() < -1) return 0.0f;
      const ulonglong2 latch = __ldcg(reinterpret_cast<const ulonglong2*>(latch_of(op.latch)));
      if (latch.y == 0) return 0.0f;
      const float sum = __ll2float_rn(static_cast<long long>(latch.x));
      score = __fdividef(sum * (1.0f / (1 << kTapLatchBits)), __ull2float_rn(latch.y));
    }
    const float above = score - op.threshold;
    if (head.gate == TapGate::kHard || head.gate == TapGate::kScoreHard) {
      return above > 0.0f ? 1.0f : 0.0f;
    }
    return __fdividef(1.0f, 1.0f + __expf(-op.sharpness * above));
  }

  __device__ unsigned long long* latch_of(int32_t number) const {
    const int64_t slot = p_.batch.slot[token_];
    return p_.table.latches + (slot * kTapLatches + number) * 2;
  }
  // Sums of whole numbers: the order in which tokens come does not matter.
  __device__ void add_sample(int32_t number, float p) const {
    unsigned long long* const latch = latch_of(number);
    // ops::latch_sample(): the product of a float and a power of two is exact.
    const float clipped = fminf(fmaxf(isnan(p) ? 0.0f : p, -kTapLatchMost), kTapLatchMost);
    const long long sample = __float2ll_rn(clipped * (1 << kTapLatchBits));
    atomicAdd(latch, static_cast<unsigned long long>(sample));
    atomicAdd(latch + 1, 1ull);
  }

  const TapParams<kPoints>& p_;
  Team& team_;
  float4* const fetched_;  // [kRuns][2][threads]
  const int width_;
  int token_ = 0;
  int row_ = 0;
  int set_ = -1;
  bool is_active_ = false;
  bool has_early_ = false;  // the next op's first vector is there, or on its way
  // Of lane_point(): whether it is armed, first op << 8 | number of ops, places in the token's
  // record before and after them.
  int armed_ = 0;
  int word_ = 0;
  int before_ = -1;
  int after_ = -1;
};

}  // namespace rudder::cuda
