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
//                            a_s = score_scale * sum over k of s_k / sqrt(mean(s^2) + norm.eps) *
//                            norm_k * query_k
// of x as stored; with `normed_values` what is summed is s / sqrt(mean(s^2) + norm.eps). Sums are
// in fp32, p first; a result is rounded once. Source: vLLM, models/kimi_k3; transformers,
// Inkling2BlockAttentionResidual (normed values).
struct SumBlocksArgs {
  tensor::View x;           // [T, n * hidden] act, in place
  tensor::View delta = {};  // [T, hidden] act
  int32_t finished = -1;    // block
  int32_t blocks = 0;       // that are read, at most n - 1
  NormSpec norm = {};       // an RMS norm, of [hidden]
  tensor::View query = {};  // [hidden] f32
  float score_scale = 1;
  bool normed_values = false;
  tensor::View out = {};  // [T, hidden] act, other memory than x and delta
};

// x = keep * x + add * delta. With a gate g both are numbers of a channel, made of w = g /
// temperature in double and rounded to fp32: add = sigmoid(w), keep = sqrt(max(sigmoid(-w) * (1 +
// add), 1e-3)). The sum is in fp32, rounded once. Source: transformers, modeling_muse_spark.py.
struct ScaleAddArgs {
  tensor::View x;          // [T, hidden] act, in place
  tensor::View delta;      // [T, hidden] act
  tensor::View gate = {};  // [hidden] or [1] f32; optional
  float temperature = 1;
  float keep = 1;  // without a gate
  float add = 1;   // likewise
};

// How numbers of a token's streams are made of the streams (hyper-connections).
struct StreamRule {
  int32_t streams = 4;
  int32_t iterations = 20;  // of the mix's Sinkhorn; 0: streams are not mixed
  float eps = 1e-6f;        // of pre and of the mix
  float norm_eps = 1e-6f;
  float magnitude = 2;  // of post
  float post_eps = 0;

  int64_t rows() const {  // of a map for all of them
    return int64_t{2} * streams + (iterations > 0 ? int64_t{streams} * streams : 0);
  }
};

// What they are made by: rows of pre, of post, and of the mix in the order of its numbers, or of
// pre alone.
struct StreamMap {
  tensor::View fn = {};     // [rows, n * hidden] f32
  tensor::View base = {};   // [rows] f32
  tensor::View scale = {};  // f32: of pre, of post, of the mix

  bool empty() const { return fn.empty(); }
};

// As MixStreamsArgs, with numbers of each token, made of x as it is before the op does what they
// are for. With f the row of all streams, m = fn f / sqrt(mean(f^2) + norm_eps), and by the write's
// map
//   post_j = magnitude * sigmoid(m_(n+j) * scale_1 + base_(n+j)) + post_eps
//   c_ij = softmax over j of (m_(2n+in+j) * scale_2 + base_(2n+in+j)) + eps
//   c_ij = c_ij / (eps + sum over i of c_ij); then, iterations - 1 times, the same over j and over
//   i x_j = post_j * delta + sum over i of c_ij * x_i;  not mixed: x_j = post_j * delta + x_j
// by the read's
//   pre_i = sigmoid(m_i * scale_0 + base_i) + eps;  out = sum over i of pre_i * x_i
// and without a read's map out is the mean of the streams. With `pre` (delayed) the write's map
// makes pre_i too, of the streams before they are written, and leaves them there; what is read is
// read by those that are there. Numbers are made in double and rounded
// to fp32; sums of streams are as in MixStreamsArgs. Source: transformers, modeling_deepseek_v4.py
// (DeepseekV4HyperConnection), modeling_hy_v4.py (without the mix).
struct ConnectStreamsArgs {
  tensor::View x;           // [T, n * hidden] act, in place
  tensor::View delta = {};  // [T, hidden] act
  StreamMap write = {};     // with a delta
  StreamMap read = {};
  tensor::View pre = {};  // [T, n] f32; without a delta also [1, n], which is every token's
  Taps post_taps = {};    // capture post, [n], and
  Taps mix_taps = {};     // c, [n * n], of a write: no program has ops there
  tensor::View out = {};  // [T, hidden] act, other memory than x and delta
  StreamRule rule = {};
};

// Streams that are read through products (gated residual), f the row of them all, each normed:
//   f_k = x_k / sqrt(mean(its stream^2) + norm.eps) * norm_k
struct StreamGate {
  NormSpec norm = {};        // an RMS norm, of [n * hidden]
  tensor::View down = {};    // [rank, n * hidden] f32; of a read
  tensor::View up = {};      // [n * hidden, rank] f32; of a read
  tensor::View inject = {};  // [n, n * hidden] f32; of a write
};

// By the write's gate
//   post_j = 2 sigmoid(inject_j f / n);  x_j = x_j + post_j * delta
// and by the read's, of x as stored, with w = sigmoid(up silu(down f / n))
//   out = mean over i of w_i * f_i
// which is normed already. Numbers are made in double and rounded to fp32; sums of streams are as
// in MixStreamsArgs. Source: transformers, modeling_qwen4_exp.py (Qwen4ExpTextGatedResidual).
struct GateStreamsArgs {
  tensor::View x;           // [T, n * hidden] act, in place
  tensor::View delta = {};  // [T, hidden] act
  StreamGate write = {};    // with a delta
  StreamGate read = {};     // with an out
  Taps post_taps = {};      // capture post, [n], of a write: no program has ops there
  tensor::View out = {};    // [T, hidden] act, other memory than x and delta
};

}  // namespace rudder::ops
