// Compares the results of sample and score with those of the CPU. Part of the conformance suite
// (ops_conformance.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rudder/ops/sample_args.h"

namespace rudder::testing {

inline constexpr int64_t kMaxLogprobs = 20;  // likeliest tokens that a row may have

struct SampledTokens {
  std::span<const ops::SampledToken> tokens;  // [R]
  std::span<const ops::TopLogprob> top;       // [R, kMaxLogprobs]
};

// Row `row`: its token and how it ends and, unless `num_top` is -1, its rank, its logprob and those
// of the `num_top` likeliest. Infinite logprobs are not compared.
void expect_same_token(size_t row, int32_t num_top, const SampledTokens& got,
                       const SampledTokens& expected);

}  // namespace rudder::testing
