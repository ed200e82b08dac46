#include "rudder/testing/reference_latent.h"

#include <algorithm>
#include <cmath>

namespace rudder::testing {
namespace {

// The columns from `begin` on turn by the row's angles.
void turn(const ReferenceLatent& spec, int64_t row, int64_t begin, Matrix& x) {
  const int64_t half = spec.table.cols / 2;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t first = begin + (spec.neighbours ? 2 * i : i);
    const int64_t second = spec.neighbours ? first + 1 : first + half;
    const double a = x.at(row, first);
    const double b = x.at(row, second);
    x.at(row, first) = a * spec.table.at(row, i) - b * spec.table.at(row, half + i);
    x.at(row, second) = b * spec.table.at(row, i) + a * spec.table.at(row, half + i);
  }
}

double product(const Matrix& a, int64_t row, int64_t begin, const Matrix& b, int64_t other,
               int64_t other_begin, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a.at(row, begin + i) * b.at(other, other_begin + i);
  return sum;
}

}  // namespace

Matrix reference_latent(const ReferenceLatent& spec, const Matrix& q, const Matrix& latent,
                        std::vector<Matrix>* patterns) {
  const ops::LatentShape& s = spec.shape;
  const int64_t tokens = q.rows;
  Matrix queries = q;
  Matrix turned = latent.slice(0, tokens, s.rank, s.rope_dim);
  for (int64_t t = 0; t < tokens; ++t) {
    turn(spec, t, 0, turned);
    for (int64_t h = 0; h < s.num_heads; ++h) {
      turn(spec, t, h * s.query_dim() + s.nope_dim, queries);
    }
  }
  const Matrix made =
      reference_linear(reference_norm(latent.slice(0, tokens, 0, s.rank), spec.norm), spec.up, {});
  Matrix out(tokens, int64_t{s.num_heads} * s.value_dim);
  for (int64_t h = 0; h < s.num_heads; ++h) {
    const int64_t key = h * (s.nope_dim + s.value_dim);
    Matrix weights(tokens, tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      const double sink = spec.sinks.empty() ? -INFINITY : spec.sinks[static_cast<size_t>(h)];
      double highest = sink;
      for (int64_t at = 0; at <= t; ++at) {
        const int64_t from = h * s.query_dim();
        weights.at(t, at) =
            spec.scale * (product(queries, t, from, made, at, key, s.nope_dim) +
                          product(queries, t, from + s.nope_dim, turned, at, 0, s.rope_dim));
        highest = std::max(highest, weights.at(t, at));
      }
      double total = std::exp(sink - highest);
      for (int64_t at = 0; at <= t; ++at) {
        weights.at(t, at) = std::exp(weights.at(t, at) - highest);
        total += weights.at(t, at);
      }
      for (int64_t at = 0; at <= t; ++at) {
        weights.at(t, at) /= total;
        for (int64_t i = 0; i < s.value_dim; ++i) {
          out.at(t, h * s.value_dim + i) += weights.at(t, at) * made.at(at, key + s.nope_dim + i);
        }
      }
    }
    if (patterns != nullptr) patterns->push_back(weights);
  }
  return out;
}

}  // namespace rudder::testing
