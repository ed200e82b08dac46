// Latent attention (ops/latent_args.h) in double precision, with keys and values of every head made
// one by one, as models are trained. Tests only; plain values.
#pragma once

#include <vector>

#include "rudder/ops/latent_args.h"
#include "rudder/testing/reference_ops.h"

namespace rudder::testing {

struct ReferenceLatent {
  ops::LatentShape shape;
  double scale = 1;
  bool neighbours = false;
  ReferenceNorm norm;              // of c
  Matrix up;                       // [num_heads * (nope_dim + value_dim), rank]
  std::vector<double> sinks = {};  // [num_heads]; empty: none
  Matrix table;  // [T, rope_dim]: cos, then sin, of each position; empty: nothing turns
};

// One sequence from its first token on: `q` and `latent` as ops::LatentPrepArgs has them. Gives
// [T, num_heads * value_dim]. `patterns` as of reference_attention().
Matrix reference_latent(const ReferenceLatent& spec, const Matrix& q, const Matrix& latent,
                        std::vector<Matrix>* patterns = nullptr);

}  // namespace rudder::testing
