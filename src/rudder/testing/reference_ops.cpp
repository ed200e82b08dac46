#include "rudder/testing/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rudder/base/check.h"

namespace rudder::testing {
namespace {

using tensor::DType;

double load(const tensor::View& view, int64_t i) {
  switch (view.dtype) {
    case DType::kF32:
      return double{view.as<float>()[i]};
    case DType::kF16:
      return double{tensor::to_float(view.as<tensor::F16>()[i])};
    case DType::kBF16:
      return double{tensor::to_float(view.as<tensor::BF16>()[i])};
    case DType::kF8E4M3:
      return double{tensor::to_float(view.as<tensor::F8E4M3>()[i])};
    default:
      RUDDER_CHECK(false, "dtype {}", tensor::dtype_name(view.dtype));
  }
}

double round_to(double x, DType dtype) {
  const auto value = static_cast<float>(x);
  if (dtype == DType::kBF16) return double{tensor::to_float(tensor::to_bf16(value))};
  if (dtype == DType::kF16) return double{tensor::to_float(tensor::to_f16(value))};
  if (dtype == DType::kF8E4M3) return double{tensor::to_float(tensor::to_f8e4m3(value))};
  return double{value};
}

double activate(double x, ops::Activation activation) {
  switch (activation) {
    case ops::Activation::kSilu:
      return x / (1 + std::exp(-x));
    case ops::Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ops::Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case ops::Activation::kRelu:
      return x < 0 ? 0 : x;
    case ops::Activation::kClampedSwiglu:
    case ops::Activation::kLimitedSilu:
      break;
  }
  RUDDER_CHECK(false, "activation {}", static_cast<int>(activation));
}

double activate_pair(double gate, double up, ops::Activation activation) {
  const bool is_limited = activation == ops::Activation::kLimitedSilu;
  if (activation != ops::Activation::kClampedSwiglu && !is_limited) {
    return activate(gate, activation) * up;
  }
  const double limit = is_limited ? 10 : 7;
  const double g = gate > limit ? limit : gate;
  const double u = up > limit ? limit : up < -limit ? -limit : up;
  if (is_limited) return activate(g, ops::Activation::kSilu) * u;
  return (u + 1) * g / (1 + std::exp(-1.702 * g));
}

// Turns scores into a softmax's weights without its division by their total, which is returned.
double exponentials(std::vector<double>& scores, double sink) {
  const double top = std::max(sink, *std::max_element(scores.begin(), scores.end()));
  double total = std::exp(sink - top);
  for (double& score : scores) {
    score = std::exp(score - top);
    total += score;
  }
  return total;
}

std::vector<double> gated(const std::vector<double>& scores, const ReferenceGate& gate,
                          size_t head) {
  std::vector<double> weights(scores.size());
  for (size_t j = 0; j < scores.size(); ++j) {
    double sum = 0;
    for (size_t i = 0; i < static_cast<size_t>(gate.length) && i <= j; ++i) {
      sum += gate.relu_pre ? std::max(scores[j - i], 0.0) : scores[j - i];
    }
    const double difference = scores[j] - gate.sigma[head] * sum / static_cast<double>(gate.length);
    weights[j] = std::clamp(difference, gate.low, gate.high);
  }
  return weights;
}

}  // namespace

Matrix Matrix::slice(int64_t begin_row, int64_t num_rows, int64_t begin_col,
                     int64_t num_cols) const {
  Matrix out(num_rows, num_cols);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t c = 0; c < num_cols; ++c) out.at(r, c) = at(begin_row + r, begin_col + c);
  }
  return out;
}

Matrix to_matrix(const tensor::View& view) {
  if (view.empty()) return Matrix();
  const int64_t cols = view.shape[view.shape.rank() - 1];
  const int64_t count = view.shape.numel();
  Matrix out(cols == 0 ? 0 : count / cols, cols);
  for (int64_t i = 0; i < count; ++i) out.values[static_cast<size_t>(i)] = load(view, i);
  return out;
}

Matrix rounded(const Matrix& x, DType dtype) {
  Matrix out = x;
  for (double& value : out.values) value = round_to(value, dtype);
  return out;
}

double max_abs(const Matrix& x) {
  double most = 0;
  for (const double value : x.values) most = std::max(most, std::abs(value));
  return most;
}

double norm_of(const Matrix& x) {
  double squares = 0;
  for (const double value : x.values) squares += value * value;
  return std::sqrt(squares);
}

double max_difference(const Matrix& a, const Matrix& b) {
  RUDDER_CHECK(a.rows == b.rows && a.cols == b.cols);
  double most = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double difference = std::abs(a.values[i] - b.values[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    most = std::max(most, difference);
  }
  return most;
}

Matrix reference_linear(const Matrix& x, const Matrix& weight, const Matrix& bias) {
  Matrix out(x.rows, weight.rows);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t n = 0; n < weight.rows; ++n) {
      double sum = bias.values.empty() ? 0 : bias.values[static_cast<size_t>(n)];
      for (int64_t k = 0; k < x.cols; ++k) sum += x.at(r, k) * weight.at(n, k);
      out.at(r, n) = sum;
    }
  }
  return out;
}

Matrix reference_norm(const Matrix& x, const ReferenceNorm& norm) {
  const Matrix& weight = norm.weight;
  if (weight.values.empty()) return x;
  Matrix out = x;
  if (!norm.alpha.values.empty()) {
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t c = 0; c < x.cols; ++c) {
        const int64_t i = c % weight.cols;
        out.at(r, c) = std::clamp(norm.alpha.at(0, i) * x.at(r, c), -1.0, 1.0) * weight.at(0, i);
      }
    }
    return out;
  }
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t first = 0; first < x.cols; first += weight.cols) {
      double squares = 0;
      for (int64_t c = 0; c < weight.cols; ++c) squares += x.at(r, first + c) * x.at(r, first + c);
      const double root = std::sqrt(squares / static_cast<double>(weight.cols) + norm.eps);
      for (int64_t c = 0; c < weight.cols; ++c) {
        out.at(r, first + c) = x.at(r, first + c) / root * weight.at(0, c);
      }
    }
  }
  return out;
}

Matrix reference_block_read(std::span<const Matrix> sums, const ReferenceBlockRead& read) {
  Matrix out(sums[0].rows, sums[0].cols);
  Matrix ones(1, out.cols);
  std::ranges::fill(ones.values, 1.0);
  for (int64_t t = 0; t < out.rows; ++t) {
    std::vector<double> scores;
    std::vector<Matrix> values;
    for (const Matrix& sum : sums) {
      const Matrix row = sum.slice(t, 1, 0, sum.cols);
      const Matrix keys = reference_norm(row, {.weight = read.norm, .eps = read.eps});
      double score = 0;
      for (int64_t k = 0; k < out.cols; ++k) score += keys.at(0, k) * read.query.at(0, k);
      scores.push_back(read.score_scale * score);
      values.push_back(read.normed_values ? reference_norm(row, {.weight = ones, .eps = read.eps})
                                          : row);
    }
    const double largest = std::ranges::max(scores);
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - largest);
    for (size_t s = 0; s < sums.size(); ++s) {
      for (int64_t k = 0; k < out.cols; ++k) {
        out.at(t, k) += scores[s] / total * values[s].at(0, k);
      }
    }
  }
  return out;
}

Matrix reference_gated_act(const Matrix& x, ops::Activation activation) {
  Matrix out(x.rows, x.cols / 2);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < out.cols; ++c) {
      out.at(r, c) = activate_pair(x.at(r, c), x.at(r, out.cols + c), activation);
    }
  }
  return out;
}

std::vector<ReferenceChoice> reference_route(const std::vector<double>& logits,
                                             const std::vector<double>& correction,
                                             const ReferenceRouter& router,
                                             const std::function<void(ReferenceScores&)>& steer) {
  const size_t count = logits.size();
  double total = 0;
  for (const double value : logits) total += std::exp(value);
  std::vector<double> weights(count), scores(count);
  for (size_t e = 0; e < count; ++e) {
    const bool is_softmax = router.kind == ops::RouterKind::kSoftmaxThenTop;
    weights[e] = is_softmax ? std::exp(logits[e]) / total : std::exp(logits[e]);
    if (router.kind == ops::RouterKind::kSigmoid) weights[e] /= 1 + weights[e];
    scores[e] = weights[e] + (correction.empty() ? 0 : correction[e]);
  }
  if (steer) steer(scores);
  // Of a group: how many others score higher, or as high and come first.
  const size_t size = count / static_cast<size_t>(router.groups);
  const auto score_of_group = [&](size_t group) {
    double first = -std::numeric_limits<double>::infinity();
    double second = first;
    for (size_t e = group * size; e < (group + 1) * size; ++e) {
      second = std::max(second, std::min(first, scores[e]));
      first = std::max(first, scores[e]);
    }
    return size == 1 ? first : first + second;
  };
  for (size_t group = 0; group < count / size; ++group) {
    int64_t higher = 0;
    for (size_t other = 0; other < count / size; ++other) {
      const double mine = score_of_group(group);
      const double its = score_of_group(other);
      if (its > mine || (its == mine && other < group)) ++higher;
    }
    for (size_t e = group * size; e < (group + 1) * size && higher >= router.kept_groups; ++e) {
      scores[e] = -std::numeric_limits<double>::infinity();
    }
  }
  std::vector<ReferenceChoice> out;
  double sum = 0;
  for (int64_t j = 0; j < router.chosen; ++j) {
    const auto best = std::ranges::max_element(scores);  // the first of equal ones
    const auto e = static_cast<size_t>(best - scores.begin());
    out.push_back({static_cast<int32_t>(e), weights[e]});
    sum += weights[e];
    *best = -std::numeric_limits<double>::infinity();
  }
  const bool divides = router.renormalises || router.kind == ops::RouterKind::kTopThenSoftmax;
  for (ReferenceChoice& choice : out) {
    choice.weight *= router.scale / (divides ? sum : 1);
    if (router.expert_scales.empty()) continue;
    choice.weight *= router.expert_scales[static_cast<size_t>(choice.expert)];
  }
  return out;
}

double reference_soft_cap(double x, double cap) {
  return cap == 0 ? x : cap * std::tanh(x / cap);
}

Matrix reference_rope(const Matrix& x, int64_t head_dim, const Matrix& table,
                      std::span<const int32_t> rows) {
  Matrix out = x;
  const int64_t half = table.cols / 2;
  for (int64_t r = 0; r < x.rows; ++r) {
    const int64_t row = table.rows == 0 ? 0 : rows[static_cast<size_t>(r)];
    for (int64_t head = 0; head < x.cols; head += head_dim) {
      for (int64_t i = 0; i < half; ++i) {
        const double cosine = table.at(row, i);
        const double sine = table.at(row, half + i);
        const double a = x.at(r, head + i);
        const double b = x.at(r, head + half + i);
        out.at(r, head + i) = a * cosine - b * sine;
        out.at(r, head + half + i) = b * cosine + a * sine;
      }
    }
  }
  return out;
}

double add_as_fp8(double sum, std::span<const double> products) {
  const auto unit_below = [](double largest) {
    return largest == 0 ? 1 : std::ldexp(1.0, std::ilogb(largest) - 13);
  };
  double largest = std::abs(sum);
  for (const double product : products) largest = std::max(largest, std::abs(product));
  if (!std::isfinite(largest)) return std::numeric_limits<double>::quiet_NaN();
  const double unit = unit_below(largest);
  double total = std::trunc(sum / unit) * unit;
  for (const double product : products) total += std::trunc(product / unit) * unit;
  const double kept = unit_below(std::abs(total));
  return std::trunc(total / kept) * kept;
}

namespace {

// a . the first of b, in four sums, none of which waits for another.
double dot(std::span<const double> a, std::span<const double> b) {
  constexpr size_t kSums = 4;
  double sums[kSums] = {};
  const double* const x = a.data();
  const double* const y = b.data();
  size_t i = 0;
  for (; i + kSums <= a.size(); i += kSums) {
    sums[0] += x[i] * y[i];
    sums[1] += x[i + 1] * y[i + 1];
    sums[2] += x[i + 2] * y[i + 2];
    sums[3] += x[i + 3] * y[i + 3];
  }
  for (; i < a.size(); ++i) sums[0] += x[i] * y[i];
  return sums[0] + sums[1] + (sums[2] + sums[3]);
}

// The same as tensor cores add products of fp8, 32 at a time.
double cut_dot(std::span<const double> a, std::span<const double> b) {
  constexpr size_t kAtOnce = 32;
  double sum = 0;
  for (size_t begin = 0; begin < a.size(); begin += kAtOnce) {
    double products[kAtOnce] = {};
    const size_t count = std::min(kAtOnce, a.size() - begin);
    for (size_t i = 0; i < count; ++i) products[i] = a[begin + i] * b[begin + i];
    sum = add_as_fp8(sum, std::span(products, count));
  }
  return sum;
}

}  // namespace

Matrix reference_attention(const ReferenceAttention& spec, const Matrix& q, const Matrix& k,
                           const Matrix& v, std::vector<Matrix>* patterns) {
  if (patterns != nullptr) {
    patterns->assign(static_cast<size_t>(spec.num_heads), Matrix(q.rows, k.rows));
  }
  const int64_t head_dim = q.cols / spec.num_heads;
  const int64_t group = spec.num_heads / spec.num_kv_heads;
  const auto product = [&](double x) {
    return spec.round_products ? round_to(x, spec.product_dtype) : x;
  };
  std::vector<double> query(static_cast<size_t>(head_dim));
  Matrix out(q.rows, q.cols);
  for (int64_t r = 0; r < q.rows; ++r) {
    const int64_t last = k.rows - q.rows + r;
    const int64_t first = spec.window > 0 ? std::max<int64_t>(0, last - spec.window + 1) : 0;
    for (int64_t h = 0; h < spec.num_heads; ++h) {
      const int64_t kv = h / group * head_dim;
      for (size_t i = 0; i < query.size(); ++i) {
        query[i] = product(q.at(r, h * head_dim + static_cast<int64_t>(i)));
      }
      std::vector<double> weights;
      for (int64_t p = first; p <= last; ++p) {
        const std::span key = std::span(k.values).subspan(static_cast<size_t>(p * k.cols + kv));
        const double sum = spec.cut_sums ? cut_dot(query, key) : dot(query, key);
        weights.push_back(reference_soft_cap(sum * spec.scale, spec.softcap));
      }
      const double sink = spec.sinks.empty() ? -std::numeric_limits<double>::infinity()
                                             : spec.sinks[static_cast<size_t>(h)];
      const bool is_gated = !spec.gate.sigma.empty();
      const double gamma = is_gated ? spec.gate.gamma[static_cast<size_t>(h)] : 1;
      double total = 1;
      if (is_gated) {
        weights = gated(weights, spec.gate, static_cast<size_t>(h));
      } else {
        total = exponentials(weights, sink);
      }
      for (int64_t p = first; p <= last && patterns != nullptr; ++p) {
        (*patterns)[static_cast<size_t>(h)].at(r, p) =
            weights[static_cast<size_t>(p - first)] / total;
      }
      for (int64_t p = first; p <= last; ++p) {
        const double weight = product(weights[static_cast<size_t>(p - first)]) / total * gamma;
        const double* const value = &v.values[static_cast<size_t>(p * v.cols + kv)];
        double* const sums = &out.at(r, h * head_dim);
        for (int64_t i = 0; i < head_dim; ++i) sums[i] += weight * value[i];
      }
    }
  }
  return out;
}

}  // namespace rudder::testing
