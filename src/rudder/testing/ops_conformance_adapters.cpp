// shrink_adapters() and expand_adapters(), of backends that have AdapterOps.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

struct AdapterShape {
  std::vector<int64_t> outs;
  int64_t in = 0;
  int32_t rank = 16;
  int64_t tokens = 0;
};

// Numbers of A, B and scales as the device has them, [table rows * .].
struct Adapters {
  ops::AdapterWeights weights;
  Matrix a;
  Matrix b;
  std::vector<float> scales;
  std::vector<float> gains;
  std::vector<float> offsets;  // empty: none
};

constexpr int64_t kTableRows = 3;

// What is in `out` with what adapters add, and how much that may be off.
Matrix reference_adapted(const Matrix& x, const Matrix& out, const Adapters& adapters,
                         const std::vector<int32_t>& rows, double* magnitude) {
  Matrix sum = out;
  const ops::AdapterWeights& weights = adapters.weights;
  for (int64_t t = 0; t < x.rows; ++t) {
    const int64_t row = rows[static_cast<size_t>(t)];
    if (row < 0) continue;
    int64_t begin = 0;
    for (int64_t part = 0; part < weights.num_parts; ++part) {
      const int64_t end = weights.part_end[static_cast<size_t>(part)];
      const auto at = static_cast<size_t>(2 * (row * weights.num_parts + part));
      const double scale = adapters.scales[at];
      std::vector<double> mid(static_cast<size_t>(weights.rank), 0.0);
      for (int64_t r = 0; r < weights.rank && scale != 0; ++r) {
        for (int64_t i = 0; i < x.cols; ++i) {
          mid[static_cast<size_t>(r)] +=
              adapters.a.at(row * weights.mid_width() + part * weights.rank + r, i) * x.at(t, i);
        }
      }
      for (int64_t o = begin; o < end && scale != 0; ++o) {
        double delta = 0;
        double terms = 0;
        for (int64_t r = 0; r < weights.rank; ++r) {
          const double term = adapters.b.at(row * out.cols + o, r) * mid[static_cast<size_t>(r)];
          delta += term;
          terms += std::abs(term);
        }
        sum.at(t, o) += scale * delta;
        *magnitude = std::max(*magnitude, std::abs(scale) * terms);
      }
      for (int64_t o = begin; o < end && adapters.scales[at + 1] != 0; ++o) {
        const auto of_row = static_cast<size_t>(row * out.cols + o);
        sum.at(t, o) = sum.at(t, o) * adapters.gains[of_row] +
                       (adapters.offsets.empty() ? 0.0 : adapters.offsets[of_row]);
      }
      begin = end;
    }
  }
  return sum;
}

// Every row with an adapter, with none, and with one that leaves a part alone: in a call with all
// of them, alone, and in another order.
TEST_P(OpsConformance, Adapters) {
  ops::AdapterOps* const facet = ops_.adapter_ops();
  if (facet == nullptr) GTEST_SKIP() << "it has no adapters";
  const std::vector<AdapterShape> shapes = {{{wide(37)}, wide(53), 16, 1},
                                            {{wide(64), wide(16), wide(16)}, wide(64), 16, 11},
                                            {{wide(96), wide(96)}, wide(1100), 16, 19},
                                            {{wide(300)}, wide(2080), 48, 9},
                                            {{wide(272), wide(32), wide(8)}, wide(1032), 64, 8},
                                            {{wide(40)}, wide(17000), 16, 3},
                                            {{wide(24), wide(24), wide(24)}, wide(72), 352, 5},
                                            {{wide(88), wide(24)}, wide(4128), 16, 61},
                                            {{wide(64)}, wide(64), 16, 0}};
  for (const AdapterShape& shape : shapes) {
    SCOPED_TRACE(std::to_string(shape.tokens) + " rows of " + std::to_string(shape.in) + ", rank " +
                 std::to_string(shape.rank));
    Adapters adapters;
    ops::AdapterWeights& weights = adapters.weights;
    weights.num_parts = static_cast<int32_t>(shape.outs.size());
    weights.rank = shape.rank;
    int64_t out = 0;
    for (size_t part = 0; part < shape.outs.size(); ++part) {
      weights.part_end[part] = out += shape.outs[part];
    }
    const View a = random({kTableRows * weights.mid_width(), shape.in}, 0.3);
    const View b = random({kTableRows * out, weights.rank}, 0.3);
    adapters.a = read(a);
    adapters.b = read(b);
    weights.a = {a.data, a.dtype, {kTableRows, weights.mid_width(), shape.in}};
    weights.b = {b.data, b.dtype, {kTableRows, out, weights.rank}};
    adapters.scales = random_values(kTableRows * weights.num_parts * 2);
    for (size_t i = 1; i < adapters.scales.size(); i += 2) {
      adapters.scales[i] = i % 4 == 1 ? 1.0f : 0.0f;
    }
    adapters.scales[2] = 0;  // of the first row's second part, or of the second row
    adapters.gains = random_values(kTableRows * out);
    const View gains =
        device_.put_as(std::span<const float>(adapters.gains), DType::kF32, {kTableRows, out});
    weights.gains = gains;
    if (shape.tokens % 2 == 1) {
      adapters.offsets = random_values(kTableRows * out);
      weights.offsets =
          device_.put_as(std::span<const float>(adapters.offsets), DType::kF32, {kTableRows, out});
    }
    weights.scales = device_.put_as(std::span<const float>(adapters.scales), DType::kF32,
                                    {kTableRows, weights.num_parts, 2});
    const int64_t tokens = shape.tokens;
    std::vector<int32_t> rows;
    rows.reserve(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) rows.push_back(static_cast<int32_t>(between(-1, 2)));
    if (tokens > 4) rows[3] = -1;
    if (tokens > 0) rows.back() = 2;
    const View x = random({tokens, shape.in});
    const View y = random({tokens, out});
    const View before = copy(y);
    const View mid = poisoned(DType::kF32, {std::max<int64_t>(tokens, 1) * weights.mid_width()});
    const auto put_batch = [&](const std::vector<int32_t>& values) {
      const auto count = static_cast<int64_t>(values.size());
      std::vector<int32_t> order(values.size());
      std::vector<ops::AdapterGroup> groups(values.size());
      ops::group_tokens(values, order, groups);
      const std::span<const int32_t> words(reinterpret_cast<const int32_t*>(groups.data()),
                                           groups.size() * 4);
      return ops::AdapterBatch{
          .rows = device_.put_as(std::span<const int32_t>(values), DType::kI32, {count}),
          .order = device_.put_as(std::span<const int32_t>(order), DType::kI32, {count}),
          .groups = device_.put_as(words, DType::kI32, {count, 4})};
    };
    const auto adapt = [&](const ops::AdaptArgs& args) {
      facet->shrink_adapters(args);
      facet->expand_adapters(args);
    };
    double magnitude = 0;
    const Matrix expected = reference_adapted(read(x), read(y), adapters, rows, &magnitude);
    adapt({.x = x, .tokens = put_batch(rows), .weights = &weights, .mid = mid, .out = y});
    const double tolerance = 4e-7 * static_cast<double>(shape.in + weights.rank) * (1 + magnitude);
    expect_close(read(y), expected, tolerance, "with adapters");
    for (int64_t t = 0; t < tokens; ++t) {
      const View own = y.rows(t, 1);
      if (rows[static_cast<size_t>(t)] < 0) {
        EXPECT_EQ(device_.values<std::byte>(own), device_.values<std::byte>(before.rows(t, 1)))
            << "row " << t;
        continue;
      }
      // Alone, whatever the backend's products promise: this op's order depends on shapes alone.
      const View alone = copy(before.rows(t, 1));
      adapt({.x = x.rows(t, 1),
             .tokens = put_batch({rows[static_cast<size_t>(t)]}),
             .weights = &weights,
             .mid = mid,
             .out = alone});
      EXPECT_EQ(device_.values<std::byte>(alone), device_.values<std::byte>(own)) << "row " << t;
    }
  }
}

}  // namespace
}  // namespace rudder::testing
