// The recurrence of one value head of one sequence, token by token (ops::RecurArgs), by a block for
// some of its columns. A warp has 8 * kColumns columns: lane (k, c) has kColumns of them, and of
// each 16 keys four. What a token asks for is prepared in shared memory, some tokens at once, while
// those in front of them are walked. With D = diag(exp(g)):
//   out = q^T D S + (q . k) d + skip * v;  d = beta * (v - k^T D S);  S = D S + k d^T
// which is the formula with both sums over the state that the token finds, so that the next token
// waits for one of them alone. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/states/chunk_runs.cuh"
#include "rudder/cuda/kernels/states/state_part.cuh"

namespace rudder::cuda {

inline constexpr int kRecurWarps = 4;
inline constexpr int kRecurThreads = 32 * kRecurWarps;
inline constexpr int kKeyLanes = 4;
inline constexpr int kColumnLanes = 8;

// kKeysOfThis: a multiple of 32, the keys that a warp has room for.
template <int kKeysOfThis, int kColumnsOfThis, bool kDeltaOfThis, bool kByChannelOfThis>
struct RecurShape {
  static constexpr int kKeys = kKeysOfThis;
  static constexpr int kColumns = kColumnsOfThis;
  static constexpr bool kDelta = kDeltaOfThis;
  static constexpr bool kByChannel = kByChannelOfThis;
  static constexpr int kOfLane = kKeys / kKeyLanes;
  static constexpr int kOfWarp = kColumns * kColumnLanes;
  static constexpr int kOfBlock = kOfWarp * kRecurWarps;
  static constexpr int kTokens = kColumns > 1 ? 4 : kKeys > 128 ? 8 : 16;  // prepared at once
  static constexpr int kEach = kTokens / kRecurWarps;                      // by a warp
  static constexpr int kRaw = kKeys / 32;  // keys of a lane while they are prepared
  static constexpr int kFloats = kOfLane * kColumns;
  static constexpr int kBlocks = kFloats >= 128 ? 2 : kFloats >= 64 ? 3 : 4;  // of a multiprocessor
};

template <typename Shape>
struct alignas(16) RecurShared {
  static constexpr int kChannels = Shape::kByChannel ? Shape::kKeys : 4;
  float q[Shape::kTokens][Shape::kKeys];  // by channel: times the decay
  float k[Shape::kTokens][Shape::kKeys];
  float decayed_k[Shape::kTokens][kChannels];  // by channel alone, as `decays`
  float decays[Shape::kTokens][kChannels];
  float v[Shape::kTokens][Shape::kOfBlock];
  float decay[Shape::kTokens];
  float beta[Shape::kTokens];
  float qk[Shape::kTokens];
};

template <typename Shape>
class RecurBlock {
 public:
  __device__ RecurBlock(const RecurParams& p, RecurShared<Shape>& shared)
      : p_(p),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        head_(static_cast<int>(blockIdx.y)),
        key_head_(head_ / (p.value_heads / p.key_heads)),
        block_column_(static_cast<int>(blockIdx.x) * Shape::kOfBlock),
        column_(block_column_ + warp_ * Shape::kOfWarp + lane_ % kColumnLanes * Shape::kColumns),
        has_columns_(column_ < p.value_dim) {
    rate_ = expf(p.a_log[head_]);
    step_bias_ = Shape::kByChannel ? 0.0f : p.step_bias[head_];
    skip_ = p.skip == nullptr ? 0.0f : p.skip[head_];
  }

  __device__ void run(int seq) {
    const StatePart part = load_part(p_.state, seq);
    if (part.count <= 0 || (p_.chunks != nullptr && goes_by_chunks(part))) return;
    load_state(part);
    for (int live = 0; live < 2; ++live) {
      walk(part, live != 0);
      if (part.of_pool != nullptr && part.has_drafts == (live == 0)) store_state(part);
    }
    if (blockIdx.x == 0 && head_ == 0 && threadIdx.x == 0) note_if_alone(p_.state, part);
  }

 private:
  // What a lane has read of a token.
  struct Raw {
    float q[Shape::kRaw];
    float k[Shape::kRaw];
    float a[Shape::kByChannel ? Shape::kRaw : 1];
    float v[Shape::kColumns];
    float b;
  };

  // The key of the lane's i-th row of the state.
  __device__ int key_of(int i) const { return i / 4 * 16 + lane_ / kColumnLanes * 4 + i % 4; }
  __device__ float* column_of(const StatePart& part) const {
    return part.state() + int64_t{head_} * p_.key_dim * p_.value_dim + column_;
  }

  __device__ void load_state(const StatePart& part) {
#pragma unroll
    for (int i = 0; i < Shape::kOfLane; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::kColumns; ++j) state_[i][j] = 0.0f;
    }
    if (part.of_pool == nullptr || !has_columns_ || part.position == 0) return;
    const float* const from = column_of(part);
#pragma unroll
    for (int i = 0; i < Shape::kOfLane; ++i) {
      if (key_of(i) >= p_.key_dim) continue;
      const float* const row = from + int64_t{key_of(i)} * p_.value_dim;
      if constexpr (Shape::kColumns == 4) {
        const float4 four = __ldcs(reinterpret_cast<const float4*>(row));
        state_[i][0] = four.x;
        state_[i][1] = four.y;
        state_[i][2] = four.z;
        state_[i][3] = four.w;
      } else if constexpr (Shape::kColumns == 2) {
        const float2 two = __ldcs(reinterpret_cast<const float2*>(row));
        state_[i][0] = two.x;
        state_[i][1] = two.y;
      } else {
        state_[i][0] = __ldcs(row);
      }
    }
  }

  __device__ void store_state(const StatePart& part) const {
    if (!has_columns_) return;
    float* const to = column_of(part);
#pragma unroll
    for (int i = 0; i < Shape::kOfLane; ++i) {
      if (key_of(i) >= p_.key_dim) continue;
      float* const row = to + int64_t{key_of(i)} * p_.value_dim;
      if constexpr (Shape::kColumns == 4) {
        __stcs(reinterpret_cast<float4*>(row),
               make_float4(state_[i][0], state_[i][1], state_[i][2], state_[i][3]));
      } else if constexpr (Shape::kColumns == 2) {
        __stcs(reinterpret_cast<float2*>(row), make_float2(state_[i][0], state_[i][1]));
      } else {
        __stcs(row, state_[i][0]);
      }
    }
  }

  // Over the tokens of the step, or with live = false over the kept rows that were accepted.
  __device__ void walk(const StatePart& part, bool live) {
    const int count = live ? part.count : part.accepted;
    Raw raw[Shape::kEach];
    if (count > 0) fetch(part, live, 0, count, raw);
    for (int begin = 0; begin < count; begin += Shape::kTokens) {
      prepare(begin, count, raw);
      __syncthreads();
      if (begin + Shape::kTokens < count) fetch(part, live, begin + Shape::kTokens, count, raw);
      const int size = min(Shape::kTokens, count - begin);
      for (int i = 0; i < size; ++i) step(i, live ? part.begin + begin + i : -1);
      __syncthreads();  // before the next ones are prepared
    }
  }

  __device__ void fetch(const StatePart& part, bool live, int begin, int count,
                        Raw (&raw)[Shape::kEach]) const {
#pragma unroll
    for (int n = 0; n < Shape::kEach; ++n) {
      const int t = begin + warp_ + n * kRecurWarps;
      if (t >= count) continue;
      if (live) {
        const int64_t token = int64_t{part.begin} + t;
        const auto* const qkv = static_cast<const Bf16*>(p_.qkv) + token * p_.qkv_stride;
        const auto* const gates = static_cast<const Bf16*>(p_.gates.rows) + token * p_.gates.stride;
        const auto* const of_b =
            static_cast<const Bf16*>(p_.gates.b_rows) + token * p_.gates.b_stride;
        read(qkv + p_.q_begin, qkv + p_.k_begin, qkv + p_.v_begin, gates + p_.gates.a_begin,
             p_.gates.b_begin < 0 ? nullptr : of_b + p_.gates.b_begin, raw[n]);
      } else {
        const float* const q = part.kept + t * p_.state.row_stride;
        const float* const k = q + p_.key_heads * p_.key_dim;
        const float* const v = k + p_.key_heads * p_.key_dim;
        const float* const a = v + p_.value_heads * p_.value_dim;
        read(q, k, v, a,
             p_.gates.b_begin < 0 ? nullptr
                                  : a + p_.value_heads * (Shape::kByChannel ? p_.key_dim : 1),
             raw[n]);
      }
    }
  }

  __device__ static float number(float x) {
    return x;
  }
  __device__ static float number(Bf16 x) {
    return __bfloat162float(x);
  }

  template <typename T>
  __device__ void read(const T* q, const T* k, const T* v, const T* a, const T* b, Raw& raw) const {
#pragma unroll
    for (int r = 0; r < Shape::kRaw; ++r) {
      const int key = min(lane_ + 32 * r, p_.key_dim - 1);
      raw.q[r] = number(q[key_head_ * p_.key_dim + key]);
      raw.k[r] = number(k[key_head_ * p_.key_dim + key]);
      if constexpr (Shape::kByChannel) raw.a[r] = number(a[head_ * p_.key_dim + key]);
      if (lane_ + 32 * r > key) raw.q[r] = raw.k[r] = 0.0f;
    }
    if constexpr (!Shape::kByChannel) raw.a[0] = number(a[head_]);
    raw.b = b == nullptr ? 0.0f : number(b[head_]);
#pragma unroll
    for (int j = 0; j < Shape::kColumns; ++j) {
      const int column = min(block_column_ + lane_ + 32 * j, p_.value_dim - 1);
      raw.v[j] = number(v[head_ * p_.value_dim + column]);
    }
  }

  __device__ float step_of(float a, float bias) const {
    return fminf(fmaxf(softplus(__fadd_rn(a, bias)), p_.step_low), p_.step_high);
  }
  __device__ float decay_of(float step) const {
    return expf(-__fmul_rn(rate_, step));
  }
  __device__ float decay_above_floor(float a, float bias) const {
    return expf(__fmul_rn(p_.gates.decay_floor, sigmoid(__fmul_rn(rate_, __fadd_rn(a, bias)))));
  }

  // The factor by which a row's length becomes `length`.
  __device__ static float unit_factor(const float (&x)[Shape::kRaw], float length) {
    float square = 0.0f;
#pragma unroll
    for (const float value : x) square = fmaf(value, value, square);
    return __fdiv_rn(length, sqrtf(__fadd_rn(warp_sum(square), kLengthEps)));
  }

  __device__ void prepare(int begin, int count, Raw (&raw)[Shape::kEach]) const {
#pragma unroll
    for (int n = 0; n < Shape::kEach; ++n) {
      const int i = warp_ + n * kRecurWarps;
      if (begin + i >= count) continue;
      Raw& of = raw[n];
      if constexpr (Shape::kDelta) {
        const float of_q = unit_factor(of.q, 1.0f / sqrtf(static_cast<float>(p_.key_dim)));
        const float of_k = unit_factor(of.k, 1.0f);
#pragma unroll
        for (int r = 0; r < Shape::kRaw; ++r) {
          of.q[r] = __fmul_rn(of.q[r], of_q);
          of.k[r] = __fmul_rn(of.k[r], of_k);
        }
      }
      float qk = 0.0f;
#pragma unroll
      for (int r = 0; r < Shape::kRaw; ++r) qk = fmaf(of.q[r], of.k[r], qk);
      qk = warp_sum(qk);
      float step = 0.0f;
      if constexpr (!Shape::kByChannel) step = step_of(of.a[0], step_bias_);
#pragma unroll
      for (int r = 0; r < Shape::kRaw; ++r) {
        const int key = lane_ + 32 * r;
        shared_.k[i][key] = of.k[r];
        if constexpr (Shape::kByChannel) {
          const int there = min(key, p_.key_dim - 1);
          const float bias = p_.step_bias[head_ * p_.key_dim + there];
          step = step_of(of.a[r], bias);
          const float decay =
              p_.gates.decay_floor < 0.0f ? decay_above_floor(of.a[r], bias) : decay_of(step);
          shared_.decays[i][key] = decay;
          shared_.decayed_k[i][key] = __fmul_rn(of.k[r], decay);
          of.q[r] = __fmul_rn(of.q[r], decay);
        }
        shared_.q[i][key] = of.q[r];
      }
#pragma unroll
      for (int j = 0; j < Shape::kColumns; ++j) shared_.v[i][lane_ + 32 * j] = of.v[j];
      if (lane_ != 0) continue;
      if constexpr (!Shape::kByChannel) shared_.decay[i] = decay_of(step);
      shared_.beta[i] = p_.gates.b_begin < 0 ? step : sigmoid(of.b);
      shared_.qk[i] = qk;
    }
  }

  // The lane's four keys of each group of 16.
  __device__ float4 four(const float* row, int group) const {
    return reinterpret_cast<const float4*>(row)[4 * group + lane_ / kColumnLanes];
  }
  // Of the lanes that have other keys of the column.
  __device__ static float sum_of_keys(const float (&two)[2]) {
    float sum = __fadd_rn(two[0], two[1]);
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, kColumnLanes));
    return __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2 * kColumnLanes));
  }

  // Prepared token i, which is `token` of the step, or below 0 a kept one, of which nobody reads.
  __device__ void step(int i, int token) {
    float known[Shape::kColumns][2] = {};  // k^T D S
    float found[Shape::kColumns][2] = {};  // q^T D S
#pragma unroll
    for (int group = 0; group < Shape::kOfLane / 4; ++group) {
      const float4 q4 = four(shared_.q[i], group);
      const float4 k4 = four(Shape::kByChannel ? shared_.decayed_k[i] : shared_.k[i], group);
      const float q[4] = {q4.x, q4.y, q4.z, q4.w};
      const float k[4] = {k4.x, k4.y, k4.z, k4.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int j = 0; j < Shape::kColumns; ++j) {
          const float s = state_[4 * group + e][j];
          if constexpr (Shape::kDelta) known[j][e % 2] = fmaf(k[e], s, known[j][e % 2]);
          found[j][e % 2] = fmaf(q[e], s, found[j][e % 2]);
        }
      }
    }
    const float decay = Shape::kByChannel ? 1.0f : shared_.decay[i];
    const float beta = shared_.beta[i];
    float change[Shape::kColumns];
    float out[Shape::kColumns];
#pragma unroll
    for (int j = 0; j < Shape::kColumns; ++j) {
      const float v = shared_.v[i][column_ - block_column_ + j];
      change[j] = v;
      if constexpr (Shape::kDelta) change[j] = fmaf(-decay, sum_of_keys(known[j]), v);
      change[j] = __fmul_rn(beta, change[j]);
      out[j] =
          fmaf(skip_, v, fmaf(shared_.qk[i], change[j], __fmul_rn(decay, sum_of_keys(found[j]))));
    }
#pragma unroll
    for (int group = 0; group < Shape::kOfLane / 4; ++group) {
      const float4 k4 = four(shared_.k[i], group);
      const float k[4] = {k4.x, k4.y, k4.z, k4.w};
      float by[4] = {decay, decay, decay, decay};
      if constexpr (Shape::kByChannel) {
        const float4 d4 = four(shared_.decays[i], group);
        by[0] = d4.x;
        by[1] = d4.y;
        by[2] = d4.z;
        by[3] = d4.w;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int j = 0; j < Shape::kColumns; ++j) {
          float& s = state_[4 * group + e][j];
          s = fmaf(k[e], change[j], __fmul_rn(by[e], s));
        }
      }
    }
    if (token < 0 || !has_columns_ || lane_ >= kColumnLanes) return;
    Bf16* const to = static_cast<Bf16*>(p_.out) +
                     (int64_t{token} * p_.value_heads + head_) * p_.value_dim + column_;
#pragma unroll
    for (int j = 0; j < Shape::kColumns; ++j) to[j] = __float2bfloat16(out[j]);
  }

  const RecurParams& p_;
  RecurShared<Shape>& shared_;
  const int warp_;
  const int lane_;
  const int head_;
  const int key_head_;
  const int block_column_;
  const int column_;  // the lane's first
  const bool has_columns_;
  float rate_;
  float step_bias_;
  float skip_;
  float state_[Shape::kOfLane][Shape::kColumns];
};

template <typename Shape>
__global__ void __launch_bounds__(kRecurThreads, Shape::kBlocks) recur_kernel(const RecurParams p) {
  __shared__ RecurShared<Shape> shared;
  RecurBlock<Shape> block(p, shared);
  dependency_wait();
  dependency_trigger();
  block.run(static_cast<int>(blockIdx.z));
}

// The rest of launch_recur(), by rule and by what `a` is of.
template <bool kDelta, bool kByChannel>
cudaError_t launch_recur_of(const RecurParams& p, int32_t columns, cudaStream_t stream) {
  const auto launch = [&](auto shape) {
    using Shape = decltype(shape);
    const dim3 grid(static_cast<unsigned>((p.value_dim + Shape::kOfBlock - 1) / Shape::kOfBlock),
                    static_cast<unsigned>(p.value_heads), static_cast<unsigned>(p.state.seqs));
    return launch_pdl(recur_kernel<Shape>, grid, dim3(kRecurThreads), 0, stream, p);
  };
  if (p.key_dim > 128) {
    if (columns > 1) return launch(RecurShape<256, 2, kDelta, kByChannel>());
    return launch(RecurShape<256, 1, kDelta, kByChannel>());
  }
  if (p.key_dim <= 32) return launch(RecurShape<32, 1, kDelta, kByChannel>());
  if (columns == 4) return launch(RecurShape<128, 4, kDelta, kByChannel>());
  if (columns == 2) return launch(RecurShape<128, 2, kDelta, kByChannel>());
  return launch(RecurShape<128, 1, kDelta, kByChannel>());
}

}  // namespace rudder::cuda
