// Taps on the device: looks up what a token's row asks for at the points that a kernel passes, runs
// the programs on a row that the registers of a team of threads hold, and copies captured rows to
// the ring. Included by .cu files only; formulas: tap/tap_op.h; reference: testing/reference_taps.
//
// What it costs. Most steering adds a vector, and a kernel that does no more is a few instructions
// longer than the plain one: programs beside them are twenty times that, and a row would jump over
// them four times. So there are kernels for steps of plain adds alone. A token without a program
// and a capture: 16 bytes a point, asked for before the kernel ahead has ended, and a branch. A
// steered one: then its op's vector, asked for behind the row, so that the two come together; the
// kernels of plain adds ask before the kernel ahead has ended. kAdd and kPatch have no sums; all
// sums of another op are one exchange between the threads; a run of features has one or a few
// (tap_features_ahead.cuh, tap_features.cuh). A captured one: two reads, one behind the other, of
// where its row goes.
#pragma once

#include <type_traits>

#include "rudder/cuda/kernels/taps/tap_features_ahead.cuh"

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

// A row is one block's: thread t has the runs t, t + threads, ... of it.
class BlockTeam {
 public:
  struct Shared {
    TapSums of_warp[2][32];
  };

  // prefetch() has asked for the vectors of features.
  static constexpr bool kAsksAhead = true;

  __device__ explicit BlockTeam(Shared& shared) : shared_(shared) {}

  __device__ static int first_column() { return static_cast<int>(threadIdx.x) * kRun; }
  __device__ static int column_stride() { return static_cast<int>(blockDim.x) * kRun; }
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

  __device__ static bool is_first_block() { return true; }
  // What its threads have written to shared memory before is seen by all after.
  __device__ static void wait_for_all() { __syncthreads(); }
  // The sum over the team's blocks of what each has there in shared memory.
  __device__ static float over_blocks(const float* part) { return *part; }

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
  constexpr size_t kAlwaysAllowed = 38 * 1024;
  static_assert(kAlwaysAllowed + sizeof(FeatureShared) + 1024 <= 48 * 1024);
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
// kTakesAhead: load_features() may be called; of one run a thread.
template <typename Team, int kPoints, int kRuns, bool kAligned, bool kOnlyAdds,
          bool kTakesAhead = false>
class TokenTaps {
 public:
  using Row = Floats[kRuns];

  // `fetched`: tap_vector_bytes() of shared memory.
  __device__ TokenTaps(const TapParams<kPoints>& params, Team& team, FeatureShared& features,
                       float4* fetched, int64_t width)
      : p_(params),
        team_(team),
        features_(features),
        fetched_(fetched),
        width_(static_cast<int>(width)) {}

  // Of the token that is looked up next, when the last one has passed all points: loads that
  // nothing waits for yet. They may stand before dependency_wait() (tap.T9).
  __device__ void load(int64_t token) {
    entry_ = {};
    if (lane_point() >= 0) {
      entry_ = load_early(p_.batch.entries + token * p_.table.num_points + lane_point());
    }
  }

  // Asks for what its features need, where the team asks ahead; behind load(), and perhaps before
  // dependency_wait(): ops and vectors are as a step began.
  __device__ void prefetch() const {
    if constexpr (!kOnlyAdds && kAligned) {
      unsigned steered = __ballot_sync(kAllLanes, entry_.ops != 0);
#pragma unroll 1
      for (; steered != 0; steered &= steered - 1) {
        const int ops = __shfl_sync(kAllLanes, entry_.ops, __ffs(steered) - 1);
        prefetch_features(p_.table.ops + (ops >> 8), ops & 0xff, p_.table.vectors, width_);
      }
    }
  }

  // The ops of a point that begins with clamped features; behind load(), and perhaps before
  // dependency_wait(), as prefetch().
  __device__ void load_features(FeaturesAheadShared& shared) {
    if (p_.batch.is_behind_encode) return;
    const unsigned begins =
        __ballot_sync(kAllLanes, entry_.ops != 0 && entry_.vector == tap::kNoVector);
    if (begins == 0) return;
    const int number = __ffs(begins) - 1;
    const int ops = __shfl_sync(kAllLanes, entry_.ops, number);
    ahead_.run.load(shared, p_.table.ops + (ops >> 8), ops & 0xff, p_.table.vectors, column(0),
                    width_);
    if (ahead_.run.count() == 0) return;
    ahead_.shared = &shared;
    ahead_.number = number;
  }

  // The vector of the first op, where the kernel only adds; behind load(), and before
  // dependency_wait(), as prefetch(): while weights stream, a vector comes from memory, later than
  // the row.
  __device__ void fetch_first() {
    static_assert(kOnlyAdds && kAligned);
    const unsigned steered = __ballot_sync(kAllLanes, entry_.ops != 0);
    if (steered != 0) fetch(__shfl_sync(kAllLanes, entry_.vector, __ffs(steered) - 1));
  }

  // What the loaded token has to do; behind dependency_wait() and behind the loads of the row,
  // which then need not wait for the first op's vector.
  __device__ void look_up(int token) {
    token_ = token;
    if constexpr (!kOnlyAdds) {
      const bool encodes = (entry_.flags & ops::TapEntry::kEncodes) != 0;
      if (p_.batch.is_behind_encode && !encodes) entry_ = {};
    }
    const unsigned steered = __ballot_sync(kAllLanes, entry_.ops != 0);
    if (steered != 0) {
      const int32_t vector = __shfl_sync(kAllLanes, entry_.vector, __ffs(steered) - 1);
      has_fetched_ = vector != tap::kNoVector;
      if (kAligned && !kOnlyAdds && has_fetched_) fetch(vector);
    }
    captured_ = __ballot_sync(kAllLanes, (entry_.flags & ops::TapEntry::kCaptured) != 0);
    active_ = steered | captured_;
    // In one word, which costs a register less: vectors are aligned.
    entry_.vector |= entry_.flags & ops::TapEntry::kPlainAdd;
  }

  __device__ bool is_active() const {
    return active_ != 0;
  }

  // The row at a point is captured, steered and captured.
  __device__ void at(int number, Row& h) {
    if ((active_ >> number & 1) == 0) return;
    const bool is_captured = (captured_ >> number & 1) != 0;
    if (__builtin_expect(is_captured, 0)) capture_before(number, h);
    const int ops = __shfl_sync(kAllLanes, entry_.ops, number);
    if (ops != 0) {
      if constexpr (kOnlyAdds) {
        add_plain(number, h);
      } else {
        run_program(number, ops, h);
      }
    }
    if (__builtin_expect(is_captured, 0)) capture_after(number, h);
  }
  // Two points at which the row is the same; `rounds`: to bf16, between them.
  __device__ void at_both(int first, bool rounds, Row& h) {
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      at(first + i, h);
#pragma unroll
      for (Floats& run : h) {
        if (rounds) run = rounded(run);
      }
    }
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffu;
  static_assert(!kTakesAhead || (Team::kAsksAhead && kRuns == 1 && kAligned && !kOnlyAdds));

  // How the program of the point `number` begins; -1: of none.
  struct Ahead {
    FeaturesAhead run;
    FeaturesAheadShared* shared = nullptr;
    int number = -1;
  };
  struct NoneAhead {};

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

  // What stands behind an encode has the point's last row, what stands in front of it the first.
  __device__ void capture_before(int number, const Row& h) const {
    if (kOnlyAdds || !p_.batch.is_behind_encode) capture(number, 0, h);
  }
  __device__ void capture_after(int number, const Row& h) const {
    if constexpr (!kOnlyAdds) {
      const int flags = __shfl_sync(kAllLanes, entry_.flags, number);
      if ((flags & ops::TapEntry::kEncodes) != 0 && !p_.batch.is_behind_encode) return;
    }
    capture(number, 1, h);
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
    bool is_told = vector != tap::kNoVector && (vector & 1) != 0;
    const tap::TapOp* const end = op + (ops & 0xff);
    if constexpr (kTakesAhead) {
      if (number == ahead_.number) {
        float* const relays = p_.table.relays + int64_t{p_.batch.token[token_]} * tap::kNumRelays;
        ahead_.run.apply(*ahead_.shared, h[0], token_state(), relays);
        op += ahead_.run.count();
      }
    }
    if (__builtin_expect(p_.batch.is_behind_encode, 0)) {
      drop_fetched();
      is_told = false;
      while (op < end && op->kind != tap::OpKind::kEncode) ++op;
      while (op < end && op->kind == tap::OpKind::kEncode) op += op->run;
    }
#pragma unroll 1
    while (op < end) {
      const TapOpHead head = is_told ? TapOpHead(vector - 1, strength) : TapOpHead(*op);
      is_told = false;
      if (__builtin_expect(head.kind == tap::OpKind::kFeature, 0)) {
        const int n = op->run;
        clamp_features(op, n, h);
        op += n;
        continue;
      }
      if (__builtin_expect(head.kind == tap::OpKind::kEncode, 0)) {  // the rest is behind that
        drop_fetched();
        return;
      }
      if (__builtin_expect(head.kind == tap::OpKind::kCarried, 0)) {
        take_carried(h);
        ++op;
        continue;
      }
      run_op(head, *op, h);
      ++op;
    }
  }

  // Nothing is on its way to where vectors go any more.
  __device__ void drop_fetched() {
    has_fetched_ = false;
    wait_for_copies();
  }

  __device__ void take_carried(Row& h) const {
    const float* const row = p_.table.carried + int64_t{p_.batch.token[token_]} * width_;
#pragma unroll
    for (int r = 0; r < kRuns; ++r)
      h[r] = load_floats<kAligned>(row + column(r), width_ - column(r));
  }

  // A run of n ops. The row goes where vectors go.
  __device__ void clamp_features(const tap::TapOp* ops, int n, Row& h) {
    drop_fetched();
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      memcpy(fetched(r, 0), &h[r].v[0], sizeof(float4));
      memcpy(fetched(r, 1), &h[r].v[4], sizeof(float4));
    }
    run_features<Team, kRuns, kAligned>(
        {ops, n, p_.table.vectors, token_state(),
         p_.table.relays + int64_t{p_.batch.token[token_]} * tap::kNumRelays, &features_, fetched_,
         width_});
#pragma unroll
    for (int r = 0; r < kRuns; ++r) h[r] = fetched_run(r);
  }

  __device__ void run_op(const TapOpHead& head, const tap::TapOp& op, Row& h) {
    need(head.v1);
    const auto v1 = [&](int r) { return first_vector(head.v1, r); };
    const bool is_score = head.kind == tap::OpKind::kScore;
    const bool fills = fills_latch(head.kind);
    const TokenTapState token = token_state();
    const float s = fills ? 0.0f : head.strength * scheduled(head.schedule, op, token);
    if (!fills && s == 0.0f) return;
    if (fills && (is_score ? token.since_prompt() >= 0 : token.since_prompt() < -1)) return;
    const WantedTapSums wanted(head);
    const bool is_for_some = can_be_for_some(head.kind) && op.v2 != tap::kNoVector;
    TapSums sums = {};
    if (wanted.any()) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        if (wanted.p) add_dot(sums.p, h[r], v1(r));
        if (wanted.p2) add_dot(sums.p2, h[r], vector_run(op.v2, r));
        if (wanted.gate) add_dot(sums.gate, h[r], vector_run(op.gate_vector, r));
        if (wanted.squares) {
          const Floats part = is_for_some ? where(vector_run(op.v2, r), h[r], Floats{}) : h[r];
          add_dot(sums.squares, part, part);
        }
      }
      sums = team_.sum(sums, wanted);
    }
    if (fills) {
      if (!team_.is_leader()) return;
      if (is_score) {
        add_sample(token.latch(op.latch), sums.p);
      } else {
        leave_reading(op, sums.p, token);
      }
      return;
    }
    const float g = opened(head.gate, op, sums.gate, token);
    if (g == 0.0f) return;
    TapChange change = change_of(head.kind, op, s, sums);
    if (g != 1.0f) change = change.scaled(g);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const Floats changed = change.applied(h[r], v1(r));
      h[r] = is_for_some ? where(vector_run(op.v2, r), changed, h[r]) : changed;
      if (change.has_second) h[r] = change.second_applied(h[r], vector_run(op.v2, r));
    }
  }

  __device__ TokenTapState token_state() const {
    return {p_.batch.since_prompt + token_, p_.batch.slot + token_, p_.table.latches};
  }

  const TapParams<kPoints>& p_;
  Team& team_;
  FeatureShared& features_;
  float4* const fetched_;  // [kRuns][2][threads]
  const int width_;
  int token_ = 0;
  std::conditional_t<kTakesAhead, Ahead, NoneAhead> ahead_;
  bool has_fetched_ = false;  // the next op's first vector is in shared memory, or on its way there
  // A bit for each point: something is done there; its rows are captured.
  unsigned active_ = 0;
  unsigned captured_ = 0;
  ops::TapEntry entry_ = {};  // of lane_point()
};

}  // namespace rudder::cuda
