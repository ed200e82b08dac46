#include "rudder/testing/reference_streams.h"

#include <algorithm>
#include <cmath>

namespace rudder::testing {
namespace {

std::vector<double> row_of(const std::vector<Matrix>& streams, int64_t token) {
  std::vector<double> row;
  for (const Matrix& stream : streams) {
    for (int64_t k = 0; k < stream.cols; ++k) row.push_back(stream.at(token, k));
  }
  return row;
}

// Each line by its sum: of rows, or of columns.
void divide(std::vector<double>& c, size_t n, bool rows, double eps) {
  for (size_t line = 0; line < n; ++line) {
    double sum = eps;
    for (size_t i = 0; i < n; ++i) sum += c[rows ? line * n + i : i * n + line];
    for (size_t i = 0; i < n; ++i) c[rows ? line * n + i : i * n + line] /= sum;
  }
}

std::vector<double> mix_of(const ops::StreamRule& rule, const std::vector<double>& logits,
                           StreamFault fault) {
  const auto n = static_cast<size_t>(rule.streams);
  const double eps = double{rule.eps};
  std::vector<double> c(logits.size());
  std::ranges::transform(logits, c.begin(), [](double logit) { return std::exp(logit); });
  if (fault != StreamFault::kExponentials) {
    divide(c, n, true, 0);
    for (double& value : c) value += eps;
  }
  const double added = fault == StreamFault::kNoEps ? 0 : eps;
  const bool ends_on_rows = fault == StreamFault::kEndsOnRows;
  for (int32_t again = 0; again < rule.iterations; ++again) {
    if (again > 0 && !ends_on_rows) divide(c, n, true, added);
    divide(c, n, false, added);
    if (ends_on_rows) divide(c, n, true, added);
  }
  return c;
}

}  // namespace

double reference_sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

std::vector<Matrix> streams_of(const Matrix& x, int64_t width) {
  std::vector<Matrix> streams;
  for (int64_t begin = 0; begin < x.cols; begin += width) {
    streams.push_back(x.slice(0, x.rows, begin, width));
  }
  return streams;
}

ReferenceMap to_reference(const ops::StreamMap& map) {
  if (map.empty()) return {};
  return {to_matrix(map.fn), to_matrix(map.base), to_matrix(map.scale)};
}

ReferenceNumbers reference_numbers(const ops::StreamRule& rule, const ReferenceMap& map,
                                   const std::vector<double>& row, StreamFault fault) {
  const int64_t n = rule.streams;
  double square = 0;
  for (const double x : row) square += x * x;
  const double inverse =
      1 / std::sqrt(square / static_cast<double>(row.size()) + double{rule.norm_eps});
  const auto logit = [&](int64_t at, int64_t part) {
    double m = 0;
    for (size_t k = 0; k < row.size(); ++k) m += map.fn.at(at, static_cast<int64_t>(k)) * row[k];
    return m * inverse * map.scale.at(0, part) + map.base.at(0, at);
  };
  const bool mixes = rule.iterations > 0;
  const int64_t post = fault == StreamFault::kOtherOrder ? n + n * n : n;
  const int64_t mix = fault == StreamFault::kOtherOrder ? n : 2 * n;
  ReferenceNumbers out;
  for (int64_t i = 0; i < n; ++i)
    out.pre.push_back(reference_sigmoid(logit(i, 0)) + double{rule.eps});
  if (map.fn.rows == n) return out;
  for (int64_t j = 0; j < n; ++j) {
    out.post.push_back(double{rule.magnitude} * reference_sigmoid(logit(post + j, 1)) +
                       double{rule.post_eps});
  }
  if (!mixes) return out;
  std::vector<double> logits;
  logits.reserve(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n * n; ++i) logits.push_back(logit(mix + i, 2));
  out.mix = mix_of(rule, logits, fault);
  return out;
}

std::vector<Matrix> reference_connect(const ops::StreamRule& rule, const ReferenceMap& map,
                                      const std::vector<Matrix>& streams, const Matrix& branch,
                                      StreamFault fault) {
  const size_t n = streams.size();
  std::vector<Matrix> out = streams;
  for (int64_t t = 0; t < branch.rows; ++t) {
    const ReferenceNumbers numbers = reference_numbers(rule, map, row_of(streams, t), fault);
    for (size_t j = 0; j < n; ++j) {
      for (int64_t k = 0; k < branch.cols; ++k) {
        double sum = numbers.post[j] * branch.at(t, k);
        for (size_t i = 0; i < n; ++i) {
          const size_t at = fault == StreamFault::kUnturned ? j * n + i : i * n + j;
          const double share = numbers.mix.empty() ? (i == j ? 1 : 0) : numbers.mix[at];
          sum += share * streams[i].at(t, k);
        }
        out[j].at(t, k) = sum;
      }
    }
  }
  return out;
}

Matrix reference_pre(const ops::StreamRule& rule, const ReferenceMap& map,
                     const std::vector<Matrix>& streams) {
  const auto n = static_cast<int64_t>(streams.size());
  Matrix pre(streams[0].rows, n);
  for (int64_t t = 0; t < pre.rows; ++t) {
    const std::vector<double> of_token =
        map.fn.rows == 0 ? std::vector<double>(streams.size(), 1 / static_cast<double>(n))
                         : reference_numbers(rule, map, row_of(streams, t)).pre;
    for (int64_t i = 0; i < n; ++i) pre.at(t, i) = of_token[static_cast<size_t>(i)];
  }
  return pre;
}

Matrix reference_read(const Matrix& pre, const std::vector<Matrix>& streams) {
  Matrix out(streams[0].rows, streams[0].cols);
  for (int64_t t = 0; t < out.rows; ++t) {
    for (size_t i = 0; i < streams.size(); ++i) {
      const double share = pre.at(t, static_cast<int64_t>(i));
      for (int64_t k = 0; k < out.cols; ++k) out.at(t, k) += share * streams[i].at(t, k);
    }
  }
  return out;
}

Matrix reference_collapse(const ops::StreamRule& rule, const ReferenceMap& map,
                          const std::vector<Matrix>& streams) {
  return reference_read(reference_pre(rule, map, streams), streams);
}

}  // namespace rudder::testing
