// Arguments of StreamOps (facets.h), the ops of a residual of several streams (model/residual.h).
#pragma once

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

}  // namespace rudder::ops
