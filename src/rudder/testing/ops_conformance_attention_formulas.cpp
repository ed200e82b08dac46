// What attention of the conformance suite is compared with: the formulas, of queries as they are
// and, where a backend may round them, of rounded ones.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "rudder/testing/ops_conformance_attention.h"
#include "rudder/testing/round_query_row.h"

namespace rudder::testing {

using tensor::DType;
using tensor::View;

namespace {

// What a cache with scales of its tokens has of a row of numbers.
double nudged(double code, double largest, double nudge) {
  return code + nudge * (std::abs(code) + 0.3 * largest);
}

void round_to_codes(std::span<double> row, DType dtype, double nudge) {
  float largest = 0;
  for (const double value : row) largest = std::max(largest, std::abs(static_cast<float>(value)));
  const float scale = largest / ops::largest_code(dtype);
  if (scale == 0) return;
  for (double& value : row) {
    const double code = nudged(value / double{scale}, double{ops::largest_code(dtype)}, nudge);
    const auto near = static_cast<float>(code);
    value =
        double{scale} * (dtype == DType::kI8 ? std::nearbyint(code)
                                             : double{tensor::to_float(tensor::to_f8e4m3(near))});
  }
}

// What roundings to numbers of these units may do, of many that would round otherwise.
void disturb(Matrix& x, double unit, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(1 - unit, 1 + unit);
  for (double& value : x.values) value *= uniform(random);
}

void round_queries(Matrix& q, int64_t head_dim) {
  for (auto row = q.values.begin(); row != q.values.end(); row += head_dim) {
    std::vector<float> head(row, row + head_dim);
    round_query_row(head);
    std::copy(head.begin(), head.end(), row);
  }
}

}  // namespace

Matrix OpsAttention::cached(const Matrix& x, const AttentionShape& shape,
                            std::span<const float> scales, double nudge) const {
  const ops::KvFormat format = ops_.kv_format();
  Matrix out = x;
  if (format.scales_tokens) {
    for (auto row = out.values.begin(); row != out.values.end(); row += shape.head_dim) {
      round_to_codes({row, row + shape.head_dim}, format.dtype, nudge);
    }
    return out;
  }
  if (scales.empty()) {
    if (format.has_codes()) {
      for (double& value : out.values) value = nudged(value, 0, nudge);
    }
    return rounded(out, format.dtype);
  }
  const auto scale_of = [&](int64_t column) {
    return double{scales[static_cast<size_t>(column / shape.head_dim)]};
  };
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) out.at(r, c) = nudged(x.at(r, c) / scale_of(c), 0, nudge);
  }
  out = rounded(out, format.dtype);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) out.at(r, c) *= scale_of(c);
  }
  return out;
}

Matrix OpsAttention::expected(const Layer& layer, const Sequence& sequence, int64_t begin,
                              int64_t count, const Precision& precision,
                              std::vector<Matrix>* patterns) {
  const AttentionShape& shape = layer.shape;
  const int64_t q_width = shape.heads * shape.head_dim;
  const int64_t kv_width = shape.kv_heads * shape.head_dim;
  const int64_t length = begin + count;
  const Matrix qkv = to_matrix(sequence.qkv.view());
  std::vector<int32_t> positions(static_cast<size_t>(length));
  std::iota(positions.begin(), positions.end(), 0);
  Matrix rope;
  if (shape.rotary > 0) {
    View flat = layer.host_rope.view();
    flat.shape = {kMaxPositions, shape.rotary};
    rope = to_matrix(flat);
  }
  const auto prepared = [&](int64_t column, int64_t width, const ops::NormSpec& norm) {
    const Matrix part = qkv.slice(0, length, column, width);
    const auto turned = [&](const Matrix& x) {
      return reference_rope(x, shape.head_dim, rope, positions);
    };
    return shape.norms_rotated ? reference_norm(turned(part), read(norm))
                               : turned(reference_norm(part, read(norm)));
  };
  Matrix q = prepared(0, q_width, layer.q_norm);
  for (int64_t r = 0; r < q.rows && shape.has_q_scale; ++r) {
    for (int64_t c = 0; c < q.cols; ++c) {
      q.at(r, c) *= double{layer.host_q_scale[static_cast<size_t>(r)]};
    }
  }
  Matrix k = prepared(q_width, kv_width, layer.k_norm);
  Matrix v = reference_norm(qkv.slice(0, length, q_width + kv_width, kv_width), read(layer.v_norm));
  // What a cache of codes holds is far from what was written to it: there the formulas start from
  // it.
  if (precision.low || ops_.kv_format().has_codes()) {
    k = cached(k, shape, layer.k_scales, precision.nudge);
    v = cached(v, shape, layer.v_scales, precision.nudge);
  }
  if (precision.disturbance > 0) {
    std::mt19937_64 random(precision.disturbance);
    for (Matrix* const x : {&q, &k, &v}) disturb(*x, rounding_unit(), random);
  }
  const bool rounds_queries = precision.rounded_q != nullptr;
  if (precision.low || rounds_queries) q = rounded(q, act_);
  if (rounds_queries) {
    const Matrix& own = *precision.rounded_q;
    const Matrix formula = q.slice(q.rows - own.rows, own.rows, 0, q_width);
    EXPECT_LE(max_difference(own, formula), act_unit() * max_abs(formula) + 1e-6) << "queries";
    std::copy(own.values.begin(), own.values.end(), q.values.end() - std::ssize(own.values));
    round_queries(q, shape.head_dim);
  }
  const ReferenceAttention spec{.num_heads = shape.heads,
                                .num_kv_heads = shape.kv_heads,
                                .scale = double{score_scale(shape)},
                                .window = shape.window,
                                .softcap = double{shape.softcap},
                                .sinks = {layer.sinks.begin(), layer.sinks.end()},
                                .gate = layer.reference_gate,
                                .product_dtype = is_bf16() ? DType::kBF16 : DType::kF32,
                                .round_products = precision.low,
                                .cut_sums = precision.low && rounds_queries};
  return reference_attention(spec, q.slice(begin, count, 0, q_width), k, v, patterns);
}

double OpsAttention::rounding_unit() const {
  // Codes times scales are rounded once more where products take bf16; and where tokens have scales
  // a number between two codes may become either, by a rope's last bit.
  const bool may_turn = is_bf16() ? ops_.kv_format().has_codes() : ops_.kv_format().scales_tokens;
  return std::ldexp(1.0, is_bf16() ? -9 : -21) + (may_turn ? std::ldexp(1.0, -9) : 0);
}

void OpsAttention::expect_formula(const View& rows, const View& q, const Layer& layer,
                                  const Sequence& sequence, int64_t end, const std::string& what,
                                  const AttentionAllowance& allowance) {
  const Matrix got = read(rows);
  const Matrix own_q = read(q);
  const int64_t head_dim = layer.shape.head_dim;
  const double unit = rounding_unit() + act_unit();
  // The largest difference of each row of a head, divided by what it may be.
  const auto misses = [&](const Matrix* rounded_q, int64_t least_rows, uint64_t num_twins) {
    const int64_t count = std::min(end, std::max(least_rows, got.rows));
    const Matrix exact = expected(layer, sequence, end - count, count, {false, rounded_q});
    double most = 0;
    for (uint64_t i = 0; i < num_twins; ++i) {
      const Precision low{.low = true, .rounded_q = rounded_q, .disturbance = i};
      most =
          std::max(most, max_difference(expected(layer, sequence, end - count, count, low), exact));
    }
    const double tolerance = 2 * most + unit * max_abs(exact) + allowance.more;
    // A number that lies between two codes may become either.
    std::vector<Matrix> others;
    for (const double nudge : {-1e-6, 1e-6}) {
      if (!ops_.kv_format().has_codes()) break;
      others.push_back(expected(layer, sequence, end - count, count, {false, rounded_q, nudge}));
    }
    Matrix out(got.rows, got.cols / head_dim);
    for (int64_t r = 0; r < got.rows; ++r) {
      for (int64_t c = 0; c < got.cols; ++c) {
        const double want = exact.at(count - got.rows + r, c);
        double allowed = tolerance;
        for (const Matrix& other : others) {
          allowed += std::abs(other.at(count - got.rows + r, c) - want);
        }
        double& miss = out.at(r, c / head_dim);
        // Not std::max, which would lose a NaN.
        const double found = std::abs(got.at(r, c) - want) / allowed;
        if (!(found <= miss) && !std::isnan(miss)) miss = found;
      }
    }
    return out;
  };
  Matrix miss = misses(nullptr, allowance.least_rows, 1);
  // One twin of few rows may have been lucky.
  constexpr uint64_t kTwins = 8;
  if (max_abs(miss) > 1) miss = misses(nullptr, allowance.least_rows, kTwins);
  if (may_round_queries() && max_abs(miss) > 1) {
    const Matrix rounded = misses(&own_q, kOfMany.least_rows, 1);
    for (size_t i = 0; i < miss.values.size(); ++i) {
      miss.values[i] = std::min(miss.values[i], rounded.values[i]);
    }
  }
  for (int64_t r = 0; r < miss.rows; ++r) {
    for (int64_t h = 0; h < miss.cols; ++h) {
      ASSERT_LE(miss.at(r, h), 1) << what << ", row " << r << ", head " << h;
    }
  }
}

void OpsAttention::expect_same_attention(const View& a, const View& b, const View& q,
                                         const Layer& layer, const Sequence& sequence, int64_t end,
                                         const std::string& what) {
  if (GetParam().rows_are_exact || !may_round_queries()) return expect_same_rows(a, b, what);
  for (const View& rows : {a, b}) {
    expect_formula(rows, q, layer, sequence, end, what, kOfMany);
  }
}

}  // namespace rudder::testing
