#include "backend.h"

#include <fmt/format.h>

#include <map>
#include <string>

#include "rudder/base/settings.h"
#include "rudder/cpu/fast_ops.h"

namespace rudder::apps {
namespace {

using tensor::DType;

constexpr double kShareOfGpu = 0.9;
constexpr double kShareOfRam = 0.5;

// The dtype that most bytes of the checkpoint are stored in.
DType stored_dtype(const weights::Checkpoint& checkpoint) {
  std::map<DType, size_t> bytes;
  for (const weights::TensorInfo& tensor : checkpoint.tensors()) {
    bytes[tensor.view.dtype] += tensor.view.bytes();
  }
  DType most = DType::kBF16;
  for (const auto& [dtype, count] : bytes) {
    if (count > bytes[most]) most = dtype;
  }
  return most;
}

tl::unexpected<Error> refused(std::string_view what, std::string_view device, const char* where) {
  return fail(ErrorCode::kUnsupported, fmt::format("{} is not supported on {}", what, device),
              where);
}

Result<std::unique_ptr<ops::Ops>> make_cpu(const exec::ExecSettings& settings,
                                           const weights::Checkpoint& checkpoint) {
  if (settings.quantization != "none") {
    return refused(settings.quantization, "a CPU", "quantization");
  }
  if (settings.kv_cache_dtype != "auto") {
    return refused(settings.kv_cache_dtype, "a CPU", "kv-cache-dtype");
  }
  cpu::CpuOpsSettings cpu;
  const bool is_wide = settings.dtype == "auto" ? stored_dtype(checkpoint) == DType::kF32
                                                : settings.dtype == "float32";
  cpu.dtype = is_wide ? DType::kF32 : DType::kBF16;
  cpu.num_threads = settings.threads;
  return cpu::make_cpu_ops(cpu);
}

#if RUDDER_HAS_CUDA
std::string default_policy_path() {
  std::string folder = environment_value("XDG_CACHE_HOME");
  if (folder.empty()) {
    const std::string home = environment_value("HOME");
    if (home.empty()) return {};
    folder = home + "/.cache";
  }
  return folder + "/rudder/kernel-policy.json";
}

Result<std::unique_ptr<ops::Ops>> make_cuda(const exec::ExecSettings& settings) {
  RUDDER_TRY(const cuda::CudaOpsSettings cuda, cuda_settings(settings));
  return cuda::make_cuda_ops(cuda);
}

bool has_gpu() {
  return cuda::has_cuda_device();
}
#else
Result<std::unique_ptr<ops::Ops>> make_cuda(const exec::ExecSettings& /*settings*/) {
  return fail(ErrorCode::kUnsupported, "this build has no CUDA backend", "device");
}

bool has_gpu() {
  return false;
}
#endif

}  // namespace

#if RUDDER_HAS_CUDA
Result<cuda::CudaOpsSettings> cuda_settings(const exec::ExecSettings& settings) {
  if (settings.dtype == "float32") return refused(settings.dtype, "a GPU", "dtype");
  cuda::CudaOpsSettings cuda;
  cuda.linear_dtype = settings.quantization == "fp8" ? DType::kF8E4M3 : DType::kBF16;
  cuda.kv_dtype = settings.kv_cache_dtype == "fp8" ? DType::kF8E4M3 : DType::kBF16;
  cuda.cublaslt_path = settings.cublaslt_path;
  cuda.policy_path =
      settings.kernel_policy.empty() ? default_policy_path() : settings.kernel_policy;
  cuda.tune = settings.tune;
  cuda.batch_invariant = settings.batch_invariant;
  cuda.synchronous = settings.synchronous;
  return cuda;
}
#endif

exec::ExecSettings resolve_device(exec::ExecSettings settings) {
  if (settings.device == "auto") settings.device = has_gpu() ? "cuda" : "cpu";
  if (settings.gpu_memory_utilization == 0) {
    settings.gpu_memory_utilization = settings.device == "cuda" ? kShareOfGpu : kShareOfRam;
  }
  return settings;
}

Result<std::unique_ptr<ops::Ops>> make_backend(const exec::ExecSettings& settings,
                                               const weights::Checkpoint& checkpoint) {
  return settings.device == "cuda" ? make_cuda(settings) : make_cpu(settings, checkpoint);
}

}  // namespace rudder::apps
