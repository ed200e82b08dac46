// score against the CPU's own, on rows of which some are equal, not numbers or nothing but -inf.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "rudder/cpu/sample.h"
#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::View;

constexpr int64_t kMaxLogprobs = 20;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// All that one call reads and writes, on the host.
struct ScoredRows {
  int64_t vocab = 0;
  std::vector<float> logits;
  std::vector<int32_t> tokens;
  int32_t num_top = 0;
  std::vector<ops::SampledToken> scored;
  std::vector<ops::TopLogprob> top;

  int64_t num_rows() const { return std::ssize(tokens); }

  // The call over memory that `place(values, dtype, shape)` gives.
  template <typename Place>
  ops::ScoreArgs args(Place place) {
    const int64_t n = num_rows();
    return {.logits = place(logits, DType::kF32, Shape{n, vocab}),
            .tokens = place(tokens, DType::kI32, Shape{n}),
            .num_top = num_top,
            .scored = place(scored, DType::kI32, Shape{n, 4}),
            .top = place(top, DType::kI32, Shape{n, kMaxLogprobs, 2})};
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

template <typename T>
void fetch(Device& device, const View& from, std::vector<T>& to) {
  HostTensor host = device.get(from);
  std::ranges::copy(host.values<T>(), to.begin());
}

void compare_row(size_t r, const ScoredRows& got, const ScoredRows& expected) {
  const ops::SampledToken& a = got.scored[r];
  const ops::SampledToken& b = expected.scored[r];
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.end, b.end);
  if (b.token < 0) return;
  EXPECT_EQ(a.rank, b.rank);
  if (!std::isinf(b.logprob)) {
    EXPECT_NEAR(a.logprob, b.logprob, 2e-5 * (1 + std::abs(b.logprob)));
  }
  for (size_t k = 0; k < static_cast<size_t>(got.num_top); ++k) {
    const ops::TopLogprob& x = got.top[r * kMaxLogprobs + k];
    const ops::TopLogprob& y = expected.top[r * kMaxLogprobs + k];
    EXPECT_EQ(x.token, y.token) << "place " << k;
    if (y.token < 0 || std::isinf(y.logprob)) continue;
    EXPECT_NEAR(x.logprob, y.logprob, 2e-5 * (1 + std::abs(y.logprob)));
  }
}

void compare(Device& device, ScoredRows rows, int32_t num_top) {
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
  fetch(device, args.scored, rows.scored);
  fetch(device, args.top, rows.top);
  for (size_t r = 0; r < rows.tokens.size(); ++r) {
    SCOPED_TRACE("vocabulary " + std::to_string(rows.vocab) + ", row " + std::to_string(r));
    compare_row(r, rows, expected);
  }
}

// How likely given tokens are: what sample tells of a token, of any token, and nothing kept.
TEST_P(OpsConformance, ScoreAgreesWithTheCpu) {
  for (const int64_t vocab : {1, 17, 160}) {
    const ScoredRows rows = make_rows(random_, 6, vocab);
    for (const int32_t num_top : {0, 1, 20}) compare(device_, rows, num_top);
  }
}

TEST_P(OpsConformance, ScoreManyAgreesWithTheCpu) {
  for (const int64_t vocab : {1, 17, 160, 1003, 32003, 151936}) {
    for (const int64_t num_rows : {1, 2, 33}) {
      if (vocab > 5000 && num_rows > 2) continue;
      const ScoredRows rows = make_rows(random_, num_rows, vocab);
      for (const int32_t num_top : {0, 1, 20}) compare(device_, rows, num_top);
    }
  }
}

}  // namespace
}  // namespace rudder::testing
