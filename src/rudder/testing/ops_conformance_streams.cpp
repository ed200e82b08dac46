// mix_streams(), sum_blocks() and connect_streams(), of backends that have StreamOps.
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

// [T, n * width] as n sums.
std::vector<Matrix> sums_of(const Matrix& x, int64_t width) {
  std::vector<Matrix> sums;
  for (int64_t begin = 0; begin < x.cols; begin += width) {
    sums.push_back(x.slice(0, x.rows, begin, width));
  }
  return sums;
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
        std::vector<Matrix> expected = sums_of(read(x), width);
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
        const std::vector<Matrix> got = sums_of(read(both.x), width);
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

// Numbers that anyone can make.
ops::StreamMap patterned_map(Device& device, int64_t rows, int64_t columns,
                             const std::vector<float>& scale) {
  std::vector<float> fn;
  fn.reserve(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows * columns; ++i) {
    fn.push_back(static_cast<float>((53 * i) % 23 - 11) / 16);
  }
  std::vector<float> base;
  base.reserve(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) base.push_back(static_cast<float>((29 * i) % 13 - 6) / 8);
  const auto put = [&](const std::vector<float>& values, tensor::Shape shape) {
    return device.put_as(std::span<const float>(values), DType::kF32, shape);
  };
  return {put(fn, {rows, columns}), put(base, {rows}), put(scale, {std::ssize(scale)})};
}

Matrix patterned_row() {
  Matrix x(1, 8);
  for (int64_t i = 0; i < 8; ++i) x.at(0, i) = static_cast<double>((37 * i) % 11 - 5) / 4;
  return x;
}

// What transformers' DeepseekV4HyperConnection and HYV4HyperConnection make of these, [4, 2], with
// a branch of (1, -2); and what they read.
struct StreamGolden {
  ops::StreamRule rule;
  std::vector<float> scale;
  std::vector<double> written;
};
constexpr double kGoldenRead[] = {-.6455951, -.1151789};
StreamGolden mixed_golden() {
  return {
      {},
      {.5f, .75f, 1.25f},
      {1.5296378, -2.7422280, 1.0200527, -2.9998548, -.6481269, -1.2308883, .9839264, -1.2924175}};
}
StreamGolden kept_golden() {
  return {{.iterations = 0, .post_eps = 1e-6f},
          {.5f, .75f},
          {-.3431126, -2.0637746, 2.4224477, -4.3448954, .4691561, .0616878, .3370075, -1.9240150}};
}

double distance(const std::vector<Matrix>& streams, const std::vector<double>& golden) {
  double largest = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    const double value = streams[i / 2].at(0, static_cast<int64_t>(i % 2));
    largest = std::max(largest, std::abs(value - golden[i]));
  }
  return largest;
}

TEST_P(OpsConformance, ConnectStreamsAsPublished) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  if (GetParam().width_unit > 1) GTEST_SKIP() << "no rows of two";
  const auto put = [&](const std::vector<float>& values) {
    return device_.put_as(std::span<const float>(values), act_, {1, std::ssize(values)});
  };
  for (const StreamGolden& golden : {mixed_golden(), kept_golden()}) {
    const ops::StreamMap map = patterned_map(device_, golden.rule.rows(), 8, golden.scale);
    const Matrix row = patterned_row();
    const View x = put({row.values.begin(), row.values.end()});
    const View out = poisoned({1, 2});
    streams->connect_streams({.x = x, .read = map, .out = out, .rule = golden.rule});
    Matrix expected(1, 2);
    expected.values = {kGoldenRead[0], kGoldenRead[1]};
    expect_close(read(out), expected, 4e-7, "what is read");
    streams->connect_streams({.x = x, .delta = put({1, -2}), .write = map, .rule = golden.rule});
    Matrix written(1, 8);
    written.values = golden.written;
    expect_close(read(x), written, 6e-7, "streams");
    // The formulas that the other tests go by are those, and none that public code was wrong with.
    Matrix branch(1, 2);
    branch.values = {1, -2};
    const std::vector<Matrix> begun = sums_of(row, 2);
    const auto made = [&](StreamFault fault) {
      return distance(reference_connect(golden.rule, to_reference(map), begun, branch, fault),
                      golden.written);
    };
    EXPECT_LE(made(StreamFault::kNone), 4e-7);  // they are of f32
    if (golden.rule.iterations == 0) continue;
    for (const StreamFault fault :
         {StreamFault::kUnturned, StreamFault::kOtherOrder, StreamFault::kExponentials,
          StreamFault::kNoEps, StreamFault::kEndsOnRows}) {
      EXPECT_GT(made(fault), 8e-7) << static_cast<int>(fault);
    }
  }
}

TEST_P(OpsConformance, ConnectStreams) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  for (const int32_t count : {1, 3, 4}) {
    for (const int32_t iterations : {0, 1, 20}) {
      const int64_t width = wide(37);
      SCOPED_TRACE(std::to_string(count) + " streams, " + std::to_string(iterations));
      const ops::StreamRule rule{.streams = count,
                                 .iterations = iterations,
                                 .eps = 0.01f,
                                 .norm_eps = 0.0137f,
                                 .magnitude = 1.7f,
                                 .post_eps = iterations == 0 ? 0.01f : 0.0f};
      const ops::StreamMap write =
          patterned_map(device_, rule.rows(), count * width, {.05f, .075f, .125f});
      const ops::StreamMap read_map = patterned_map(device_, count, count * width, {.06f});
      const View x = random({5, count * width});
      const View delta = random({5, width});
      const View alone = copy(x.rows(3, 1));
      const View parted = copy(x);
      const View out = poisoned({5, width});
      const View out_alone = poisoned({1, width});
      const View mean = poisoned({5, width});
      const std::vector<Matrix> expected =
          reference_connect(rule, to_reference(write), sums_of(read(x), width), read(delta));
      streams->connect_streams(
          {.x = x, .delta = delta, .write = write, .read = read_map, .out = out, .rule = rule});
      for (int32_t i = 0; i < count; ++i) {
        expect_close(read(x).slice(0, 5, i * width, width), expected[static_cast<size_t>(i)], 8e-6,
                     "stream");
      }
      const std::vector<Matrix> kept = sums_of(read(x), width);
      expect_close(read(out), reference_collapse(rule, to_reference(read_map), kept), 8e-6,
                   "what is read");
      streams->connect_streams({.x = x, .out = mean, .rule = rule});
      expect_close(read(mean), reference_collapse(rule, {}, kept), 8e-6, "their mean");
      streams->connect_streams({.x = alone,
                                .delta = delta.rows(3, 1),
                                .write = write,
                                .read = read_map,
                                .out = out_alone,
                                .rule = rule});
      expect_same_rows(alone, x.rows(3, 1), "alone");
      expect_same_rows(out_alone, out.rows(3, 1), "read alone");
      // A write and a read are what they are together.
      streams->connect_streams({.x = parted, .delta = delta, .write = write, .rule = rule});
      expect_same_rows(parted, x, "written");
    }
  }
}

// DeepSeek V4.1 reads by the numbers of the branch before: those of the published values above, of
// the streams behind it. Computed in float64 by numpy.
constexpr double kGoldenPre[] = {.3208223, .5120129, .2675139, .8381026};
constexpr double kGoldenDelayed[] = {1.6642704, -3.8281904};

TEST_P(OpsConformance, ConnectStreamsDelayedAsPublished) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  if (GetParam().width_unit > 1) GTEST_SKIP() << "no rows of two";
  const auto put = [&](const std::vector<float>& values, DType dtype) {
    return device_.put_as(std::span<const float>(values), dtype, {1, std::ssize(values)});
  };
  const StreamGolden golden = mixed_golden();
  const ops::StreamMap map = patterned_map(device_, golden.rule.rows(), 8, golden.scale);
  const Matrix row = patterned_row();
  const View x = put({row.values.begin(), row.values.end()}, act_);
  const View out = poisoned({1, 2});
  // The first branch reads stream 0.
  streams->connect_streams(
      {.x = x, .pre = put({1, 0, 0, 0}, DType::kF32), .out = out, .rule = golden.rule});
  expect_same_rows(out, put({-1.25f, -.25f}, act_), "stream 0");
  const View pre = poisoned(DType::kF32, {1, 4});
  streams->connect_streams({.x = x,
                            .delta = put({1, -2}, act_),
                            .write = map,
                            .pre = pre,
                            .out = out,
                            .rule = golden.rule});
  Matrix expected(1, 4);
  expected.values = {std::begin(kGoldenPre), std::end(kGoldenPre)};
  expect_close(read(pre), expected, 2e-7, "numbers");
  Matrix written(1, 8);
  written.values = golden.written;
  expect_close(read(x), written, 6e-7, "streams");
  expected = Matrix(1, 2);
  expected.values = {std::begin(kGoldenDelayed), std::end(kGoldenDelayed)};
  expect_close(read(out), expected, 6e-7, "what is read");
  // What a port may do in its place misses these: its own numbers, and none of eps.
  const std::vector<Matrix> behind = sums_of(written, 2);
  const auto misses = [&](const Matrix& wrong) {
    return std::abs(wrong.at(0, 0) - expected.at(0, 0)) > 2e-6;
  };
  ops::StreamRule without_eps = golden.rule;
  without_eps.eps = 0;
  const ReferenceMap made_by = to_reference(map);
  const std::vector<Matrix> before = sums_of(row, 2);
  EXPECT_FALSE(misses(reference_read(reference_pre(golden.rule, made_by, before), behind)));
  EXPECT_TRUE(misses(reference_collapse(golden.rule, made_by, behind)));
  EXPECT_TRUE(misses(reference_collapse(golden.rule, made_by, before)));
  EXPECT_TRUE(misses(reference_read(reference_pre(without_eps, made_by, before), behind)));
}

TEST_P(OpsConformance, ConnectStreamsDelayed) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  for (const int32_t count : {1, 3, 4}) {
    const int64_t width = wide(37);
    SCOPED_TRACE(std::to_string(count) + " streams");
    const ops::StreamRule rule{.streams = count, .iterations = 5, .eps = 0.01f, .norm_eps = 0.01f};
    const ops::StreamMap map =
        patterned_map(device_, rule.rows(), count * width, {.05f, .075f, .125f});
    const View x = random({5, count * width});
    const View delta = random({5, width});
    const View alone = copy(x.rows(3, 1));
    const View parted = copy(x);
    const Matrix made = reference_pre(rule, to_reference(map), sums_of(read(x), width));
    ops::ConnectStreamsArgs both{.x = x,
                                 .delta = delta,
                                 .write = map,
                                 .pre = poisoned(DType::kF32, {5, count}),
                                 .out = poisoned({5, width}),
                                 .rule = rule};
    streams->connect_streams(both);
    expect_close(read(both.pre), made, 4e-6, "numbers");
    expect_close(read(both.out), reference_read(read(both.pre), sums_of(read(x), width)), 8e-6,
                 "what is read");
    ops::ConnectStreamsArgs one = both;
    one.x = alone;
    one.delta = delta.rows(3, 1);
    one.pre = poisoned(DType::kF32, {1, count});
    one.out = poisoned({1, width});
    streams->connect_streams(one);
    expect_same_rows(one.pre, both.pre.rows(3, 1), "numbers alone");
    expect_same_rows(one.out, both.out.rows(3, 1), "read alone");
    // A write leaves for a read of its own what they are together.
    ops::ConnectStreamsArgs write = both;
    write.x = parted;
    write.pre = poisoned(DType::kF32, {5, count});
    write.out = {};
    streams->connect_streams(write);
    const View out = poisoned({5, width});
    streams->connect_streams({.x = parted, .pre = write.pre, .out = out, .rule = rule});
    expect_same_rows(parted, x, "written");
    expect_same_rows(out, both.out, "read");
  }
}

}  // namespace
}  // namespace rudder::testing
