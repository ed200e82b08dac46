// Taps on the device: looks up what a token's row asks for at the points that a kernel passes, runs
// the programs on a row that the registers of a team of threads hold, and copies captured rows to
// the ring. Included by .cu files only; formulas: tap/tap_op.h; reference: testing/reference_taps.
//
// What it costs. Most steering adds a vector, and a kernel that does no more is a few instructions
// longer than the plain one: programs beside them are twenty times that, and a row would jump over
// them four times. So there are kernels for steps of plain adds alone. A token without a program
// and a capture: 16 bytes a point, asked for before the kernel ahead has ended, and a branch. A
// steered one: then its op's vector, asked for behind the row, so that the two come together. kAdd
// and kPatch have no sums; all sums of another op are one exchange between the threads. A captured
// one: two reads, one behind the other, of where its row goes.
#pragma once

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/taps.h"

namespace rudder::cuda {

// What may be read before dependency_wait() is read past L1, which might hold what a step before
// left there.
__device__ inline ops::TapEntry load_early(const ops::TapEntry* from) {
  const int4 bits = __ldcg(reinterpret_cast<const int4*>(from));
  return {bits.x, bits.y, __int_as_float(bits.z), bits.w};
}
// To shared memory; both 16-byte aligned.
__device__ inline void copy_async(float4* shared, const float* from) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// For all copies that the thread has started.
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// What every op is asked; the rest of tap::TapOp only where its kind needs it.
struct TapOpHead {
  tap::OpKind kind;
  tap::GateKind gate;
  tap::ScheduleKind schedule;
  int32_t v1;
  float strength;

  // Of a plain add.
  __device__ TapOpHead(int32_t vector, float by)
      : kind(tap::OpKind::kAdd),
        gate(tap::GateKind::kNone),
        schedule(tap::ScheduleKind::kConstant),
        v1(vector),
        strength(by) {}
  __device__ explicit TapOpHead(const tap::TapOp& op) {
    const int4 low = *reinterpret_cast<const int4*>(&op);
    const int4 high = *(reinterpret_cast<const int4*>(&op) + 1);
    kind = static_cast<tap::OpKind>(low.x);
    gate = static_cast<tap::GateKind>(low.y);
    schedule = static_cast<tap::ScheduleKind>(low.z);
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
      : p(op.kind == tap::OpKind::kAxis || op.kind == tap::OpKind::kSwap ||
          op.kind == tap::OpKind::kRotate || op.kind == tap::OpKind::kAddRenorm ||
          op.kind == tap::OpKind::kScore),
        p2(op.kind == tap::OpKind::kRotate),
        gate(op.gate == tap::GateKind::kHard || op.gate == tap::GateKind::kSoft),
        squares(op.kind == tap::OpKind::kAddNorm || op.kind == tap::OpKind::kAddRenorm) {}

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
__device__ inline TapChange change_of(tap::OpKind kind, const tap::TapOp& op, float s,
                                      const TapSums& sums) {
  const float p = sums.p;
  switch (kind) {
    case tap::OpKind::kPatch:
      return {1.0f - s, s, 0.0f, false};
    case tap::OpKind::kAxis:
      return {1.0f, s * (fminf(fmaxf(fmaf(op.a, p, op.b), op.lo), op.hi) - p), 0.0f, false};
    case tap::OpKind::kSwap:
      return {1.0f, -s * p, s * p, true};
    case tap::OpKind::kRotate: {
      if (op.lo > 0.0f && p <= 0.0f) return {};
      const float r = fast_sqrt(fmaf(p, p, sums.p2 * sums.p2));
      return {1.0f, s * fmaf(r, op.a, -p), s * fmaf(r, op.b, -sums.p2), true};
    }
    case tap::OpKind::kAdd:
      return {1.0f, s, 0.0f, false};
    case tap::OpKind::kAddNorm:
      return {1.0f, s * fast_sqrt(sums.squares), 0.0f, false};
    case tap::OpKind::kAddRenorm: {
      // |h + s v1|^2
      const float squares = fmaf(s * s, op.norm_squared, fmaf(2.0f * s, p, sums.squares));
      if (op.lo > 0.0f && squares <= sums.squares) return {1.0f, s, 0.0f, false};
      if (squares <= 0.0f) return {};
      const float keep = fast_sqrt(__fdividef(sums.squares, squares));
      return {keep, keep * s, 0.0f, false};
    }
    case tap::OpKind::kScore:
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
  // buffers in turn: who writes one again has passed the barrier that all reach after they read it.
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
// What is read in pieces of 16 bytes, and what is, or is not, as the rows are.
template <int kPoints>
bool are_tables_aligned(const TapParams<kPoints>& taps) {
  return is_aligned(taps.table.ops) && is_aligned(taps.table.latches) &&
         is_aligned(taps.table.captures) && is_aligned(taps.batch.entries);
}
inline bool are_rows_aligned(const TapTableParams& table) {
  return is_aligned(table.vectors) && is_aligned(table.ring);
}

// The programs of one token at the points of a kernel, and its captures. All threads of the team
// make the same calls: load(), look_up(), then at() for each point in turn.
//
// kRuns: runs of a row that a thread has. kAligned: as of load_run(), of vectors and ring; if so,
// an op's first vector goes through shared memory, where every thread has the runs that it reads.
// kOnlyAdds: TapBatchParams.only_adds. Its kernel passes the points of the residual alone, and its
// code is short: little is left of a kernel's code in the caches from one layer to the next.
template <typename Team, int kPoints, int kRuns, bool kAligned, bool kOnlyAdds>
class TokenTaps {
 public:
  using Row = Floats[kRuns];

  // `fetched`: tap_vector_bytes() of shared memory.
  __device__ TokenTaps(const TapParams<kPoints>& params, Team& team, float4* fetched, int64_t width)
      : p_(params), team_(team), fetched_(fetched), width_(static_cast<int>(width)) {}

  // Of the token that is looked up next, when the last one has passed all points: loads that
  // nothing waits for yet. They may stand before dependency_wait() (tap.T9).
  __device__ void load(int64_t token) {
    entry_ = {};
    if (lane_point() >= 0) {
      entry_ = load_early(p_.batch.entries + token * p_.table.num_points + lane_point());
    }
  }

  // What the loaded token has to do; behind dependency_wait() and behind the loads of the row,
  // which then need not wait for the first op's vector.
  __device__ void look_up(int token) {
    token_ = token;
    const unsigned steered = __ballot_sync(kAllLanes, entry_.ops != 0);
    has_fetched_ = steered != 0;
    if (kAligned && has_fetched_) fetch(__shfl_sync(kAllLanes, entry_.vector, __ffs(steered) - 1));
    captured_ = __ballot_sync(kAllLanes, (entry_.flags & ops::TapEntry::kCaptured) != 0);
    active_ = steered | captured_;
    // In one word, which costs a register less: vectors are aligned.
    entry_.vector |= entry_.flags & ops::TapEntry::kPlainAdd;
  }

  __device__ bool is_active() const { return active_ != 0; }

  // The row at a point is captured, steered and captured.
  __device__ void at(int number, Row& h) {
    if ((active_ >> number & 1) == 0) return;
    const bool is_captured = (captured_ >> number & 1) != 0;
    if (__builtin_expect(is_captured, 0)) capture(number, 0, h);
    const int ops = __shfl_sync(kAllLanes, entry_.ops, number);
    if (ops != 0) {
      if constexpr (kOnlyAdds) {
        add_plain(number, h);
      } else {
        run_program(number, ops, h);
      }
    }
    if (__builtin_expect(is_captured, 0)) capture(number, 1, h);
  }
  // Two points at which the row is the same.
  __device__ void at_both(int first, Row& h) {
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

  __device__ void fetch(int32_t vector) const {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int i = column(r);
      if (i >= width_) continue;
      copy_async(fetched(r, 0), p_.table.vectors + vector + i);
      copy_async(fetched(r, 1), p_.table.vectors + vector + i + 4);
    }
  }
  // Threads next to each other have offsets next to each other.
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

  // `after`: 0 before the point's ops, 1 after them.
  __device__ void capture(int number, int after, const Row& h) const {
    const int64_t set = p_.batch.capture_set[token_];
    const int64_t point = set * p_.table.num_points + p_.point[number];
    const int offset = p_.table.captures[2 * point + after];
    if (offset < 0) return;
    const int64_t record = p_.batch.capture_begin[token_];
    Bf16* to = static_cast<Bf16*>(p_.table.ring) + (record + offset) * tap::kCaptureAlign;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int i = column(r);
      store_run<kAligned>(to + i, width_ - i, pack(h[r]));
    }
  }

  // Makes an op's first vector ready for first_vector().
  __device__ void need(int32_t vector) {
    if constexpr (kAligned) {
      if (!has_fetched_) fetch(vector);
      has_fetched_ = false;
      wait_for_copies();
    }
  }
  __device__ Floats first_vector(int32_t vector, int r) const {
    if constexpr (kAligned) {
      return fetched_run(r);
    } else {
      return vector_run(vector, r);
    }
  }

  __device__ void add_plain(int number, Row& h) {
    const int32_t vector = __shfl_sync(kAllLanes, entry_.vector, number) & ~1;
    const float strength = __shfl_sync(kAllLanes, entry_.strength, number);
    need(vector);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      h[r] = TapChange{1.0f, strength}.applied(h[r], first_vector(vector, r));
    }
  }

  __device__ void run_program(int number, int ops, Row& h) {
    const int32_t vector = __shfl_sync(kAllLanes, entry_.vector, number);
    const float strength = __shfl_sync(kAllLanes, entry_.strength, number);
    const tap::TapOp* op = p_.table.ops + (ops >> 8);
    // What most programs are needs no more than the entry says.
    bool is_told = (vector & 1) != 0;
#pragma unroll 1
    for (int left = ops & 0xff; left > 0; --left, ++op) {
      run_op(is_told ? TapOpHead(vector - 1, strength) : TapOpHead(*op), *op, h);
      is_told = false;
    }
  }

  __device__ void run_op(const TapOpHead& head, const tap::TapOp& op, Row& h) {
    need(head.v1);
    const auto v1 = [&](int r) { return first_vector(head.v1, r); };
    const bool is_score = head.kind == tap::OpKind::kScore;
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
  __device__ float scheduled(tap::ScheduleKind schedule, const tap::TapOp& op) const {
    if (schedule == tap::ScheduleKind::kConstant) return 1.0f;
    const int n = since_prompt();
    if (schedule == tap::ScheduleKind::kWindow) return n >= op.begin && n < op.end ? 1.0f : 0.0f;
    if (n >= op.end) return op.to;
    if (n <= op.begin) return op.from;
    const float part = __fdividef(static_cast<float>(int64_t{n} - op.begin),
                                  static_cast<float>(int64_t{op.end} - op.begin));
    return fmaf(op.to - op.from, part, op.from);
  }

  // The gate's factor.
  __device__ float opened(const TapOpHead& head, const tap::TapOp& op, float dot) const {
    if (head.gate == tap::GateKind::kNone) return 1.0f;
    float score = dot;
    if (head.gate == tap::GateKind::kScoreHard || head.gate == tap::GateKind::kScoreSoft) {
      if (since_prompt() < -1) return 0.0f;
      const ulonglong2 latch = __ldcg(reinterpret_cast<const ulonglong2*>(latch_of(op.latch)));
      if (latch.y == 0) return 0.0f;
      const float sum = __ll2float_rn(static_cast<long long>(latch.x));
      // The low half of the tally: ops::latch_samples().
      const float count = __uint2float_rn(static_cast<unsigned>(latch.y));
      score = __fdividef(sum * (1.0f / (1 << ops::kLatchBits)), count);
    }
    const float above = score - op.threshold;
    if (head.gate == tap::GateKind::kHard || head.gate == tap::GateKind::kScoreHard) {
      return above > 0.0f ? 1.0f : 0.0f;
    }
    return __fdividef(1.0f, 1.0f + __expf(-op.sharpness * above));
  }

  __device__ unsigned long long* latch_of(int32_t number) const {
    const int64_t slot = p_.batch.slot[token_];
    return p_.table.latches + (slot * tap::kNumLatches + number) * 2;
  }
  // Sums of whole numbers: the order in which tokens come does not matter.
  __device__ void add_sample(int32_t number, float p) const {
    unsigned long long* const latch = latch_of(number);
    // ops::latch_sample(): the product of a float and a power of two is exact.
    const float clipped = fminf(fmaxf(isnan(p) ? 0.0f : p, -ops::kLatchMost), ops::kLatchMost);
    const long long sample = __float2ll_rn(clipped * (1 << ops::kLatchBits));
    atomicAdd(latch, static_cast<unsigned long long>(sample));
    // ops::latch_tally().
    const bool is_clipped = fabsf(p) > ops::kLatchMost;
    atomicAdd(latch + 1, is_clipped ? (1ull << ops::kClippedShift) + 1 : 1ull);
  }

  const TapParams<kPoints>& p_;
  Team& team_;
  float4* const fetched_;  // [kRuns][2][threads]
  const int width_;
  int token_ = 0;
  bool has_fetched_ = false;  // the next op's first vector is in shared memory, or on its way there
  // A bit for each point: something is done there; its rows are captured.
  unsigned active_ = 0;
  unsigned captured_ = 0;
  ops::TapEntry entry_ = {};  // of lane_point()
};

}  // namespace rudder::cuda
