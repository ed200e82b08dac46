// Runs of clamped features on the device (tap::OpKind::kFeature, formulas: tap/tap_op.h). The row
// lies in shared memory; each thread reads the part of it that it has, and takes its share of the
// products with the encoder rows of some ops at a time, whose loads are on the way together. Then
// some threads work out the ops' factors, and each adds the decoder rows to its part of the row.
// All vectors are asked for at once, once, and come to L2 side by side: while the kernel ahead
// still runs where a block has the row (prefetch_features), at the run's begin where a cluster has.
// So the team waits for itself four times a run and once more for every kTogether ops, and twice
// more where a dictionary has a norm. An op whose factor is 0 costs its encoder row alone.
//
// A run is a call: its registers are saved where there is one, and a row without features has none
// of them. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/taps/tap_ops.cuh"

namespace rudder::cuda {

// What the threads of a block tell each other of a run, by op; sums are over the block's part of
// the row.
struct FeatureShared {
  static constexpr int kOps = tap::kMaxOpsPerPoint + 1;
  static constexpr int kTogether = 8;
  int32_t encoder[kOps];      // TapOp.v2; kNoVector: the op reads a relay
  int32_t decoder[kOps];      // TapOp.v1; kNoVector: the op leaves a relay
  int32_t gate_vector[kOps];  // kNoVector: the gate reads no row
  float dot[kOps];            // h . v2
  float gate_dot[kOps];       // h . vg
  float factor[kOps];         // of v1
  float sum, squares;         // of h
  float off_squares;          // of h - mean
  float of_warp[2][kTogether][32];
};

struct FeatureRunArgs {
  const tap::TapOp* ops;
  int num_ops;
  const float* vectors;
  TokenTapState token;
  float* relays;  // the token's
  FeatureShared* shared;
  float4* row;  // shared memory: the block's part of the row, [kRuns][2][threads]; read and written
  int width;    // of the whole row
};

// What norms need of a row: its mean; |h - mean| / sqrt(n - 1); |h| / sqrt(n).
struct RowNorms {
  float mean, spread, length;
};

__device__ inline float edited_feature(tap::FeatureEdit edit, float f, float v) {
  switch (edit) {
    case tap::FeatureEdit::kSet:
      return v;
    case tap::FeatureEdit::kAdd:
      return f + v;
    case tap::FeatureEdit::kMultiply:
      return f * v;
    case tap::FeatureEdit::kMin:
      return fmaxf(f, v);
    case tap::FeatureEdit::kMax:
      return fminf(f, v);
  }
  return f;
}

// c (f' - f) of an op; `dot` is h . v2.
__device__ inline float feature_change(const tap::TapOp& op, float dot, const RowNorms& norms) {
  float y = dot;
  float back = 1.0f;
  if (op.norm == tap::FeatureNorm::kConstantNorm) {
    back = norms.length;
    y = back > 0.0f ? dot / back : 0.0f;
  } else if (op.norm == tap::FeatureNorm::kLayerNorm) {
    back = norms.spread;
    y = fmaf(-norms.mean, op.sum, dot) / (back + static_cast<float>(tap::kLayerNormEpsilon));
  }
  const float f = y > op.lo ? fmaxf(fmaf(op.a, y, op.b), 0.0f) : 0.0f;
  if (op.hi > 0.0f && f <= 0.0f) return 0.0f;
  return back * (edited_feature(op.edit, f, op.value) - f);
}

// Asks for `count` floats of a vector, whole 16 bytes; vectors are aligned.
__device__ inline void prefetch_vector(const float* vectors, int32_t vector, int first, int count) {
  if (vector == tap::kNoVector || count <= 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(vectors + vector + first),
               "r"(count * static_cast<int>(sizeof(float))));
}
// By all threads of a block, of `num` ops: asks for the vectors of features, and for the head of a
// dictionary that encode() will read. Nobody writes them during a step, so the kernel ahead may
// still run; ops are read past L1, which might hold what was there before an edit. A call, so that
// a row without features has none of its registers.
__device__ __noinline__ inline void prefetch_features(const tap::TapOp* ops, int num,
                                                      const float* vectors, int width) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < num; i += static_cast<int>(blockDim.x)) {
    const int4* const words = reinterpret_cast<const int4*>(ops + i);
    const auto kind = static_cast<tap::OpKind>(__ldcg(words).x);
    const int4 offsets = __ldcg(words + 1);  // v1, v2, gate_vector, strength
    if (kind == tap::OpKind::kEncode) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(vectors + offsets.x));
    }
    if (kind != tap::OpKind::kFeature) continue;
    prefetch_vector(vectors, offsets.y, 0, width);
    prefetch_vector(vectors, offsets.x, 0, width);
    prefetch_vector(vectors, offsets.z, 0, width);
  }
}

// Template parameters as of TokenTaps.
template <typename Team, int kRuns, bool kAligned>
class FeatureRun {
 public:
  __device__ explicit FeatureRun(const FeatureRunArgs& args)
      : a_(args),
        shared_(*args.shared),
        thread_(static_cast<int>(threadIdx.x)),
        threads_(static_cast<int>(blockDim.x)) {}

  // All ops change the row as it is now.
  __device__ void apply() {
    share_ops();
    if (has_norm_) take_sums();
    take_dots(shared_.encoder, shared_.dot);
    if (has_gate_) take_dots(shared_.gate_vector, shared_.gate_dot);
    Team::wait_for_all();
    RowNorms norms = {};
    if (has_norm_) norms = take_norms();
#pragma unroll 1
    for (int i = thread_; i < a_.num_ops; i += threads_) {
      const float gate_dot = has_gate_ ? Team::over_blocks(shared_.gate_dot + i) : 0.0f;
      const float s = strength(a_.ops[i], gate_dot);
      const float dot = Team::over_blocks(shared_.dot + i);
      shared_.factor[i] = s == 0.0f ? 0.0f : s * change_by(i, dot, norms);
      if (shared_.decoder[i] == tap::kNoVector) leave(i);
    }
    Team::wait_for_all();
    add_decoders();
    __syncthreads();  // a run behind this one may begin
  }

 private:
  __device__ int column(int r, int thread) const {
    return Team::first_column() + r * Team::column_stride() + (thread - thread_) * kRun;
  }
  __device__ float4* row_half(int r, int half, int thread) const {
    return a_.row + (2 * r + half) * threads_ + thread;
  }
  __device__ Floats row_run(int r, int thread) const {
    Floats out;
    memcpy(&out.v[0], row_half(r, 0, thread), sizeof(float4));
    memcpy(&out.v[4], row_half(r, 1, thread), sizeof(float4));
    return out;
  }
  __device__ Floats vector_run(int32_t vector, int r, int thread) const {
    const int i = column(r, thread);
    return load_floats<kAligned>(a_.vectors + vector + i, a_.width - i);
  }

  // Where the ops' vectors are. The row is seen by all behind it.
  __device__ void share_ops() {
    bool has_norm = false;
    bool has_gate = false;
#pragma unroll 1
    for (int i = thread_; i < a_.num_ops; i += threads_) {
      const tap::TapOp& op = a_.ops[i];
      shared_.encoder[i] = op.v2;
      shared_.decoder[i] = op.v1;
      const bool is_probe = op.gate == tap::GateKind::kHard || op.gate == tap::GateKind::kSoft;
      shared_.gate_vector[i] = is_probe ? op.gate_vector : tap::kNoVector;
      if constexpr (!Team::kAsksAhead) {
        prefetch(op.v2);
        prefetch(op.v1);
        prefetch(shared_.gate_vector[i]);
      }
      has_norm = has_norm || op.norm != tap::FeatureNorm::kNone;
      has_gate = has_gate || is_probe;
    }
    if (__syncthreads_or(has_norm || has_gate ? 1 : 0) == 0) return;
    has_norm_ = __syncthreads_or(has_norm ? 1 : 0) != 0;
    has_gate_ = __syncthreads_or(has_gate ? 1 : 0) != 0;
  }

  // add(sum, run, thread) over the block's part of the row, by the first warp: to all its lanes.
  template <typename Add>
  __device__ float first_warp_total(Add add) const {
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
#pragma unroll 4
      for (int thread = thread_ % 32; thread < threads_; thread += 32) add(sum, r, thread);
    }
    return warp_sum(sum);
  }

  __device__ void take_sums() const {
    if (thread_ >= 32) return;
    const float sum = first_warp_total([&](float& total, int r, int thread) {
      const Floats h = row_run(r, thread);
#pragma unroll
      for (const float v : h.v) total += v;
    });
    const float squares = first_warp_total([&](float& total, int r, int thread) {
      const Floats h = row_run(r, thread);
      add_dot(total, h, h);
    });
    if (thread_ != 0) return;
    shared_.sum = sum;
    shared_.squares = squares;
  }
  __device__ RowNorms take_norms() const {
    const auto count = static_cast<float>(a_.width);
    const float mean = Team::over_blocks(&shared_.sum) / count;
    if (thread_ < 32) {
      const float squares = first_warp_total([&](float& total, int r, int thread) {
        const Floats h = row_run(r, thread);
        const int left = a_.width - column(r, thread);
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          const float off = j < left ? h.v[j] - mean : 0.0f;
          total = fmaf(off, off, total);
        }
      });
      if (thread_ == 0) shared_.off_squares = squares;
    }
    Team::wait_for_all();
    const float off_squares = Team::over_blocks(&shared_.off_squares);
    return {mean, a_.width > 1 ? sqrtf(off_squares / (count - 1.0f)) : 0.0f,
            sqrtf(Team::over_blocks(&shared_.squares) / count)};
  }

  // h . vectors[i] over the block's part of the row, for every op; 0 without a vector. The order of
  // a sum is that of the threads.
  __device__ void take_dots(const int32_t* vectors, float* dots) {
    constexpr int kTogether = FeatureShared::kTogether;
    constexpr int kAtOnce = 4;  // whose loads are on the way together
    static_assert(kTogether % kAtOnce == 0);
    const int warp = thread_ / 32;
    const int lane = thread_ % 32;
#pragma unroll 1
    for (int first = 0; first < a_.num_ops; first += kTogether) {
      const int count = min(kTogether, a_.num_ops - first);
      // Two in turn: who writes one again has passed the barrier that all reach after they read it.
      float(&of_warp)[kTogether][32] = shared_.of_warp[turn_];
      turn_ ^= 1;
#pragma unroll 1
      for (int begin = 0; begin < count; begin += kAtOnce) {
        float sums[kAtOnce] = {};
        add_dots(vectors + first + begin, count - begin, sums);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const float sum = warp_sum(sums[k]);
          if (lane == 0) of_warp[begin + k][warp] = sum;
        }
      }
      __syncthreads();
#pragma unroll 1
      for (int i = warp; i < count; i += threads_ / 32) {
        const float sum = warp_sum(lane < threads_ / 32 ? of_warp[i][lane] : 0.0f);
        if (lane == 0) dots[first + i] = sum;
      }
    }
  }
  // This thread's part of each.
  template <int kAtOnce>
  __device__ void add_dots(const int32_t* vectors, int count, float (&sums)[kAtOnce]) const {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      Floats v[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int32_t vector = k < count ? vectors[k] : tap::kNoVector;
        v[k] = {};
        if (vector != tap::kNoVector) v[k] = vector_run(vector, r, thread_);
      }
      const Floats h = row_run(r, thread_);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) add_dot(sums[k], h, v[k]);
    }
  }
  // The block's part of a vector, to L2.
  __device__ void prefetch(int32_t vector) const {
    if (!kAligned) return;
    const int first = column(0, 0);
    prefetch_vector(a_.vectors, vector, first, min(a_.width - first, kRuns * threads_ * kRun));
  }

  // s g
  __device__ float strength(const tap::TapOp& op, float gate_dot) const {
    const TapOpHead head(op);
    const float s = head.strength * scheduled(head.schedule, op, a_.token);
    return s == 0.0f ? 0.0f : s * opened(head.gate, op, gate_dot, a_.token);
  }

  __device__ float change_by(int i, float dot, const RowNorms& norms) const {
    if (shared_.encoder[i] == tap::kNoVector) return __ldcg(a_.relays + a_.ops[i].relay);
    return feature_change(a_.ops[i], dot, norms);
  }
  // The factor is for other points.
  __device__ void leave(int i) const {
    if (Team::is_first_block()) __stcg(a_.relays + a_.ops[i].relay, shared_.factor[i]);
    shared_.factor[i] = 0.0f;
  }

  // Several at a time: their loads are on the way together.
  __device__ void add_decoders() const {
    constexpr int kAtOnce = 4;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      Floats h = row_run(r, thread_);
#pragma unroll 1
      for (int first = 0; first < a_.num_ops; first += kAtOnce) {
        float factor[kAtOnce];
        Floats v1[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          factor[k] = first + k < a_.num_ops ? shared_.factor[first + k] : 0.0f;
          v1[k] = {};
          if (factor[k] != 0.0f) v1[k] = vector_run(shared_.decoder[first + k], r, thread_);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (factor[k] == 0.0f) continue;
#pragma unroll
          for (int j = 0; j < kRun; ++j) h.v[j] = fmaf(factor[k], v1[k].v[j], h.v[j]);
        }
      }
      memcpy(row_half(r, 0, thread_), &h.v[0], sizeof(float4));
      memcpy(row_half(r, 1, thread_), &h.v[4], sizeof(float4));
    }
  }

  const FeatureRunArgs& a_;
  FeatureShared& shared_;
  const int thread_;
  const int threads_;
  bool has_norm_ = false;
  bool has_gate_ = false;
  int turn_ = 0;
};

template <typename Team, int kRuns, bool kAligned>
__device__ __noinline__ void run_features(const FeatureRunArgs args) {
  FeatureRun<Team, kRuns, kAligned>(args).apply();
}

}  // namespace rudder::cuda
