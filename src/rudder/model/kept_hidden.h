// KeptHidden: copies rows of the residual to where others read them: what enters a layer, for draft
// heads (EAGLE) and the next stage; what the final norm makes, for draft heads, assistants and
// Medusa heads. The decoder owns it and calls it while a step passes; where nobody reads, it does
// nothing.
#pragma once

#include <cstdint>

#include "rudder/model/decoder.h"

namespace rudder::model {

struct DecoderBuffers;
class ResidualPass;

class KeptHidden {
 public:
  // All but `pool` and `final_rows` outlive it. `final_rows`: as Decoder::make has it.
  KeptHidden(const ModelSpec& spec, const ops::NormSpec& final_norm, ops::Ops& ops,
             const DecoderBuffers& buffers, HiddenPool pool, const ops::View& final_rows);

  // What enters the layer, of all tokens. The residual has the output of the layer before by now,
  // so the buffer of branch outputs is free.
  void enter(size_t layer, const ops::View& x, ResidualPass& residual, const ForwardBatch& batch);
  // On the last stage: what entered layers of the stages in front, which came with the step.
  void enter_passed(const ForwardBatch& batch);
  // Then every token goes through what comes behind the last attention.
  bool wants_all_normed() const { return pool_.final_norm; }
  // `x`, the rows that the final norm has read, is normed once more without taps: of all tokens for
  // draft heads and assistants, and the rows whose logits are wanted for Medusa heads. `x` has
  // those alone where not all are wanted. The buffer of branch outputs is free.
  void norm(const ops::View& x, const ops::View& rows, const ForwardBatch& batch);

 private:
  void place(const ops::View& x, int64_t column, const ForwardBatch& batch);

  const ModelSpec& spec_;
  const ops::NormSpec& final_norm_;
  ops::Ops& ops_;
  const DecoderBuffers& buffers_;
  const HiddenPool pool_;
  const ops::View final_rows_;  // empty: there are no Medusa heads
};

}  // namespace rudder::model
