// Taps on the device: looks up what a token's row asks for at the points that a kernel passes, runs
// the programs on a row that the registers of a team of threads hold, and copies captured rows to
// the ring. Included by .cu files only; formulas: tap/program.h; reference: testing/reference_taps.
//
// What it costs. A token of row 0 that is not captured: its row number, its capture set and a word
// of each point, loaded at once beside the row itself, and a branch. A steered token: then its
// program's place, its ops and their vectors, three loads that need one another; with few tokens
// they are all made while the kernel ahead still runs (tap.T9 allows it, see look_up()). An op
// reads its vectors, 4 bytes an element, and has one exchange between the threads for all its sums;
// kAdd and kPatch have none.
#pragma once

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/taps.h"

namespace rudder::cuda {

// Ops that are in shared memory at a time, of all points of a kernel together.
inline constexpr int kStagedTapOps = 16;

// What an op may need to know of a row: p = h . v1, p2 = h . v2, the gate's h . vg, and |h|^2.
struct TapSums {
  float p, p2, gate, squares;
};
struct WantedTapSums {
  bool p, p2, gate, squares;

  __device__ explicit WantedTapSums(const TapOpParams& op)
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
__device__ inline TapChange change_of(const TapOpParams& op, float s, const TapSums& sums) {
  const float p = sums.p;
  switch (op.kind) {
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

// Past L1. Both 16-byte aligned.
__device__ inline void copy_async(float4* shared, const float* from) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// For all copies that the thread has started.
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
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

// Of dynamic shared memory that the vectors of two ops need.
inline size_t tap_vector_bytes(int runs_per_thread, unsigned threads) {
  return size_t{2} * static_cast<size_t>(runs_per_thread) * threads * kRun * sizeof(float);
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
inline bool are_tables_aligned(const TapTableParams& table) {
  return is_aligned(table.ops) && is_aligned(table.latches) && is_aligned(table.captures, 8);
}
inline bool are_rows_aligned(const TapTableParams& table) {
  return is_aligned(table.vectors) && is_aligned(table.ring);
}

// What a token has to do at a point.
struct alignas(16) TapPoint {
  int32_t first, count;   // of its ops, in the table
  int32_t before, after;  // places of the row in the token's record; -1: not captured
};

// The programs of one token at the points of a kernel, and its captures. All threads of the team
// make the same calls: load(), look_up(), then at() for each point in turn.
//
// kRuns: runs of a row that a thread has. kAligned: as of load_run(), of vectors and ring.
template <typename Team, int kPoints, int kRuns, bool kAligned>
class TokenTaps {
 public:
  using Row = Floats[kRuns];
  struct Shared {
    alignas(16) TapOpParams ops[kStagedTapOps];
    TapPoint points[kPoints];
    int32_t first_number[kPoints];  // of a point's ops, counted over all points
    int64_t token;
    int32_t num_ops;
    int32_t record;  // of the token, in the ring
    int32_t slot;
  };

  // `fetched`: tap_vector_bytes() of dynamic shared memory.
  __device__ TokenTaps(const TapParams<kPoints>& params, Team& team, Shared& shared,
                       float4* fetched, int64_t width)
      : p_(params),
        team_(team),
        shared_(shared),
        width_(static_cast<int>(width)),
        fetched_(fetched) {}

  // Loads that nothing waits for yet: a token's row and set, and of the first threads each a point.
  __device__ void load(int64_t token) {
    row_ = p_.table.points != nullptr ? __ldcg(p_.batch.row + token) : 0;
    set_ = p_.table.captures != nullptr ? __ldcg(p_.batch.capture_set + token) : -1;
    const int point = my_point();
    armed_ = point >= 0 ? __ldcg(p_.table.armed + point) : 0;
  }

  // What the token has to do at each point. May run before dependency_wait(): all that it reads was
  // written by copies that the step's first kernel waited for in full, and the blocks of a kernel
  // start after all blocks of the kernel ahead of it have started, and so on back to that first
  // one. Its reads go past L1, which might hold what a step before this one left there.
  __device__ void look_up(int64_t token) {
    is_active_ = false;
    if (row_ == 0 && set_ < 0) return;
    __syncthreads();  // what a token before this one had here is done with
    look_up_point();
    if (threadIdx.x == 0) {
      shared_.token = token;
      shared_.slot = __ldcg(p_.batch.slot + token);
      shared_.record = set_ >= 0 ? __ldcg(p_.batch.capture_begin + token) : 0;
    }
    __syncthreads();
    int num_ops = 0;
#pragma unroll
    for (int i = 0; i < kPoints; ++i) {
      const TapPoint point = shared_.points[i];
      if (threadIdx.x == 0) shared_.first_number[i] = num_ops;
      num_ops += point.count;
      is_active_ = is_active_ || point.count > 0 || point.before >= 0 || point.after >= 0;
    }
    if (num_ops == 0) return;
    if (threadIdx.x == 0) shared_.num_ops = num_ops;
    stage(0, num_ops);
    fetch(0);
    prefetch();
  }

  __device__ bool is_active() const {
    return is_active_;
  }

  // After dependency_wait(): the row at a point is captured, steered and captured.
  __device__ void at(int number, Row& h) {
    if (!is_active_) return;
    const TapPoint point = shared_.points[number];
    if (point.before >= 0) capture(point.before, h);
    for (int i = 0; i < point.count; ++i) run_op(shared_.first_number[number] + i, h);
    if (point.after >= 0) capture(point.after, h);
  }
  // Two points at which the row is the same.
  __device__ void at_both(int first, Row& h) {
    if (!is_active_) return;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) at(first + i, h);
  }

 private:
  __device__ int column(int r) const {
    return team_.first_column() + r * team_.column_stride();
  }

  // The point that this thread looks up, or -1.
  __device__ int my_point() const {
    return threadIdx.x < kPoints ? p_.point[threadIdx.x] : -1;
  }
  __device__ void look_up_point() const {
    if (threadIdx.x >= kPoints) return;
    TapPoint found = {0, 0, -1, -1};
    if (armed_ != 0 && row_ != 0) {
      const int32_t word = __ldcg(p_.table.points + table_place(row_));
      found.first = word >> 8;
      found.count = word & 0xff;
    }
    if (armed_ != 0 && set_ >= 0) {
      const int2 places =
          __ldcg(reinterpret_cast<const int2*>(p_.table.captures) + table_place(set_));
      found.before = places.x;
      found.after = places.y;
    }
    shared_.points[threadIdx.x] = found;
  }
  __device__ int64_t table_place(int row) const {
    return int64_t{row} * p_.table.num_points + my_point();
  }

  // Place in the table of the token's op `number`, counted over all points.
  __device__ int op_place(int number) const {
    int place = 0;
#pragma unroll
    for (int i = 0; i < kPoints; ++i) {
      const TapPoint point = shared_.points[i];
      if (number >= 0 && number < point.count) place = point.first + number;
      number -= point.count;
    }
    return place;
  }

  // Brings the ops from `begin` on to shared memory; those that were there are done with. Ends with
  // a barrier of the block.
  __device__ void stage(int begin, int num_ops) {
    constexpr int kPieces = sizeof(TapOpParams) / sizeof(int4);
    const int pieces = min(num_ops - begin, kStagedTapOps) * kPieces;
    for (int j = static_cast<int>(threadIdx.x); j < pieces; j += static_cast<int>(blockDim.x)) {
      const TapOpParams* op = p_.table.ops + op_place(begin + j / kPieces);
      reinterpret_cast<int4*>(shared_.ops)[j] =
          __ldcg(reinterpret_cast<const int4*>(op) + j % kPieces);
    }
    __syncthreads();
  }

  // Vectors of the staged ops come to L2: a step's weights have driven them out since the last one.
  // A line is 32 floats, four threads' runs.
  __device__ void prefetch() const {
    if (threadIdx.x % 4 != 0) return;
    const int num_staged = min(shared_.num_ops, kStagedTapOps);
    for (int i = 0; i < num_staged; ++i) {
      const TapOpParams& op = shared_.ops[i];
      prefetch(op.v1);
      prefetch(op.v2);
      prefetch(op.gate_vector);
    }
  }
  __device__ void prefetch(int32_t vector) const {
    if (vector < 0) return;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      if (column(r) >= width_) continue;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(p_.table.vectors + vector + column(r)));
    }
  }

  // Starts the copy of the first vector of a staged op to the thread's own places in shared memory:
  // two sets of places in turn, so that an op's vector comes while the op before it runs.
  __device__ void fetch(int number) const {
    const int32_t vector = shared_.ops[number % kStagedTapOps].v1;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int i = column(r);
      if (i >= width_) continue;
      const float* from = p_.table.vectors + vector + i;
      if constexpr (kAligned) {
        copy_async(fetched(number, r, 0), from);
        copy_async(fetched(number, r, 1), from + 4);
      } else {
        Floats run = {};
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          if (i + j < width_) run.v[j] = __ldcg(from + j);
        }
        memcpy(fetched(number, r, 0), &run.v[0], sizeof(float4));
        memcpy(fetched(number, r, 1), &run.v[4], sizeof(float4));
      }
    }
  }
  // Threads next to each other have places next to each other.
  __device__ float4* fetched(int number, int r, int half) const {
    const int plane = (number % 2 * kRuns + r) * 2 + half;
    return fetched_ + plane * static_cast<int>(blockDim.x) + threadIdx.x;
  }
  // As zeros past the row's end, where nothing was fetched.
  __device__ Floats fetched_run(int number, int r) const {
    Floats out = {};
    if (column(r) >= width_) return out;
    memcpy(&out.v[0], fetched(number, r, 0), sizeof(float4));
    memcpy(&out.v[4], fetched(number, r, 1), sizeof(float4));
    return out;
  }
  __device__ Floats vector_run(int32_t vector, int r) const {
    const int i = column(r);
    return load_floats<kAligned>(p_.table.vectors + vector + i, width_ - i);
  }

  __device__ void capture(int place, const Row& h) const {
    Bf16* to =
        static_cast<Bf16*>(p_.table.ring) + (int64_t{shared_.record} + place) * kTapCaptureUnit;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int i = column(r);
      store_run<kAligned>(to + i, width_ - i, pack(h[r]));
    }
  }

  // Ops are run in the order of their numbers.
  __device__ void run_op(int number, Row& h) {
    const int staged = number % kStagedTapOps;
    if (staged == 0 && number > 0) {
      __syncthreads();
      stage(number, shared_.num_ops);
      fetch(number);
    }
    wait_for_copies();
    if (staged + 1 < kStagedTapOps && number + 1 < shared_.num_ops) fetch(number + 1);
    const TapOpParams& op = shared_.ops[staged];
    const bool is_score = op.kind == TapKind::kScore;
    const float s = is_score ? 0.0f : op.strength * scheduled(op);
    if (is_score ? since_prompt() >= 0 : s == 0.0f) return;
    const WantedTapSums wanted(op);
    TapSums sums = {};
    if (wanted.any()) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        if (wanted.p) add_dot(sums.p, h[r], fetched_run(number, r));
        if (wanted.p2) add_dot(sums.p2, h[r], vector_run(op.v2, r));
        if (wanted.gate) add_dot(sums.gate, h[r], vector_run(op.gate_vector, r));
        if (wanted.squares) add_dot(sums.squares, h[r], h[r]);
      }
      sums = team_.sum(sums, wanted);
    }
    if (is_score) {
      if (team_.is_leader()) add_sample(op, sums.p);
      return;
    }
    const float g = opened(op, sums.gate);
    if (g == 0.0f) return;
    TapChange change = change_of(op, s, sums);
    if (g != 1.0f) change = change.scaled(g);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      h[r] = change.applied(h[r], fetched_run(number, r));
      if (change.has_second) h[r] = change.second_applied(h[r], vector_run(op.v2, r));
    }
  }

  // Not looked up before the op that asks: a kernel of the step may have written it.
  __device__ int since_prompt() const {
    return __ldcg(p_.batch.since_prompt + shared_.token);
  }

  // The schedule's factor.
  __device__ float scheduled(const TapOpParams& op) const {
    if (op.schedule == TapSchedule::kConstant) return 1.0f;
    const int n = since_prompt();
    if (op.schedule == TapSchedule::kWindow) return n >= op.begin && n < op.end ? 1.0f : 0.0f;
    if (n >= op.end) return op.to;
    if (n <= op.begin) return op.from;
    const float part = __fdividef(static_cast<float>(int64_t{n} - op.begin),
                                  static_cast<float>(int64_t{op.end} - op.begin));
    return fmaf(op.to - op.from, part, op.from);
  }

  // The gate's factor.
  __device__ float opened(const TapOpParams& op, float dot) const {
    float score = dot;
    switch (op.gate) {
      case TapGate::kNone:
        return 1.0f;
      case TapGate::kHard:
      case TapGate::kSoft:
        break;
      case TapGate::kScoreHard:
      case TapGate::kScoreSoft: {
        if (since_prompt() < -1) return 0.0f;
        const ulonglong2 latch = __ldcg(reinterpret_cast<const ulonglong2*>(latch_of(op)));
        if (latch.y == 0) return 0.0f;
        const float sum = __ll2float_rn(static_cast<long long>(latch.x));
        score = __fdividef(sum * (1.0f / (1 << kTapLatchBits)), __ull2float_rn(latch.y));
        break;
      }
    }
    const float above = score - op.threshold;
    if (op.gate == TapGate::kHard || op.gate == TapGate::kScoreHard) {
      return above > 0.0f ? 1.0f : 0.0f;
    }
    return __fdividef(1.0f, 1.0f + __expf(-op.sharpness * above));
  }

  __device__ unsigned long long* latch_of(const TapOpParams& op) const {
    return p_.table.latches + (int64_t{shared_.slot} * kTapLatches + op.latch) * 2;
  }
  // Sums of whole numbers: the order in which tokens come does not matter.
  __device__ void add_sample(const TapOpParams& op, float p) const {
    unsigned long long* const latch = latch_of(op);
    // ops::latch_sample(): the product of a float and a power of two is exact.
    const float clipped = fminf(fmaxf(isnan(p) ? 0.0f : p, -kTapLatchMost), kTapLatchMost);
    const long long sample = __float2ll_rn(clipped * (1 << kTapLatchBits));
    atomicAdd(latch, static_cast<unsigned long long>(sample));
    atomicAdd(latch + 1, 1ull);
  }

  const TapParams<kPoints>& p_;
  Team& team_;
  Shared& shared_;
  const int width_;
  int row_ = 0;
  int set_ = -1;
  int armed_ = 0;  // of my_point()
  bool is_active_ = false;
  float4* const fetched_;  // [2][kRuns][2][threads] in shared memory
};

}  // namespace rudder::cuda
