// connect_streams(), of backends that have StreamOps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rudder/testing/ops_conformance_streams.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

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
    const std::vector<Matrix> begun = streams_of(row, 2);
    const auto made = [&](StreamFault fault) {
      return distance(
          reference_connect(golden.rule, to_reference(map, device_), begun, branch, fault),
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

// Of iterations, columns of a stream and rows; a backend may work on several rows at a time.
struct ConnectShape {
  int32_t iterations;
  int64_t columns;
  int64_t rows;
};
std::vector<ConnectShape> connect_shapes(int32_t streams) {
  std::vector<ConnectShape> shapes = {{0, 37, 5}, {1, 37, 5}, {20, 37, 5}};
  if (streams < 4) return shapes;
  for (const int32_t iterations : {0, 20}) {
    shapes.push_back({iterations, 1032, 12});
    shapes.push_back({iterations, 300, 20});
    shapes.push_back({iterations, 37, 40});
  }
  shapes.push_back({20, 4096, 33});
  return shapes;
}

TEST_P(OpsConformance, ConnectStreams) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  for (const int32_t count : {1, 3, 4}) {
    for (const auto& [iterations, columns, rows] : connect_shapes(count)) {
      const int64_t width = wide(columns);
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(count) + " streams of " +
                   std::to_string(width) + ", " + std::to_string(iterations));
      const ops::StreamRule rule{.streams = count,
                                 .iterations = iterations,
                                 .eps = 0.01f,
                                 .norm_eps = 0.0137f,
                                 .magnitude = 1.7f,
                                 .post_eps = iterations == 0 ? 0.01f : 0.0f};
      const ops::StreamMap write =
          patterned_map(device_, rule.rows(), count * width, {.05f, .075f, .125f});
      const ops::StreamMap read_map = patterned_map(device_, count, count * width, {.06f});
      const View x = random({rows, count * width});
      const View delta = random({rows, width});
      const View alone = copy(x.rows(3, 1));
      const View parted = copy(x);
      const View out = poisoned({rows, width});
      const View out_alone = poisoned({1, width});
      const View mean = poisoned({rows, width});
      const std::vector<Matrix> expected = reference_connect(
          rule, to_reference(write, device_), streams_of(read(x), width), read(delta));
      streams->connect_streams(
          {.x = x, .delta = delta, .write = write, .read = read_map, .out = out, .rule = rule});
      for (int32_t i = 0; i < count; ++i) {
        expect_close(read(x).slice(0, rows, i * width, width), expected[static_cast<size_t>(i)],
                     8e-6, "stream");
      }
      const std::vector<Matrix> kept = streams_of(read(x), width);
      expect_close(read(out), reference_collapse(rule, to_reference(read_map, device_), kept), 8e-6,
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

// One op has the bits of the two.
TEST_P(OpsConformance, ConnectAndNorm) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  int done = 0;
  for (const auto& [count, columns, rows] :
       std::vector<std::tuple<int32_t, int64_t, int64_t>>{{3, 37, 5},
                                                          {4, 37, 5},
                                                          {4, 300, 40},
                                                          {4, 1032, 12},
                                                          {4, 2056, 20},
                                                          {4, 4096, 1},
                                                          {4, 4096, 33},
                                                          {4, 5120, 3}}) {
    for (const bool quantises : {false, true}) {
      if (quantises && !writes_f8()) continue;
      const int64_t width = wide(columns);
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(count) + " streams of " +
                   std::to_string(width) + (quantises ? ", quantised" : ""));
      const ops::StreamRule rule{.streams = count, .iterations = 4, .eps = 0.01f};
      const ops::StreamMap map =
          patterned_map(device_, rule.rows(), count * width, {.05f, .075f, .125f});
      ops::NormSpec norm = random_norm(width);
      norm.alpha = {};
      const View x = random({rows, count * width});
      const View apart = copy(x);
      struct Out {
        View collapsed;
        View normed;
        View scale;
      };
      const auto make_out = [&] {
        const DType dtype = quantises ? DType::kF8E4M3 : act_;
        return Out{poisoned({rows, width}), poisoned(dtype, {rows, width}),
                   quantises ? poisoned(DType::kF32, {rows}) : View{}};
      };
      const Out one = make_out();
      const Out two = make_out();
      ops::ConnectStreamsArgs args{.x = x,
                                   .delta = random({rows, width}),
                                   .write = map,
                                   .read = map,
                                   .out = one.collapsed,
                                   .rule = rule};
      ops::ResidualNormArgs normed{
          .x = one.collapsed, .norm = norm, .out = one.normed, .out_scale = one.scale};
      if (!streams->connect_and_norm(args, normed)) continue;
      ++done;
      args.x = apart;
      args.out = normed.x = two.collapsed;
      normed.out = two.normed;
      normed.out_scale = two.scale;
      streams->connect_streams(args);
      ops_.residual_norm(normed);
      EXPECT_EQ(max_difference(read(x), read(apart)), 0);
      EXPECT_EQ(max_difference(read(one.collapsed), read(two.collapsed)), 0);
      EXPECT_TRUE(
          std::ranges::equal(device_.get(one.normed).bytes(), device_.get(two.normed).bytes()));
      if (!quantises) continue;
      EXPECT_EQ(max_difference(read(one.scale), read(two.scale)), 0);
    }
  }
  if (done == 0) GTEST_SKIP() << "it runs the two";
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
  const std::vector<Matrix> behind = streams_of(written, 2);
  const auto misses = [&](const Matrix& wrong) {
    return std::abs(wrong.at(0, 0) - expected.at(0, 0)) > 2e-6;
  };
  ops::StreamRule without_eps = golden.rule;
  without_eps.eps = 0;
  const ReferenceMap made_by = to_reference(map, device_);
  const std::vector<Matrix> before = streams_of(row, 2);
  EXPECT_FALSE(misses(reference_read(reference_pre(golden.rule, made_by, before), behind)));
  EXPECT_TRUE(misses(reference_collapse(golden.rule, made_by, behind)));
  EXPECT_TRUE(misses(reference_collapse(golden.rule, made_by, before)));
  EXPECT_TRUE(misses(reference_read(reference_pre(without_eps, made_by, before), behind)));
}

TEST_P(OpsConformance, ConnectStreamsDelayed) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  for (const auto& [count, rows] : {std::pair(1, 5), {3, 5}, {4, 5}, {4, 12}, {4, 20}, {4, 40}}) {
    const int64_t width = wide(37);
    SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(count) + " streams");
    const ops::StreamRule rule{.streams = count, .iterations = 5, .eps = 0.01f, .norm_eps = 0.01f};
    const ops::StreamMap map =
        patterned_map(device_, rule.rows(), count * width, {.05f, .075f, .125f});
    const View x = random({rows, count * width});
    const View delta = random({rows, width});
    const View alone = copy(x.rows(3, 1));
    const View parted = copy(x);
    const Matrix made = reference_pre(rule, to_reference(map, device_), streams_of(read(x), width));
    ops::ConnectStreamsArgs both{.x = x,
                                 .delta = delta,
                                 .write = map,
                                 .pre = poisoned(DType::kF32, {rows, count}),
                                 .out = poisoned({rows, width}),
                                 .rule = rule};
    streams->connect_streams(both);
    expect_close(read(both.pre), made, 4e-6, "numbers");
    expect_close(read(both.out), reference_read(read(both.pre), streams_of(read(x), width)), 8e-6,
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
    write.pre = poisoned(DType::kF32, {rows, count});
    write.out = {};
    streams->connect_streams(write);
    const View out = poisoned({rows, width});
    streams->connect_streams({.x = parted, .pre = write.pre, .out = out, .rule = rule});
    expect_same_rows(parted, x, "written");
    expect_same_rows(out, both.out, "read");
  }
}

}  // namespace
}  // namespace rudder::testing
