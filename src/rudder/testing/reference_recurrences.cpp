#include "rudder/testing/reference_recurrences.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace rudder::testing {
namespace {

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

std::vector<double> unit_row(const Matrix& rows, int64_t t, int64_t begin, int64_t count,
                             bool norms, double scale) {
  double square = 0;
  for (int64_t i = 0; i < count; ++i) square += rows.at(t, begin + i) * rows.at(t, begin + i);
  const double factor = norms ? scale / std::sqrt(square + 1e-6) : 1;
  std::vector<double> out;
  out.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out.push_back(rows.at(t, begin + i) * factor);
  return out;
}

}  // namespace

Matrix reference_convolve(const Matrix& x, const Matrix& weight, const Matrix& bias, bool silu) {
  Matrix out(x.rows, x.cols);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t c = 0; c < x.cols; ++c) {
      double sum = bias.cols == 0 ? 0 : bias.at(0, c);
      for (int64_t j = 0; j < weight.cols; ++j) {
        const int64_t from = t - weight.cols + 1 + j;
        if (from >= 0) sum += weight.at(c, j) * x.at(from, c);
      }
      out.at(t, c) = silu ? sum * logistic(sum) : sum;
    }
  }
  return out;
}

Matrix reference_recur(const ReferenceRecurrence& spec, const Matrix& q, const Matrix& k,
                       const Matrix& v, const Matrix& a, const Matrix& b) {
  const int64_t keys = spec.key_dim;
  const int64_t values = spec.value_dim;
  const bool by_channel = spec.step_bias.cols > spec.value_heads;
  Matrix out(v.rows, v.cols);
  for (int64_t head = 0; head < spec.value_heads; ++head) {
    const int64_t key_begin = head / (spec.value_heads / spec.key_heads) * keys;
    Matrix state(keys, values);
    for (int64_t t = 0; t < v.rows; ++t) {
      const double scale = 1 / std::sqrt(static_cast<double>(keys));
      const std::vector<double> query = unit_row(q, t, key_begin, keys, spec.is_delta, scale);
      const std::vector<double> key = unit_row(k, t, key_begin, keys, spec.is_delta, 1);
      double step = 0;
      for (int64_t c = 0; c < keys; ++c) {
        const int64_t at = by_channel ? head * keys + c : head;
        step = std::log1p(std::exp(a.at(t, at) + spec.step_bias.at(0, at)));
        step = std::clamp(step, spec.step_low, spec.step_high);
        const double rate = std::exp(spec.a_log.at(0, head));
        const double decay =
            spec.decay_floor < 0
                ? std::exp(spec.decay_floor *
                           logistic(rate * (a.at(t, at) + spec.step_bias.at(0, at))))
                : std::exp(-rate * step);
        for (int64_t j = 0; j < values; ++j) state.at(c, j) *= decay;
      }
      const double beta = b.cols == 0 ? step : logistic(b.at(t, head));
      for (int64_t j = 0; j < values; ++j) {
        double known = 0;
        for (int64_t c = 0; c < keys && spec.is_delta; ++c) {
          known += key[static_cast<size_t>(c)] * state.at(c, j);
        }
        const double delta = beta * (v.at(t, head * values + j) - known);
        double sum = 0;
        for (int64_t c = 0; c < keys; ++c) {
          state.at(c, j) += key[static_cast<size_t>(c)] * delta;
          sum += query[static_cast<size_t>(c)] * state.at(c, j);
        }
        const double skip = spec.skip.cols == 0 ? 0 : spec.skip.at(0, head);
        out.at(t, head * values + j) = sum + skip * v.at(t, head * values + j);
      }
    }
  }
  return out;
}

Matrix reference_gate_rows(const ReferenceRowGate& spec, const Matrix& x, const Matrix& gate) {
  Matrix gated = x;
  const auto apply = [&] {
    for (size_t i = 0; i < gated.values.size(); ++i) {
      const double g = gate.values[i];
      gated.values[i] *= spec.function == ops::GateFunction::kItself ? g
                         : spec.function == ops::GateFunction::kSilu ? g * logistic(g)
                                                                     : logistic(g);
    }
  };
  if (spec.gates_first) apply();
  for (int64_t t = 0; t < x.rows && spec.norm.cols > 0; ++t) {
    for (int64_t begin = 0; begin < x.cols; begin += spec.run) {
      double square = 0;
      for (int64_t i = begin; i < begin + spec.run; ++i) square += gated.at(t, i) * gated.at(t, i);
      const double factor = 1 / std::sqrt(square / static_cast<double>(spec.run) + spec.eps);
      for (int64_t i = begin; i < begin + spec.run; ++i) {
        gated.at(t, i) *= factor * spec.norm.at(0, i % spec.norm.cols);
      }
    }
  }
  if (!spec.gates_first) apply();
  return gated;
}

}  // namespace rudder::testing
