// The ops of mixers that keep a state, and of gates, in double precision, of one sequence from its
// first token on. Formulas: ops/state_args.h. Tests only; plain values.
#pragma once

#include <cstdint>
#include <limits>

#include "rudder/ops/state_args.h"
#include "rudder/testing/reference_ops.h"

namespace rudder::testing {

// `weight`: [channels, length]; `bias`: [1, channels] or empty.
Matrix reference_convolve(const Matrix& x, const Matrix& weight, const Matrix& bias, bool silu);

struct ReferenceRecurrence {
  int64_t key_heads = 1;
  int64_t value_heads = 1;
  int64_t key_dim = 1;
  int64_t value_dim = 1;
  bool is_delta = true;
  double step_low = 0;
  double step_high = std::numeric_limits<double>::infinity();
  double decay_floor = 0;
  Matrix a_log;
  Matrix step_bias;  // [1, heads] or [1, heads * key_dim]
  Matrix skip = {};
};
// q, k: [T, key_heads * key_dim]; v: [T, value_heads * value_dim]; a: as wide as step_bias; b: [T,
// value_heads] or empty.
Matrix reference_recur(const ReferenceRecurrence& spec, const Matrix& q, const Matrix& k,
                       const Matrix& v, const Matrix& a, const Matrix& b);

// `norm`: [1, run] or [1, width], or empty.
struct ReferenceRowGate {
  ops::GateFunction function = ops::GateFunction::kSigmoid;
  Matrix norm = {};
  int64_t run = 0;
  double eps = 1e-5;
  bool gates_first = false;
};
Matrix reference_gate_rows(const ReferenceRowGate& spec, const Matrix& x, const Matrix& gate);

}  // namespace rudder::testing
