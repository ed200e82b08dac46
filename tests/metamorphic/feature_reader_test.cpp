// The reader of features over the CPU's ops, which serve without it: where the code is tested that
// a GPU runs.
#include "metamorphic/feature_reader_cases.h"
#include "rudder/cpu/reference_ops.h"

namespace rudder::metamorphic {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, FeatureReaderTest,
                         ::testing::Values(FeatureBackend{"reference", cpu::make_reference_ops}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rudder::metamorphic
