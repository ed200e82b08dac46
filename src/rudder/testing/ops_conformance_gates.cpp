// gate_streams(), of backends that have StreamOps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance_streams.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

// ((step * i) mod period - middle) / by: numbers that anyone can make.
std::vector<float> pattern(int64_t count, int64_t step, int64_t period, int64_t middle, float by) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>((step * i) % period - middle) / by);
  }
  return values;
}

ops::StreamGate patterned_gate(Device& device, int64_t streams, int64_t width, int64_t rank,
                               float eps, float by) {
  const auto put = [&](const std::vector<float>& values, tensor::Shape shape) {
    return device.put_as(std::span<const float>(values), DType::kF32, shape);
  };
  const int64_t row = streams * width;
  std::vector<float> norm = pattern(row, 13, 7, 3, 8);
  for (float& gain : norm) gain += 1;
  return {.norm = {.weight = put(norm, {row}), .eps = eps},
          .down = put(pattern(rank * row, 53, 23, 11, 16 * by), {rank, row}),
          .up = put(pattern(row * rank, 29, 13, 6, 8), {row, rank}),
          .inject = put(pattern(streams * row, 31, 17, 8, 8 * by), {streams, row})};
}

// What transformers' Qwen4ExpTextGatedResidual makes of these, four streams of two, with a branch
// of (1, -2).
TEST_P(OpsConformance, GateStreamsAsPublished) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  if (GetParam().width_unit > 1) GTEST_SKIP() << "no rows of two";
  const auto put = [&](const std::vector<float>& values) {
    return device_.put_as(std::span<const float>(values), act_, {1, std::ssize(values)});
  };
  const ops::StreamGate gate = patterned_gate(device_, 4, 2, 2, 1e-6f, 1);
  const View x = put(pattern(8, 37, 11, 5, 4));
  const View out = poisoned({1, 2});
  const std::vector<Matrix> begun = streams_of(read(x), 2);
  streams->gate_streams({.x = x, .read = gate, .out = out});
  Matrix normed(1, 2);
  normed.values = {-.1015994, -.0180532};
  expect_close(read(out), normed, 4e-7, "what is read");
  streams->gate_streams({.x = x, .delta = put({1, -2}), .write = gate});
  Matrix written(1, 8);
  written.values = {-.3473364, -2.0553272, 1.8542962, -3.2085924,
                    1.2226325, -1.4452651, .3100970,  -1.8701940};
  expect_close(read(x), written, 4e-7, "streams");
  // The formulas that the other tests go by are those, and none of these faults.
  Matrix branch(1, 2);
  branch.values = {1, -2};
  const auto reads = [&](GateFault fault) {
    return max_difference(reference_gated_read(to_reference(gate, device_), begun, fault), normed);
  };
  const auto writes = [&](GateFault fault) {
    const auto made = reference_gated_write(to_reference(gate, device_), begun, branch, fault);
    double largest = 0;
    for (size_t i = 0; i < 8; ++i) {
      const double value = made[i / 2].at(0, static_cast<int64_t>(i % 2));
      largest = std::max(largest, std::abs(value - written.values[i]));
    }
    return largest;
  };
  EXPECT_LE(reads(GateFault::kNone), 2e-7);
  EXPECT_LE(writes(GateFault::kNone), 4e-7);
  for (const GateFault fault :
       {GateFault::kNormOfAll, GateFault::kRawValues, GateFault::kUnshared, GateFault::kSum}) {
    EXPECT_GT(reads(fault), 1e-3) << static_cast<int>(fault);
  }
  for (const GateFault fault :
       {GateFault::kNormOfAll, GateFault::kUnshared, GateFault::kHalfWritten}) {
    EXPECT_GT(writes(fault), 1e-3) << static_cast<int>(fault);
  }
}

TEST_P(OpsConformance, GateStreams) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  for (const int32_t count : {1, 3, 4}) {
    for (const int64_t rank : {1, 10}) {
      const int64_t width = wide(37);
      SCOPED_TRACE(std::to_string(count) + " streams, " + std::to_string(rank));
      const ops::StreamGate gate = patterned_gate(device_, count, width, rank, 0.01f, 8);
      const ReferenceStreamGate formulas = to_reference(gate, device_);
      const View x = random({5, count * width});
      const View delta = random({5, width});
      const View parted = copy(x);
      const View alone = copy(x.rows(3, 1));
      const View out = poisoned({5, width});
      const std::vector<Matrix> expected =
          reference_gated_write(formulas, streams_of(read(x), width), read(delta));
      streams->gate_streams({.x = x, .delta = delta, .write = gate, .read = gate, .out = out});
      const std::vector<Matrix> kept = streams_of(read(x), width);
      for (size_t i = 0; i < kept.size(); ++i) expect_close(kept[i], expected[i], 8e-6, "stream");
      expect_close(read(out), reference_gated_read(formulas, kept), 8e-6, "what is read");
      // A write and a read are what they are together, and a row is what it is alone.
      const View out_parted = poisoned({5, width});
      streams->gate_streams({.x = parted, .delta = delta, .write = gate});
      streams->gate_streams({.x = parted, .read = gate, .out = out_parted});
      expect_same_rows(parted, x, "written");
      expect_same_rows(out_parted, out, "read");
      const View out_alone = poisoned({1, width});
      streams->gate_streams(
          {.x = alone, .delta = delta.rows(3, 1), .write = gate, .read = gate, .out = out_alone});
      expect_same_rows(alone, x.rows(3, 1), "alone");
      expect_same_rows(out_alone, out.rows(3, 1), "read alone");
    }
  }
}

}  // namespace
}  // namespace rudder::testing
