// Parameters of the score macro-op: how likely given tokens were. Its results have the form and the
// meaning of those of the sample op (sample_args.h).
#pragma once

#include <cstdint>

#include "rudder/ops/sample_args.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// Nothing is sampled and no slot is read or written. A row with NaN or +Inf, or nothing above -Inf,
// is kNumerical and has token -1.
struct ScoreArgs {
  tensor::View logits;  // [R, vocab] f32, as the model gave them
  tensor::View tokens;  // [R] i32, of the vocabulary
  int32_t num_top = 0;  // how many of the likeliest tokens each row gives; at most max_logprobs
  tensor::View scored;  // [R, 4] i32 out: SampledToken
  tensor::View top;     // [R, max_logprobs, 2] i32 out: TopLogprob, num_top of each row
};

}  // namespace rudder::ops
