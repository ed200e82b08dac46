// ResidualPass: the residual of a step as the layers use it. It begins with the embedding; each
// branch reads it, normed, in the form that the branch's first product takes, and writes its output
// back; at the end it is read for the output head. decoder.cpp makes the one of the spec's kind and
// calls it on the executor's worker thread. The decoder owns it and the rows, which it passes as x:
// [T, residual_width] act, in place.
//
// A write may wait for the read behind it, so that one op does both. So a read, an end or a settle
// follows each write before the rows or the branch's output are used otherwise.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "rudder/model/branch.h"
#include "rudder/model/decoder_buffers.h"
#include "rudder/model/spec.h"
#include "rudder/model/weights.h"

namespace rudder::model {

enum class BranchKind : uint8_t { kMixer, kMlp };

// A branch of a layer, which is counted from the stage's first.
struct BranchSite {
  size_t layer = 0;
  BranchKind branch = BranchKind::kMixer;
};

// What comes of the residual, and who takes it.
struct ResidualRead {
  const ops::NormSpec& norm;  // empty: there is none
  const ops::LinearWeight& next;
  bool wants_act = false;   // the branch reads what it is given in act, too (reads_act)
  ops::Taps x_taps = {};    // resid_pre
  ops::Taps out_taps = {};  // attn_in, mlp_in, final_norm
};

// What goes into it.
struct ResidualWrite {
  ops::View delta;  // [T, hidden] act: the branch's output; on a rank its part of the sum
  const ops::NormSpec& delta_norm;
  ops::Taps delta_taps = {};  // attn_out, mlp_out
  ops::Taps x_taps = {};      // resid_mid, resid_post
  ops::Taps post_taps = {};   // mhc_attn_post_mix, mhc_ffn_post_mix, where the kind has them
  ops::Taps mix_taps = {};    // likewise mhc_attn_res_mix, mhc_ffn_res_mix
  float sum_scale = 1.0f;     // of all that is then in it
  bool is_whole = false;      // on a rank: `delta` is no part of a sum
};

// Reads rows of a residual of several streams, x [T, residual_width] act, as end() does: out, [T,
// hidden] act. `last` is of the model's last layer. The rows have `streams` of the streams
// (tap::ResidualForm::streams_at).
void collapse(const Residual& kind, const ResidualWeights& last, ops::StreamOps& ops,
              const ops::View& x, int32_t streams, const ops::View& out);

class ResidualPass {
 public:
  // kUnsupported, "residual": the backend has no ops for the kind. All parts outlive the pass.
  static Result<std::unique_ptr<ResidualPass>> make(const ModelSpec& spec, const Weights& weights,
                                                    ops::Ops& ops, const Products& products,
                                                    const DecoderBuffers& buffers);
  virtual ~ResidualPass() = default;

  // Embeds; `args` lacks its output.
  virtual void begin(const ops::View& x, ops::EmbedArgs args) = 0;
  virtual Operand read(const ops::View& x, BranchSite site, const ResidualRead& read,
                       const ForwardBatch& batch) = 0;
  virtual void write(const ops::View& x, BranchSite site, const ResidualWrite& write,
                     const ForwardBatch& batch) = 0;
  // Reads what the last layer has left, for the head.
  virtual Operand end(const ops::View& x, const ResidualRead& read, const ForwardBatch& batch) = 0;
  // What was written last is in x: for the stage behind, which reads it.
  virtual void settle(const ops::View& x, const ForwardBatch& batch) = 0;

  // x as one row of the model's width, [T, hidden] act, for who knows nothing of the kind: draft
  // heads. May use `buffer`. Nothing that is written waits.
  virtual ops::View as_one_row(const ops::View& x, const ops::View& buffer) = 0;
  // Likewise, as end() has read it for the final norm.
  virtual ops::View end_row(const ops::View& x) = 0;

 protected:
  ResidualPass(const ModelSpec& spec, ops::Ops& ops, const Products& products,
               const DecoderBuffers& buffers)
      : spec_(spec),
        ops_(ops),
        products_(products),
        buffers_(buffers),
        is_alone_(ops::rank_of(ops).is_alone()) {}

  // Where the step encodes at a point that the op passes, all of the op up to the last such point
  // but the normed row's, cut behind each; what is left of the op.
  ops::ResidualNormArgs encode_parts(const ops::ResidualNormArgs& args, const ForwardBatch& batch);
  // The part of the op that works on the branch alone.
  void finish_branch(ops::ResidualNormArgs& args, const ForwardBatch& batch);
  // Runs the op, if it does anything, with an output in the form that `to.next` takes, or in both
  // forms; what `to.next` takes: the normed row, or x itself where there is no norm.
  // `is_normed`: the row is normed as it is, and taken as one that a norm has made. `run`: does the
  // op, of a norm alone, together with what makes its row.
  using NormOp = std::function<void(const ops::ResidualNormArgs&)>;
  Operand add_and_norm(const ops::ResidualNormArgs& asked, const ResidualRead& to,
                       const ForwardBatch& batch, bool is_normed = false, const NormOp& run = {});

  const ModelSpec& spec_;
  ops::Ops& ops_;
  const Products& products_;
  const DecoderBuffers& buffers_;
  const bool is_alone_;
};

}  // namespace rudder::model
