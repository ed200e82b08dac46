// Arguments of StreamOps (facets.h), the ops of a residual of several rows (model/residual.h).
#pragma once

#include "rudder/ops/args.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// The n streams x_0 ... x_(n-1) of a token lie side by side in a row of x.
//   x_j = write_j * delta + sum over i of mix_ij * x_i     where there is a delta
//   out = sum over i of read_i * x_i                       where there is an out: of x as stored
// Sums are in fp32, in the order of i; a result is rounded once. Without `mix` what is in x is not
// read: x_j = write_j * delta.
struct MixStreamsArgs {
  tensor::View x;           // [T, n * hidden] act, in place
  tensor::View delta = {};  // [T, hidden] act
  tensor::View write = {};  // [n] f32
  tensor::View mix = {};    // [n * n] f32, mix_ij at i * n + j
  tensor::View read = {};   // [n] f32
  tensor::View out = {};    // [T, hidden] act, other memory than x and delta
};

// The sums of a residual that is a history of them lie side by side in a row of x: the prefix p,
// then those of blocks, b_0, b_1 ...
//   where there is a delta:  p = p + delta;  or, with `finished` >= 0:  b_finished = p, p = delta
//   where there is an out:   out = sum over s of softmax(a)_s * s,  of s in p, b_0 ... b_(blocks-1)
//                            a_s = sum over k of s_k / sqrt(mean(s^2) + norm.eps) * norm_k *
//                            query_k
// of x as stored. Sums are in fp32, p first; a result is rounded once.
struct SumBlocksArgs {
  tensor::View x;           // [T, n * hidden] act, in place
  tensor::View delta = {};  // [T, hidden] act
  int32_t finished = -1;    // block
  int32_t blocks = 0;       // that are read, at most n - 1
  NormSpec norm = {};       // an RMS norm, of [hidden]
  tensor::View query = {};  // [hidden] f32
  tensor::View out = {};    // [T, hidden] act, other memory than x and delta
};

}  // namespace rudder::ops
