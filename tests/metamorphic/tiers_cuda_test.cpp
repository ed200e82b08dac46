// Cached prefixes behind a GPU's KV cache (docs/contracts/cache.md, "Tiers"): in the
// batch-invariant mode, where what is fetched and what is computed have the same bits.
#include "metamorphic/tiers_cases.h"
#include "rudder/cuda/cuda_ops.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;

TierBackend backend(std::string name, TinyArch arch, ops::KvFormat kv = {tensor::DType::kBF16}) {
  cuda::CudaOpsSettings settings;
  settings.kv = kv;
  settings.batch_invariant = true;
  settings.tune = false;
  return {std::move(name), [=] { return value_of(cuda::make_cuda_ops(settings)); }, arch, true};
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, TiersTest,
    ::testing::Values(backend("prenorm", TinyArch::kPreNorm),
                      backend("sandwich", TinyArch::kSandwich), backend("delta", TinyArch::kDelta),
                      backend("latent", TinyArch::kLatent),
                      backend("fp8", TinyArch::kPreNorm, {tensor::DType::kF8E4M3}),
                      backend("fp8_per_token", TinyArch::kPreNorm, ops::kFp8TokenKv),
                      backend("int8", TinyArch::kPreNorm, ops::kInt8TokenKv)),
    [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceRecordsTest,
                         ::testing::Values(backend("cuda", TinyArch::kPreNorm)),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace rudder::metamorphic
