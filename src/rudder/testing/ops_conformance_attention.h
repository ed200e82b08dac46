// The part of the conformance suite that needs a KV cache: it feeds sequences to qkv_prep and
// attention step by step and compares the results. See ops_conformance.h.
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {

struct AttentionShape {
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 64;
  int64_t block_size = 16;
  int64_t rotary = 0;        // rotated dimensions of a head
  int64_t q_norm_width = 0;  // 0 = no norm
  int64_t k_norm_width = 0;
  int64_t window = 0;
  float softcap = 0;
  bool has_v_norm = false;
  bool norms_rotated = false;
  bool has_q_scale = false;
  bool has_sinks = false;
  int32_t gate_length = 0;  // 0: a softmax
};

// How far from the formulas: as far as roundings bring any of so many rows, the last ones with the
// tokens before them where these are fewer, and `more`.
struct AttentionAllowance {
  int64_t least_rows = 1;
  double more = 1e-6;
};

class OpsAttention : public OpsConformance {
 protected:
  static constexpr int64_t kMaxPositions = 160;
  // Of as many rows as tell how large the error of one may be.
  static constexpr AttentionAllowance kOfMany = {.least_rows = 24};

  struct Layer {
    AttentionShape shape;
    ops::KvLayer kv;
    ops::NormSpec q_norm;
    ops::NormSpec k_norm;
    ops::NormSpec v_norm;
    std::vector<float> sinks;  // as the device has them; empty: none
    tensor::View device_sinks;
    ops::FirGate gate;
    ReferenceGate reference_gate;
    tensor::View rope;
    HostTensor host_rope{tensor::DType::kF32, {0}};  // as the device has it
    tensor::View q_scale;
    std::vector<float> host_q_scale;  // as the device has it; empty: none
    std::vector<float> k_scales;      // as the device has them; empty: none
    std::vector<float> v_scales;
    std::vector<int32_t> free_blocks;  // in random order
  };
  struct Sequence {
    HostTensor qkv{tensor::DType::kF32, {0, 0}};  // of every token, act
    std::vector<int32_t> blocks;
    int64_t done = 0;  // tokens in the cache
  };

  static float score_scale(const AttentionShape& shape) {
    return 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  }
  // Queries, weights of the softmax or both may be bf16 when they are multiplied.
  bool is_bf16() const {
    const ops::KvFormat kv = ops_.kv_format();
    return kv.dtype == tensor::DType::kBF16 || act_ == tensor::DType::kBF16 ||
           (kv.has_codes() && wide_dtype() == tensor::DType::kBF16);
  }
  AttentionShape fuzzed_shape();
  // Scales of a cache of F8E4M3, a wide range of them.
  std::vector<float> random_scales(int64_t heads);
  // k or v of every head as the cache holds it. `nudge` moves codes before they are rounded, by so
  // much of themselves and a little of the largest: what arithmetic in f32 does.
  Matrix cached(const Matrix& x, const AttentionShape& shape, std::span<const float> scales,
                double nudge) const;
  void make_gate(Layer& layer);
  // With a cache for sequences of so many tokens in all, and not much more: it is written and read
  // whole. Of up to kMostSequences at once.
  Layer make_layer(const AttentionShape& shape, int64_t num_tokens);
  static constexpr int64_t kMostSequences = 6;
  Sequence make_sequence(Layer& layer, int64_t length);
  // The next q_lens[i] tokens of each sequence, then `padding` rows of padding:
  // [sum of q_lens + padding, heads * head_dim]. By sequence, where there are `trees`: which of its
  // tokens in the step each follows, the first none; empty: each the one before it.
  tensor::View run_step(Layer& layer, std::span<Sequence> sequences,
                        std::span<const int64_t> q_lens, int64_t padding = 0,
                        std::span<const std::vector<int32_t>> trees = {});
  // How expected() computes.
  struct Precision {
    bool low = false;  // rounds where a backend of these dtypes may round
    // The last rows of q as the backend has them. When given, the formulas take these, and multiply
    // every row of a head as round_query_row() leaves it; a low precision also cuts sums.
    const Matrix* rounded_q = nullptr;
    double nudge = 0;  // of codes, cached()
    // Not 0: queries, keys and values are moved by up to a rounding each, at random from this seed.
    uint64_t disturbance = 0;
  };
  // Attention of tokens [begin, begin + count) of a sequence. `patterns` as of
  // reference_attention().
  Matrix expected(const Layer& layer, const Sequence& sequence, int64_t begin, int64_t count,
                  const Precision& precision, std::vector<Matrix>* patterns = nullptr);
  // What one rounding on the way to an output changes, relative to what is rounded.
  double rounding_unit() const;
  bool may_round_queries() const {
    return GetParam().rounds_queries && ops_.kv_format() == ops::KvFormat{tensor::DType::kF8E4M3};
  }
  // Attention of the tokens of a sequence up to `end`, of which the backend had the queries `q`:
  // each row of a head agrees with the formulas, or with those of rounded queries where the backend
  // may round them.
  void expect_formula(const tensor::View& rows, const tensor::View& q, const Layer& layer,
                      const Sequence& sequence, int64_t end, const std::string& what,
                      const AttentionAllowance& allowance = {});
  // The same attention in two steps, of the tokens up to `end` with the queries `q`. Which queries
  // a backend rounds may depend on the step: then both agree with the formulas.
  void expect_same_attention(const tensor::View& a, const tensor::View& b, const tensor::View& q,
                             const Layer& layer, const Sequence& sequence, int64_t end,
                             const std::string& what);

  ops::AttentionArgs last_args_;  // of the last run_step()
  ops::AttentionBatch last_batch_;
};

}  // namespace rudder::testing
