#include "backend.h"

#include <map>
#include <string>

#include "rudder/cpu/fast_ops.h"

namespace rudder::apps {
namespace {

// The dtype that most bytes of the checkpoint are stored in.
tensor::DType stored_dtype(const weights::Checkpoint& checkpoint) {
  std::map<tensor::DType, size_t> bytes;
  for (const weights::TensorInfo& tensor : checkpoint.tensors()) {
    bytes[tensor.view.dtype] += tensor.view.bytes();
  }
  tensor::DType most = tensor::DType::kBF16;
  for (const auto& [dtype, count] : bytes) {
    if (count > bytes[most]) most = dtype;
  }
  return most;
}

tensor::DType resolve_dtype(const std::string& asked, tensor::DType automatic) {
  if (asked == "float32") return tensor::DType::kF32;
  if (asked == "bfloat16") return tensor::DType::kBF16;
  return automatic;
}

}  // namespace

Result<std::unique_ptr<ops::Ops>> make_backend(const exec::ExecSettings& settings,
                                               const weights::Checkpoint& checkpoint) {
  const bool stored_wide = stored_dtype(checkpoint) == tensor::DType::kF32;
  cpu::CpuOpsSettings cpu;
  cpu.dtype =
      resolve_dtype(settings.dtype, stored_wide ? tensor::DType::kF32 : tensor::DType::kBF16);
  cpu.num_threads = settings.threads;
  return cpu::make_cpu_ops(cpu);
}

}  // namespace rudder::apps
