// The ops of programs on the device: what they need to know of a row, and what they make of it.
// Formulas: tap/tap_op.h; features: tap_features.cuh. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/taps/taps.h"

namespace rudder::cuda {

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

__device__ inline bool fills_latch(tap::OpKind kind) {
  return kind == tap::OpKind::kScore || kind == tap::OpKind::kSense;
}

// What an op may need to know of a row: p = h . v1, p2 = h . v2, the gate's h . vg, and |h|^2.
struct TapSums {
  float p, p2, gate, squares;
};
struct WantedTapSums {
  bool p, p2, gate, squares;

  __device__ explicit WantedTapSums(const TapOpHead& op)
      : p(op.kind == tap::OpKind::kAxis || op.kind == tap::OpKind::kSwap ||
          op.kind == tap::OpKind::kRotate || op.kind == tap::OpKind::kAddRenorm ||
          fills_latch(op.kind)),
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

// v2 of these kinds, where there is one, says which elements the op is for (tap/tap_op.h).
__device__ inline bool can_be_for_some(tap::OpKind kind) {
  return kind == tap::OpKind::kPatch || kind == tap::OpKind::kAddNorm ||
         kind == tap::OpKind::kAddRenorm;
}
// `then` where `chosen` is not 0, else `other`.
__device__ inline Floats where(const Floats& chosen, Floats then, const Floats& other) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) then.v[j] = chosen.v[j] != 0.0f ? then.v[j] : other.v[j];
  return then;
}

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
      const float squares = fmaf(s * s, op.sum, fmaf(2.0f * s, p, sums.squares));
      if (op.lo > 0.0f && squares <= sums.squares) return {1.0f, s, 0.0f, false};
      if (squares <= 0.0f) return {};
      const float keep = fast_sqrt(__fdividef(sums.squares, squares));
      return {keep, keep * s, 0.0f, false};
    }
    case tap::OpKind::kScore:
    case tap::OpKind::kSense:
    case tap::OpKind::kFeature:  // tap_features.cuh
    case tap::OpKind::kEncode:   // encode.cu
    case tap::OpKind::kEncoded:
    case tap::OpKind::kCarried:  // taps.cuh
    case tap::OpKind::kExperts:  // of routers, which are not tapped here
      break;
  }
  return {};
}

__device__ inline void add_dot(float& sum, const Floats& a, const Floats& b) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) sum = fmaf(a.v[j], b.v[j], sum);
}

// What a program reads of its token, where an op needs it.
struct TokenTapState {
  const int32_t* since;         // TapBatchParams.since_prompt
  const int32_t* slot;          // of latches
  unsigned long long* latches;  // of all slots

  __device__ int since_prompt() const { return *since; }
  // Its sum, and its tally behind that.
  __device__ unsigned long long* latch(int32_t number) const {
    return latches + (int64_t{*slot} * tap::kNumLatches + number) * 2;
  }
};

// The schedule's factor.
__device__ inline float scheduled(tap::ScheduleKind schedule, const tap::TapOp& op,
                                  const TokenTapState& token) {
  if (schedule == tap::ScheduleKind::kConstant) return 1.0f;
  const int n = token.since_prompt();
  if (schedule == tap::ScheduleKind::kWindow) return n >= op.begin && n < op.end ? 1.0f : 0.0f;
  if (n >= op.end) return op.to;
  if (n <= op.begin) return op.from;
  const float part = __fdividef(static_cast<float>(int64_t{n} - op.begin),
                                static_cast<float>(int64_t{op.end} - op.begin));
  return fmaf(op.to - op.from, part, op.from);
}

// Of kControl, by what the token before left.
__device__ inline float controlled(const tap::TapOp& op, const TokenTapState& token) {
  const int before = token.since_prompt() - 1;
  if (before < -1) return 0.0f;
  const unsigned long long word = __ldcg(token.latch(op.latch) + (before & 1));
  // ops::is_reading_of() and reading_value().
  if (static_cast<int>(word >> ops::kReadingShift) != before + 2) return 0.0f;
  const float read = __uint_as_float(static_cast<unsigned>(word));
  return fminf(fmaxf(op.sharpness * (op.threshold - read), op.from), op.to);
}

// The gate's factor; `dot` is h . vg.
__device__ inline float opened(tap::GateKind gate, const tap::TapOp& op, float dot,
                               const TokenTapState& token) {
  if (gate == tap::GateKind::kNone) return 1.0f;
  if (gate == tap::GateKind::kControl) return controlled(op, token);
  float score = dot;
  if (gate == tap::GateKind::kScoreHard || gate == tap::GateKind::kScoreSoft) {
    if (token.since_prompt() < -1) return 0.0f;
    const ulonglong2 latch = __ldcg(reinterpret_cast<const ulonglong2*>(token.latch(op.latch)));
    if (latch.y == 0) return 0.0f;
    const float sum = __ll2float_rn(static_cast<long long>(latch.x));
    // The low half of the tally: ops::latch_samples().
    const float count = __uint2float_rn(static_cast<unsigned>(latch.y));
    score = __fdividef(sum * (1.0f / (1 << ops::kLatchBits)), count);
  }
  const float above = score - op.threshold;
  if (gate == tap::GateKind::kHard || gate == tap::GateKind::kScoreHard) {
    return above > 0.0f ? 1.0f : 0.0f;
  }
  return __fdividef(1.0f, 1.0f + __expf(-op.sharpness * above));
}

// Sums of whole numbers: the order in which tokens come does not matter.
__device__ inline void add_sample(unsigned long long* latch, float p) {
  // ops::latch_sample(): the product of a float and a power of two is exact.
  const float clipped = fminf(fmaxf(isnan(p) ? 0.0f : p, -ops::kLatchMost), ops::kLatchMost);
  const long long sample = __float2ll_rn(clipped * (1 << ops::kLatchBits));
  atomicAdd(latch, static_cast<unsigned long long>(sample));
  // ops::latch_tally().
  const bool is_clipped = fabsf(p) > ops::kLatchMost;
  atomicAdd(latch + 1, is_clipped ? (1ull << ops::kClippedShift) + 1 : 1ull);
}

// What kSense leaves for the token behind: ops::latch_reading().
__device__ inline void leave_reading(const tap::TapOp& op, float p, const TokenTapState& token) {
  const int n = token.since_prompt();
  const float f = p > op.lo ? fmaxf(fmaf(op.a, p, op.b), 0.0f) : 0.0f;
  const auto bits = static_cast<unsigned long long>(__float_as_uint(op.hi > 0.0f ? f : p));
  const auto whose = static_cast<unsigned long long>(n + 2);
  token.latch(op.latch)[n & 1] = whose << ops::kReadingShift | bits;
}

}  // namespace rudder::cuda
