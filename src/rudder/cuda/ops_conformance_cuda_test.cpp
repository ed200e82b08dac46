// The CUDA backend in the conformance suite, with weights and cache in bf16 and in fp8.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rudder/cuda/cuda_ops.h"
#include "rudder/testing/ops_conformance_attention.h"
#include "rudder/testing/ops_conformance_taps.h"

namespace rudder::testing {
namespace {

std::vector<Backend> cuda_backends() {
  std::vector<Backend> backends;
  for (const auto& [dtype, batch_invariant] :
       {std::pair{tensor::DType::kBF16, false}, std::pair{tensor::DType::kF8E4M3, false},
        std::pair{tensor::DType::kBF16, true}, std::pair{tensor::DType::kF8E4M3, true}}) {
    Backend backend;
    backend.name = std::string("cuda_") + std::string(dtype_name(dtype)) +
                   (batch_invariant ? "_invariant" : "");
    backend.make = [dtype = dtype, batch_invariant = batch_invariant](int /*num_threads*/) {
      cuda::CudaOpsSettings settings;
      settings.linear_dtype = dtype;
      settings.kv_dtype = dtype;
      settings.tune = false;
      settings.plain_attention = true;  // head_dims of tiny models
      settings.batch_invariant = batch_invariant;
      settings.synchronous = true;  // a fault names its op
      auto ops = cuda::make_cuda_ops(settings);
      if (!ops) throw std::runtime_error(ops.error().to_string());
      return std::move(*ops);
    };
    backend.width_unit = 8;  // of odd ones the library rounds a product before it adds the bias
    backend.writes_f8 = true;
    backend.has_rare_parts = false;
    backend.rows_are_exact = batch_invariant;
    backends.push_back(backend);
  }
  return backends;
}

std::string name_of(const ::testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Cuda, OpsConformance, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsAttention, ::testing::ValuesIn(cuda_backends()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsTaps, ::testing::ValuesIn(cuda_backends()), name_of);

}  // namespace
}  // namespace rudder::testing
