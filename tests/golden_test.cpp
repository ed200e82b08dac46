// The CPU's backends in the golden suite.
#include <stdexcept>

#include "golden_suite.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/reference_ops.h"

namespace rudder::golden {
namespace {

std::function<std::unique_ptr<ops::Ops>()> fast(tensor::DType dtype) {
  return [dtype] {
    auto ops = cpu::make_cpu_ops({.dtype = dtype, .num_threads = 2, .isa = {}});
    if (!ops) throw std::runtime_error(ops.error().to_string());
    return std::move(*ops);
  };
}

std::vector<Backend> cpu_backends() {
  // In f32 the greedy tokens are the same too; bf16 products may turn one that is close.
  return {{"reference", cpu::make_reference_ops, 1e-4f, 1e-9, 1, true},
          {"fast_f32", fast(tensor::DType::kF32), 1e-4f, 1e-9, 1, true},
          {"fast_bf16", fast(tensor::DType::kBF16), 0.6f, 4e-3, 0.8, true}};
}

GOLDEN_BACKENDS(Cpu, cpu_backends());

}  // namespace
}  // namespace rudder::golden
