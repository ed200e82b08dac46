// The macro-ops in double precision, written naively; every backend is compared with them
// (ops_conformance.h). Formulas: ops/args.h. Tests only; plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "rudder/ops/args.h"
#include "rudder/ops/expert_args.h"

namespace rudder::testing {

struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> values;

  Matrix() = default;
  Matrix(int64_t num_rows, int64_t num_cols)
      : rows(num_rows), cols(num_cols), values(static_cast<size_t>(num_rows * num_cols)) {}
  double& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * cols + c)]; }
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * cols + c)]; }
  Matrix slice(int64_t begin_row, int64_t num_rows, int64_t begin_col, int64_t num_cols) const;
};

// A view of rank 1 (one row) or more (the last axis is the columns); f32, f16, bf16 or F8E4M3; host
// memory.
Matrix to_matrix(const tensor::View& view);
// Each value rounded to `dtype` and back.
Matrix rounded(const Matrix& x, tensor::DType dtype);
double max_abs(const Matrix& x);
double norm_of(const Matrix& x);                          // Frobenius
double max_difference(const Matrix& a, const Matrix& b);  // NaN counts as infinity

Matrix reference_linear(const Matrix& x, const Matrix& weight, const Matrix& bias);
// A norm of either kind: `alpha` is empty for an RMS norm.
struct ReferenceNorm {
  Matrix weight;
  Matrix alpha = {};
  double eps = 1e-5;
};
// Each run of weight.cols columns is normalised by itself; an empty weight changes nothing.
Matrix reference_norm(const Matrix& x, const ReferenceNorm& norm);
// What is read of these sums (ops/stream_args.h), [rows, width] each.
struct ReferenceBlockRead {
  Matrix norm;
  Matrix query;
  double eps = 1e-5;
  double score_scale = 1;
  bool normed_values = false;
};
Matrix reference_block_read(std::span<const Matrix> sums, const ReferenceBlockRead& read);
Matrix reference_gated_act(const Matrix& x, ops::Activation activation);
// ops::RouteArgs, of one token.
struct ReferenceRouter {
  ops::RouterKind kind = ops::RouterKind::kSoftmaxThenTop;
  bool renormalises = false;
  double scale = 1;
  int64_t groups = 1;
  int64_t kept_groups = 1;
  int64_t chosen = 1;
  std::vector<double> expert_scales = {};
};
struct ReferenceChoice {
  int32_t expert = 0;
  double weight = 0;
};
// In the order of what was chosen by. `correction`: empty, or one number an expert. `steer` changes
// the scores that are chosen by (ops::RouteTappedArgs).
using ReferenceScores = std::vector<double>;
std::vector<ReferenceChoice> reference_route(
    const std::vector<double>& logits, const std::vector<double>& correction,
    const ReferenceRouter& router, const std::function<void(ReferenceScores&)>& steer = {});
double reference_soft_cap(double x, double cap);
// Rotates each head of each row by rows of `table` [rope_rows, 2 * half].
Matrix reference_rope(const Matrix& x, int64_t head_dim, const Matrix& table,
                      std::span<const int32_t> rows);

// ops::FirGate, of no head: none.
struct ReferenceGate {
  std::vector<double> sigma = {};  // [num_heads]
  std::vector<double> gamma = {};
  int64_t length = 1;
  bool relu_pre = false;
  double low = 0;
  double high = 1;
};

struct ReferenceAttention {
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
  double scale = 1;
  int64_t window = 0;
  double softcap = 0;
  std::vector<double> sinks = {};  // [num_heads]; empty: none
  ReferenceGate gate = {};
  // What a low-precision twin rounds: q before the scores, weights before they meet v.
  tensor::DType product_dtype = tensor::DType::kF32;
  bool round_products = false;
  bool cut_sums = false;  // of q and k, as fp8 tensor cores do (add_as_fp8)
};

// Adds 32 products, or fewer, to a sum as fp8 tensor cores do: each of them and the sum so far lose
// what is below 2^-13 of the power of two of the largest, and so does the result. Each loses less
// than such a unit, so 32 products come out less than 34 units wrong, and by few where signs mix.
double add_as_fp8(double sum, std::span<const double> products);

// One sequence: q is the last q.rows of the k.rows positions. `patterns`, when given, gets for each
// head the weights [q.rows, k.rows] that its softmax or its gate makes, 0 at keys that are not
// seen.
Matrix reference_attention(const ReferenceAttention& spec, const Matrix& q, const Matrix& k,
                           const Matrix& v, std::vector<Matrix>* patterns = nullptr);

}  // namespace rudder::testing
