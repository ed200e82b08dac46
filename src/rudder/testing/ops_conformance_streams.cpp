// mix_streams(), sum_blocks() and scale_add(), of backends that have StreamOps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rudder/testing/ops_conformance.h"
#include "rudder/testing/reference_streams.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

// Of the sums; the operands are as the device has them.
struct Mixed {
  Matrix x;
  Matrix out;
};

Mixed reference_mix(const Matrix& x, const Matrix& delta, const Matrix& write, const Matrix& mix,
                    const Matrix& read, DType stored) {
  const int64_t count = write.cols;
  const int64_t width = delta.cols;
  Mixed mixed{.x = Matrix(x.rows, x.cols), .out = Matrix(x.rows, width)};
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t k = 0; k < width; ++k) {
        double sum = write.at(0, j) * delta.at(t, k);
        for (int64_t i = 0; i < count && mix.cols > 0; ++i) {
          sum += mix.at(0, i * count + j) * x.at(t, i * width + k);
        }
        mixed.x.at(t, j * width + k) = sum;
      }
    }
  }
  const Matrix kept = rounded(mixed.x, stored);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t k = 0; k < width; ++k) {
      for (int64_t j = 0; j < count; ++j) {
        mixed.out.at(t, k) += read.at(0, j) * kept.at(t, j * width + k);
      }
    }
  }
  return mixed;
}

TEST_P(OpsConformance, MixStreams) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  const auto numbers = [&](int64_t count) {
    const Matrix values = read(random({1, wide(count)}));
    std::vector<float> floats;
    floats.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) floats.push_back(static_cast<float>(values.at(0, i)));
    return device_.put_as(std::span<const float>(floats), DType::kF32, {count});
  };
  for (const int64_t count : {1, 2, 3, 4}) {
    for (const int64_t columns : {1, 33, 64, 1032}) {
      SCOPED_TRACE(std::to_string(count) + " streams of " + std::to_string(columns));
      const int64_t width = wide(columns);
      const View x = random({5, count * width});
      const View delta = random({5, width});
      const View write = numbers(count);
      const View mix = numbers(count * count);
      const View shares = numbers(count);
      const View begun = copy(x);
      const View alone = copy(x.rows(3, 1));
      const View parted = copy(x);
      const View out = poisoned(ops_.act_dtype(), {5, width});
      const View out_alone = poisoned(ops_.act_dtype(), {1, width});
      const View out_parted = poisoned(ops_.act_dtype(), {5, width});
      const Mixed expected = reference_mix(read(x), read(delta), read(write), read(mix),
                                           read(shares), ops_.act_dtype());
      streams->mix_streams(
          {.x = x, .delta = delta, .write = write, .mix = mix, .read = shares, .out = out});
      expect_close(read(x), expected.x, 4e-6, "streams");
      expect_close(read(out), expected.out, 4e-6, "what is read of them");
      streams->mix_streams({.x = alone,
                            .delta = delta.rows(3, 1),
                            .write = write,
                            .mix = mix,
                            .read = shares,
                            .out = out_alone});
      expect_same_rows(alone, x.rows(3, 1), "alone");
      expect_same_rows(out_alone, out.rows(3, 1), "read alone");
      // A write and a read are what they are together.
      streams->mix_streams({.x = parted, .delta = delta, .write = write, .mix = mix});
      streams->mix_streams({.x = parted, .read = shares, .out = out_parted});
      expect_same_rows(parted, x, "written");
      expect_same_rows(out_parted, out, "read");
      streams->mix_streams({.x = begun, .delta = delta, .write = write});
      const Mixed first =
          reference_mix(read(x), read(delta), read(write), {}, read(shares), ops_.act_dtype());
      expect_close(read(begun), first.x, 4e-6, "begun");
    }
  }
}

TEST_P(OpsConformance, SumBlocks) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  const auto vector_of = [&](int64_t width) {
    const std::vector<float> values = random_values(width, 0.25);
    return device_.put_as(std::span<const float>(values), DType::kF32, {width});
  };
  for (const int32_t blocks : {0, 1, 4, 5}) {
    for (const int64_t columns : {1, 33, 64, 1032}) {
      SCOPED_TRACE(std::to_string(blocks) + " blocks of " + std::to_string(columns));
      const int64_t width = wide(columns);
      const View x = random({5, (blocks + 1) * width});
      const View delta = random({5, width});
      const View out = poisoned({5, width});
      const ops::SumBlocksArgs ask{.x = x,
                                   .blocks = blocks,
                                   .norm = {.weight = vector_of(width), .eps = 1e-4f},
                                   .query = vector_of(width),
                                   .score_scale = blocks == 1 ? 0.37f : 1.0f,
                                   .normed_values = blocks == 1 || blocks == 5,
                                   .out = out};
      for (int32_t finished = -1; finished < blocks; ++finished) {
        std::vector<Matrix> expected = streams_of(read(x), width);
        const Matrix branch = read(delta);
        if (finished >= 0) {
          expected[static_cast<size_t>(finished) + 1] = std::exchange(expected[0], branch);
        } else {
          for (size_t i = 0; i < branch.values.size(); ++i)
            expected[0].values[i] += branch.values[i];
        }
        ops::SumBlocksArgs both = ask;
        both.x = copy(x);
        both.delta = delta;
        both.finished = finished;
        streams->sum_blocks(both);
        const std::vector<Matrix> got = streams_of(read(both.x), width);
        for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], expected[i], 1e-6, "sums");
        expect_close(read(out),
                     reference_block_read(got, {.norm = read(ask.norm.weight),
                                                .query = read(ask.query),
                                                .eps = double{ask.norm.eps},
                                                .score_scale = double{ask.score_scale},
                                                .normed_values = ask.normed_values}),
                     1e-5, "what is read of them");
        // A write and a read are what they are together, and a row is what it is alone.
        ops::SumBlocksArgs parts = ask;
        parts.x = copy(x);
        parts.out = poisoned({5, width});
        streams->sum_blocks({.x = parts.x, .delta = delta, .finished = finished});
        expect_same_rows(parts.x, both.x, "written");
        streams->sum_blocks(parts);
        expect_same_rows(parts.out, out, "read");
        ops::SumBlocksArgs alone = both;
        alone.x = copy(x).rows(3, 1);
        alone.delta = delta.rows(3, 1);
        alone.out = poisoned({1, width});
        streams->sum_blocks(alone);
        expect_same_rows(alone.x, both.x.rows(3, 1), "alone");
        expect_same_rows(alone.out, out.rows(3, 1), "read alone");
      }
    }
  }
}

// Two finished blocks and a prefix of width 4, computed in float64 by numpy from the formulas of
// Kimi K3.
TEST_P(OpsConformance, SumBlocksOfAGolden) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr || wide(1) > 1) GTEST_SKIP() << "it has no residual of such rows";
  std::vector<float> sums;
  sums.reserve(12);
  for (int i = 0; i < 4; ++i) sums.push_back(static_cast<float>((53 * i) % 23 - 11) / 8);
  for (int i = 0; i < 8; ++i) sums.push_back(static_cast<float>((37 * i) % 11 - 5) / 4);
  const auto put = [&](const std::vector<float>& values, DType dtype, tensor::Shape shape) {
    return device_.put_as(std::span<const float>(values), dtype, shape);
  };
  const View out = poisoned({1, 4});
  streams->sum_blocks({.x = put(sums, act_, {1, 12}),
                       .blocks = 2,
                       .norm = {.weight = put({0.5f, 1, 1.5f, 2}, DType::kF32, {4}), .eps = 1e-5f},
                       .query = put({0.25f, -0.5f, 0.75f, 1}, DType::kF32, {4}),
                       .out = out});
  Matrix expected(1, 4);
  expected.values = {-1.3567530, -0.4787201, 0.3658421, 1.2106208};
  expect_close(read(out), expected, 3e-7, "mix");
  // Inkling 2: values are normed too, without a weight; scores are divided by sqrt(hidden).
  ops::SumBlocksArgs normed{.x = put(sums, act_, {1, 12}),
                            .blocks = 2,
                            .norm = {.weight = put({1, 1, 1, 1}, DType::kF32, {4}), .eps = 1e-6f},
                            .query = put({0.25f, -0.5f, 0.75f, 1}, DType::kF32, {4}),
                            .score_scale = 0.5f,
                            .normed_values = true,
                            .out = out};
  streams->sum_blocks(normed);
  expected.values = {-1.1784673, -0.1296217, 0.2311533, 0.6251959};
  expect_close(read(out), expected, 3e-7, "mix of normed values");
  const auto misses = [&](float score_scale, bool normed_values) {
    normed.score_scale = score_scale;
    normed.normed_values = normed_values;
    streams->sum_blocks(normed);
    double largest = 0;
    for (int64_t k = 0; k < 4; ++k) {
      largest = std::max(largest, std::abs(read(out).at(0, k) - expected.at(0, k)));
    }
    return largest > 1e-3;
  };
  EXPECT_TRUE(misses(1, true)) << "without the division";
  EXPECT_TRUE(misses(0.5f, false)) << "of values as they are";
}

TEST_P(OpsConformance, ScaleAdd) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  for (const bool by_channel : {false, true}) {
    for (const int64_t columns : {1, 33, 64, 1032}) {
      SCOPED_TRACE(std::to_string(columns) + (by_channel ? " gates" : " columns"));
      const int64_t width = wide(columns);
      const View x = random({5, width});
      const View delta = random({5, width});
      const std::vector<float> gates = random_values(by_channel ? width : 1, 2);
      const View gate =
          device_.put_as(std::span<const float>(gates), DType::kF32, {std::ssize(gates)});
      const View constant = copy(x);
      const Matrix before = read(x);
      const Matrix branch = read(delta);
      Matrix gated = before;
      Matrix scaled = before;
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t k = 0; k < width; ++k) {
          const double w = double{gates[by_channel ? static_cast<size_t>(k) : 0]} / 0.7;
          const double open = 1 / (1 + std::exp(-w));
          const double keep = std::sqrt(std::max(1 / (1 + std::exp(w)) * (1 + open), 1e-3));
          gated.at(t, k) = keep * before.at(t, k) + open * branch.at(t, k);
          scaled.at(t, k) = 0.8 * before.at(t, k) + 0.6 * branch.at(t, k);
        }
      }
      const View alone = copy(x.rows(3, 1));
      streams->scale_add({.x = x, .delta = delta, .gate = gate, .temperature = 0.7f});
      expect_close(read(x), gated, 2e-6, "gated");
      streams->scale_add(
          {.x = alone, .delta = delta.rows(3, 1), .gate = gate, .temperature = 0.7f});
      expect_same_rows(alone, x.rows(3, 1), "alone");
      streams->scale_add({.x = constant, .delta = delta, .keep = 0.8f, .add = 0.6f});
      expect_close(read(constant), scaled, 2e-6, "scaled");
    }
  }
}

}  // namespace
}  // namespace rudder::testing
