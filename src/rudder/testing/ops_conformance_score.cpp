// score against the CPU's own, on rows of which some are equal, not numbers or nothing but -inf.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "rudder/cpu/sample.h"
#include "rudder/testing/ops_conformance.h"
#include "rudder/testing/sampled_tokens.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::View;

// All that one call reads and writes, on the host.
struct ScoredRows {
  int64_t vocab = 0;
  std::vector<float> logits;
  std::vector<int32_t> tokens;
  int32_t num_top = 0;
  std::vector<ops::SampledToken> scored;
  std::vector<ops::TopLogprob> top;

  int64_t num_rows() const { return std::ssize(tokens); }

  // The call over memory that `memory(values, dtype, shape)` gives.
  template <typename Memory>
  ops::ScoreArgs args(Memory memory) {
    const int64_t n = num_rows();
    return {.logits = memory(logits, DType::kF32, Shape{n, vocab}),
            .tokens = memory(tokens, DType::kI32, Shape{n}),
            .num_top = num_top,
            .scored = memory(scored, DType::kI32, Shape{n, 4}),
            .top = memory(top, DType::kI32, Shape{n, kMaxLogprobs, 2})};
  }
};

ScoredRows make_rows(std::mt19937_64& random, int64_t num_rows, int64_t vocab) {
  constexpr int64_t kSpoiled = 5;  // rows
  ScoredRows rows;
  rows.vocab = vocab;
  std::normal_distribution<float> normal(0, 4);
  for (int64_t i = 0; i < num_rows * vocab; ++i) {
    const float x = normal(random);
    rows.logits.push_back(i % 3 == 0 ? std::round(x) : x);  // ties
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    rows.tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
  }
  if (num_rows < kSpoiled) return rows;
  const auto row = [&](int64_t r) { return rows.logits.begin() + r * vocab; };
  *row(0) = std::numeric_limits<float>::quiet_NaN();
  *(row(2) - 1) = kInfinity;
  *row(3) = -kInfinity;
  std::fill_n(row(4), vocab, -kInfinity);
  return rows;
}

void compare_scores(Device& device, ScoredRows rows, int32_t num_top) {
  rows.num_top = num_top;
  rows.scored.resize(rows.tokens.size());
  rows.top.resize(rows.tokens.size() * kMaxLogprobs);
  ScoredRows expected = rows;
  cpu::score_rows(expected.args([](auto& values, DType dtype, Shape shape) {
    return View{values.data(), dtype, shape};
  }));
  const ops::ScoreArgs args = rows.args([&](auto& values, DType dtype, Shape shape) {
    using Value = typename std::decay_t<decltype(values)>::value_type;
    return device.put_as(std::span<const Value>(values), dtype, shape);
  });
  device.ops().score(args);
  rows.scored = device.values<ops::SampledToken>(args.scored);
  rows.top = device.values<ops::TopLogprob>(args.top);
  for (size_t r = 0; r < rows.tokens.size(); ++r) {
    SCOPED_TRACE("vocabulary " + std::to_string(rows.vocab) + ", row " + std::to_string(r));
    expect_same_token(r, num_top, {rows.scored, rows.top}, {expected.scored, expected.top});
  }
}

// How likely given tokens are: the results of sample for any token, without changing a slot.
TEST_P(OpsConformance, ScoreAgreesWithTheCpu) {
  for (const int64_t vocab : {1, 17, 160}) {
    const ScoredRows rows = make_rows(random_, 6, vocab);
    for (const int32_t num_top : {0, 1, 20}) compare_scores(device_, rows, num_top);
  }
}

TEST_P(OpsConformance, ScoreManyAgreesWithTheCpu) {
  for (const int64_t vocab : {1, 17, 160, 1003, 32003, 151936}) {
    for (const int64_t num_rows : {1, 2, 33}) {
      if (vocab > 5000 && num_rows > 2) continue;
      const ScoredRows rows = make_rows(random_, num_rows, vocab);
      for (const int32_t num_top : {0, 1, 20}) compare_scores(device_, rows, num_top);
    }
  }
}

}  // namespace
}  // namespace rudder::testing
