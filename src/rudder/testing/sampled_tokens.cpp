#include "rudder/testing/sampled_tokens.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rudder::testing {
namespace {

void expect_same_logprob(float got, float expected) {
  if (std::isinf(expected)) return;
  EXPECT_NEAR(got, expected, 2e-5 * (1 + std::abs(expected)));
}

}  // namespace

void expect_same_token(size_t row, int32_t num_top, const SampledTokens& got,
                       const SampledTokens& expected) {
  const ops::SampledToken& a = got.tokens[row];
  const ops::SampledToken& b = expected.tokens[row];
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.end, b.end);
  if (num_top < 0 || b.token < 0) return;
  EXPECT_EQ(a.rank, b.rank);
  expect_same_logprob(a.logprob, b.logprob);
  for (size_t k = 0; k < static_cast<size_t>(num_top); ++k) {
    const ops::TopLogprob& x = got.top[row * kMaxLogprobs + k];
    const ops::TopLogprob& y = expected.top[row * kMaxLogprobs + k];
    EXPECT_EQ(x.token, y.token) << "place " << k;
    if (y.token >= 0) expect_same_logprob(x.logprob, y.logprob);
  }
}

}  // namespace rudder::testing
