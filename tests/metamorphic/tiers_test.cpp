// Cached prefixes behind the CPU's KV cache (docs/contracts/cache.md, "Tiers").
#include "metamorphic/tiers_cases.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/isa.h"
#include "rudder/cpu/reference_ops.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;

std::unique_ptr<ops::Ops> make_late() {
  return on_late_lane(cpu::make_reference_ops());
}

std::function<std::unique_ptr<ops::Ops>()> storing(ops::KvFormat kv) {
  return [kv] {
    return value_of(
        cpu::make_cpu_ops({tensor::DType::kBF16, 2, cpu::available_isas().back(), nullptr, kv}));
  };
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, TiersTest,
    ::testing::Values(TierBackend{"prenorm", cpu::make_reference_ops, TinyArch::kPreNorm},
                      TierBackend{"sandwich", cpu::make_reference_ops, TinyArch::kSandwich},
                      TierBackend{"delta", cpu::make_reference_ops, TinyArch::kDelta},
                      TierBackend{"bf16", storing({tensor::DType::kBF16})},
                      TierBackend{"fp8", storing({tensor::DType::kF8E4M3})},
                      TierBackend{"fp8_per_token", storing(ops::kFp8TokenKv)},
                      TierBackend{"int8", storing(ops::kInt8TokenKv)}),
    [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Cpu, DeviceRecordsTest,
                         ::testing::Values(TierBackend{"reference", cpu::make_reference_ops},
                                           TierBackend{"late", make_late}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace rudder::metamorphic
