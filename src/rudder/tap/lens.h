// Lens: reads rows of the residual stream as if they were the last layer's: final norm, output
// head, the likeliest next tokens (the "logit lens", nostalgebraist 2020). The executor's room
// implements it, the consumer `response` uses it on its own thread, beside the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::tap {

struct LensToken {
  int32_t token = -1;  // -1: a row that holds NaN or Inf has none
  float logprob = 0;
};

class Lens {
 public:
  virtual ~Lens() = default;
  // Of each row of `rows` [count, hidden] the `top` likeliest tokens, the likeliest first: `out`
  // becomes [count, top]. Log-probabilities are of the model's logits over the whole vocabulary.
  // `top` is at most step::kMaxLogprobs and the vocabulary. One thread at a time. An Error is the
  // device's.
  virtual Result<void> read(std::span<const float> rows, int32_t top,
                            std::vector<LensToken>& out) = 0;
  // Likewise of whole rows [count, streams * hidden] of a residual of several streams, collapsed as
  // the model reads what its last layer leaves. `made`: of each row, how many of its streams are
  // there (ResidualForm::streams_at).
  virtual Result<void> read_collapsed(std::span<const float> rows, std::span<const int32_t> made,
                                      int32_t top, std::vector<LensToken>& out) = 0;
  // Rows that a call should have, where so many wait: more together cost little less, and the first
  // would wait for the last.
  virtual size_t rows_together() const = 0;
};

}  // namespace rudder::tap
