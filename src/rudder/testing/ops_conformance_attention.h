// The part of the conformance suite that needs a KV cache: it feeds sequences to qkv_prep and
// attention step by step and compares the results. See ops_conformance.h.
#pragma once

#include <cmath>
#include <span>
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
  bool has_sinks = false;
  int32_t gate_length = 0;  // 0: a softmax
};

class OpsAttention : public OpsConformance {
 protected:
  static constexpr int64_t kMaxPositions = 160;

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
    std::vector<float> k_scales;                     // as the device has them; empty: none
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
    return ops_.kv_dtype() == tensor::DType::kBF16 || act_ == tensor::DType::kBF16;
  }
  AttentionShape fuzzed_shape();
  // Scales of a cache of F8E4M3, a wide range of them.
  std::vector<float> random_scales(int64_t heads);
  // k or v of every head as the cache holds it.
  Matrix cached(const Matrix& x, const AttentionShape& shape, std::span<const float> scales) const;
  void make_gate(Layer& layer);
  Layer make_layer(const AttentionShape& shape, int64_t num_blocks);
  Sequence make_sequence(Layer& layer, int64_t length);
  // The next q_lens[i] tokens of each sequence, then `padding` rows of padding:
  // [sum of q_lens + padding, heads * head_dim]. By sequence, where there are `trees`: which of its
  // tokens in the step each follows, the first none; empty: each the one before it.
  tensor::View run_step(Layer& layer, std::span<Sequence> sequences,
                        std::span<const int64_t> q_lens, int64_t padding = 0,
                        std::span<const std::vector<int32_t>> trees = {});
  // Attention of tokens [begin, begin + count) of a sequence; with `low_precision`, rounding where
  // a backend of these dtypes may round. `patterns` as of reference_attention().
  Matrix expected(const Layer& layer, const Sequence& sequence, int64_t begin, int64_t count,
                  bool low_precision, std::vector<Matrix>* patterns = nullptr);

  ops::AttentionArgs last_args_;  // of the last run_step()
  ops::AttentionBatch last_batch_;
};

}  // namespace rudder::testing
