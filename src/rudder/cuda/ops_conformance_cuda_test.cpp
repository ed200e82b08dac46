// The CUDA backend in the conformance suite, with weights and cache in bf16 and in fp8.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rudder/cuda/cuda_ops.h"
#include "rudder/testing/ops_conformance_attention.h"
#include "rudder/testing/ops_conformance_encode.h"
#include "rudder/testing/ops_conformance_features.h"
#include "rudder/testing/ops_conformance_latent.h"
#include "rudder/testing/ops_conformance_open_experts.h"
#include "rudder/testing/ops_conformance_routers.h"
#include "rudder/testing/ops_conformance_states.h"
#include "rudder/testing/ops_conformance_streams.h"
#include "rudder/testing/ops_conformance_taps.h"
#include "rudder/testing/ops_conformance_trees.h"

namespace rudder::testing {
namespace {

// `settings` says what differs from the others.
Backend cuda_backend(tensor::DType dtype, cuda::CudaOpsSettings settings) {
  settings.linear_dtype = dtype;
  if (!settings.kv.scales_tokens) settings.kv = {dtype};
  settings.tune = false;
  settings.plain_attention = true;  // head_dims of tiny models
  settings.synchronous = true;      // a fault names its op
  Backend backend;
  backend.name = std::string("cuda_") + std::string(dtype_name(dtype)) +
                 (settings.batch_invariant ? "_invariant" : "") +
                 (settings.kv == ops::kFp8TokenKv    ? "_fp8_tokens"
                  : settings.kv == ops::kInt8TokenKv ? "_int8_tokens"
                                                     : "");
  backend.make = [settings](int /*num_threads*/) {
    auto ops = cuda::make_cuda_ops(settings);
    if (!ops) throw std::runtime_error(ops.error().to_string());
    return std::move(*ops);
  };
  backend.width_unit = 8;  // of odd ones the library rounds a product before it adds the bias
  backend.writes_f8 = true;
  backend.rounds_queries = true;
  backend.rows_are_exact = settings.batch_invariant;
  backend.takes_large_shapes = dtype == tensor::DType::kBF16 && !settings.batch_invariant;
  return backend;
}

std::vector<Backend> cuda_backends() {
  std::vector<Backend> backends;
  for (const bool batch_invariant : {false, true}) {
    for (const tensor::DType dtype : {tensor::DType::kBF16, tensor::DType::kF8E4M3}) {
      backends.push_back(cuda_backend(dtype, {.batch_invariant = batch_invariant}));
    }
  }
  return backends;
}

std::string name_of(const ::testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

// Gates whose values are read sparsely, however short the sequences are.
std::vector<Backend> sparse_backends() {
  std::vector<Backend> backends;
  for (const tensor::DType dtype : {tensor::DType::kBF16, tensor::DType::kF8E4M3}) {
    Backend backend = cuda_backend(dtype, {.least_sparse_pages = 1});
    backend.name += "_sparse";
    backends.push_back(backend);
  }
  return backends;
}

// More tiles of rows than the device takes side by side: blocks take one after the other, some more
// of them than others.
TEST_P(OpsAttention, ManyPrompts) {
  constexpr int kPrompts = 96;
  constexpr int64_t kTokens = 42;
  // Of each sequence the last block is a part.
  Layer layer = make_layer({.heads = 64, .kv_heads = 4, .head_dim = 64, .has_sinks = true},
                           kPrompts * (kTokens + 16));
  std::vector<Sequence> sequences;
  sequences.reserve(kPrompts);
  for (int i = 0; i < kPrompts; ++i) sequences.push_back(make_sequence(layer, kTokens));
  const std::vector<int64_t> q_lens(sequences.size(), kTokens);
  const tensor::View out = run_step(layer, sequences, q_lens);
  const tensor::View q = last_args_.q;
  for (Sequence& sequence : sequences) sequence.done = 0;
  const Matrix second = read(run_step(layer, sequences, q_lens));
  EXPECT_EQ(max_difference(read(out), second), 0);
  for (size_t s = 0; s < sequences.size(); s += 19) {
    const auto row = static_cast<int64_t>(s) * kTokens;
    expect_formula(out.rows(row, kTokens), q.rows(row, kTokens), layer, sequences[s], kTokens,
                   "sequence " + std::to_string(s));
  }
}

// Few tiles of rows behind a long context: their keys are cut, and blocks add up each other's
// parts.
TEST_P(OpsAttention, FewRowsBehindALongContext) {
  constexpr int64_t kContext = 900;
  constexpr int64_t kTokens = 70;
  // Leaves NaN in the shared memory of every multiprocessor, where the next step has its keys.
  const auto run_nan_keys = [&](AttentionShape shape) {
    constexpr int64_t kNanTokens = 970;
    shape.heads = 64;
    shape.kv_heads = 8;
    Layer layer = make_layer(shape, kNanTokens);
    std::vector<Sequence> sequences;
    sequences.push_back(make_sequence(layer, kNanTokens));
    const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    const std::vector<float> nan(static_cast<size_t>(kNanTokens * width), std::nanf(""));
    sequences[0].qkv = HostTensor(nan, act_, {kNanTokens, width});
    run_step(layer, sequences, std::span(&kNanTokens, 1));
  };
  for (const int64_t head_dim : {64, 128}) {
    for (const int32_t gate_length : {0, 3, 5}) {
      AttentionShape shape{.heads = 8, .kv_heads = 1, .head_dim = head_dim};
      shape.gate_length = gate_length;
      Layer layer = make_layer(shape, kContext + kTokens);
      std::vector<Sequence> sequences;
      sequences.push_back(make_sequence(layer, kContext + kTokens));
      run_step(layer, sequences, std::span(&kContext, 1));
      const tensor::View out = run_step(layer, sequences, std::span(&kTokens, 1));
      const tensor::View q = last_args_.q;
      sequences[0].done = kContext;
      run_nan_keys(shape);
      const Matrix again = read(run_step(layer, sequences, std::span(&kTokens, 1)));
      const std::string what =
          "head_dim " + std::to_string(head_dim) + ", gate " + std::to_string(gate_length);
      EXPECT_EQ(max_difference(read(out), again), 0) << what;
      expect_formula(out, q, layer, sequences[0], kContext + kTokens, what);
    }
  }
}

// Caches whose tokens have scales.
std::vector<Backend> token_backends() {
  std::vector<Backend> backends;
  for (const bool batch_invariant : {false, true}) {
    for (const ops::KvFormat& kv : {ops::kFp8TokenKv, ops::kInt8TokenKv}) {
      backends.push_back(
          cuda_backend(tensor::DType::kBF16, {.kv = kv, .batch_invariant = batch_invariant}));
    }
  }
  return backends;
}

INSTANTIATE_TEST_SUITE_P(CudaTokens, OpsAttention, ::testing::ValuesIn(token_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(CudaTokens, OpsTrees, ::testing::ValuesIn(token_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsConformance, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsAttention, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(CudaSparse, OpsAttention, ::testing::ValuesIn(sparse_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsTrees, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsTaps, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsRouters, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsOpenExperts, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsStates, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsLatent, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(CudaTokens, OpsLatent, ::testing::ValuesIn(token_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsStreamTaps, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsEncode, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsFeatures, ::testing::ValuesIn(cuda_backends()), name_of);

}  // namespace
}  // namespace rudder::testing
