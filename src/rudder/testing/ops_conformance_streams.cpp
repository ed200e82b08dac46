// mix_streams(), of backends that have StreamOps.
#include <gtest/gtest.h>

#include <vector>

#include "rudder/testing/ops_conformance.h"

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

}  // namespace
}  // namespace rudder::testing
