// Arguments of StateOps (facets.h): the ops of mixers that keep a state of each sequence
// (model/sequence_state.h), and where they find it.
#pragma once

#include <cmath>
#include <cstdint>

#include "rudder/ops/args.h"
#include "rudder/ops/state_kind.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// Where a layer's part of every state lies, and the rows that it keeps for slots.
struct LayerState {
  View pool;          // [states, bytes] u8, of all layers
  int64_t begin = 0;  // of the layer's part of a state, in bytes; on a 64-byte line
  View kept;  // [slots + 1, 1 + drafts, bytes of a row] u8; a sequence's table_row names its
  int64_t kept_begin = 0;  // of the op's part of a kept row, in bytes
};

// Of the sequences of a step.
struct StateBatch {
  View state;      // [num_seqs] i32, a row of the pool; -1: of padding
  View num_draft;  // [num_seqs] i32 the last tokens of each that may be wrong

  bool empty() const { return state.empty(); }
};

// Of one op: an op finds how many tokens its part of a state is of at the part's begin, on a line
// (kStateLine) of its own, and what it keeps behind that.
struct StateAccess {
  View q_begin;    // [num_seqs + 1] i32, as AttentionBatch has it
  View table_row;  // [num_seqs] i32, likewise
  View positions;  // [T] i32
  StateBatch batch;
  LayerState layer;
};

// A causal convolution of each channel by itself, over the tokens of a sequence:
//   y_t = bias + sum over j < length of weight_j * x_(t - length + 1 + j);  out_t = y_t, or
//   silu(y_t)
// x before the sequence's first token is 0. It keeps the last length - 1 inputs, f32, the oldest
// first; a kept row is a token's input, f32.
struct ConvolveArgs {
  StateAccess state;
  View x;          // [T, channels or more] act: its first channels
  View weight;     // [channels * length] f32, of a channel together
  View bias = {};  // [channels] f32; optional
  int32_t length = 1;
  bool silu = false;
  View out;  // [T, channels] act, other memory than x

  int64_t channels() const { return out.shape[1]; }
};

// Columns of rows that several ops' numbers share.
struct Columns {
  View rows = {};      // [T, ...] act
  int64_t begin = -1;  // -1: there are none
};

// What steps and decays of a recurrence keep to.
struct RecurLimits {
  float low = 0;
  float high = INFINITY;
  float decay_floor = 0;  // of logarithms of decays by channel; 0: they have none
};

// A linear recurrence of each value head over the tokens of a sequence, on a state S [key_dim,
// value_dim] f32:
//   s = min(max(softplus(a + step_bias), limits.low), limits.high);  g = -exp(a_log) * s, or
//   limits.decay_floor * sigmoid(exp(a_log) * (a + step_bias)) where it is below 0
//   beta = sigmoid(b), or s where there is no b
//   S = diag(exp(g)) S;  d = beta * (v - k^T S), or beta * v of kSum
//   S = S + k d^T;  out = q^T S + skip * v
// Of kDelta q = q / |q| / sqrt(key_dim) and k = k / |k|, where |x| = sqrt(sum x^2 + 1e-6).
// Value heads of equal number read a key head's q and k. `a` has one number a value head, or
// one for each of its key channels. Source: transformers, modeling_qwen3_next.py (gated delta
// rule), modeling_kimi_linear.py (a by channel), modeling_glm5_next.py (its floor),
// modeling_granitemoehybrid.py (the state space model: a is dt, q is C, k is B, without a
// correction). Sums over channels are in fp32, in their order. It keeps S of every head; a kept row
// is a token's q, k, v, a and b, f32.
struct RecurArgs {
  StateAccess state;
  View qkv;  // [T, ...] act, with q, k and v of all heads at these columns
  int64_t q_begin = 0;
  int64_t k_begin = 0;
  int64_t v_begin = 0;
  View gates;  // [T, ...] act, with a and b at these columns
  int64_t a_begin = 0;
  Columns b = {};  // of no rows: of `gates`
  int32_t key_heads = 1;
  int32_t value_heads = 1;
  int32_t key_dim = 1;
  int32_t value_dim = 1;
  bool a_by_channel = false;
  RecurRule rule = RecurRule::kDelta;
  RecurLimits limits = {};
  View a_log;      // [value_heads] f32
  View step_bias;  // [value_heads], or of channels [value_heads * key_dim], f32
  View skip = {};  // [value_heads] f32; optional
  View out;        // [T, value_heads * value_dim] act

  const View& b_rows() const { return b.rows.empty() ? gates : b.rows; }
  int64_t a_width() const { return int64_t{value_heads} * (a_by_channel ? key_dim : 1); }
  int64_t state_floats() const { return int64_t{value_heads} * key_dim * value_dim; }
  // Of a kept row.
  int64_t kept_floats() const {
    return int64_t{2} * key_heads * key_dim + int64_t{value_heads} * value_dim + a_width() +
           (b.begin < 0 ? 0 : value_heads);
  }
};

// out = n * f(gate), where n is x, RMS-normed in runs of `run` where there is a norm; with
// `gates_first` the norm is of x * f(gate). In fp32, rounded once.
struct GateRowsArgs {
  View x;     // [T, width or more] act: its first columns
  View gate;  // [T, ...] act, its columns from gate_begin on
  int64_t gate_begin = 0;
  GateFunction function = GateFunction::kSigmoid;
  NormSpec norm = {};  // without alpha; weight [run], or [width]
  int64_t run = 0;
  bool gates_first = false;
  View out;  // [T, width] act; may be x
};

}  // namespace rudder::ops
