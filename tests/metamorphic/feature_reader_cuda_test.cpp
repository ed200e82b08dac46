// The reader of features on a GPU.
#include "metamorphic/feature_reader_cases.h"
#include "rudder/cuda/cuda_ops.h"

namespace rudder::metamorphic {
namespace {

std::unique_ptr<ops::Ops> make_cuda_reader() {
  cuda::CudaOpsSettings settings;
  settings.tune = false;
  Result<std::unique_ptr<ops::Ops>> ops = cuda::make_cuda_ops(settings);
  return ops ? (*ops)->reader_ops()->make_reader() : nullptr;
}

INSTANTIATE_TEST_SUITE_P(Cuda, FeatureReaderTest,
                         ::testing::Values(FeatureBackend{"cuda", make_cuda_reader}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rudder::metamorphic
