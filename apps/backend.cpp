#include "backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "rudder/base/settings.h"
#include "rudder/base/thread_pool.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/exec/pjrt_device.h"
#include "rudder/model/loader.h"
#include "rudder/pjrt/model_text.h"
#include "rudder/pjrt/module_decoder.h"
#include "rudder/pjrt/pjrt_ops.h"

namespace rudder::apps {
namespace {

using tensor::DType;

constexpr const char* kReplicas = "data-parallel-size";
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

// Whether weights are f32 in memory.
bool loads_wide(const exec::ExecSettings& settings, const weights::Checkpoint& checkpoint) {
  return settings.dtype == "auto" ? stored_dtype(checkpoint) == DType::kF32
                                  : settings.dtype == "float32";
}

tl::unexpected<Error> unsupported_on(std::string_view what, std::string_view device,
                                     const char* where) {
  return fail(ErrorCode::kUnsupported, fmt::format("{} is not supported on {}", what, device),
              where);
}

// Of the setting; nothing: numbers as products have them.
std::optional<ops::KvFormat> kv_codes(std::string_view kv_cache_dtype) {
  if (kv_cache_dtype == "fp8") return ops::KvFormat{DType::kF8E4M3};
  if (kv_cache_dtype == "fp8_per_token_head") return ops::kFp8TokenKv;
  if (kv_cache_dtype == "int8_per_token_head") return ops::kInt8TokenKv;
  return std::nullopt;
}

// Of a replica.
int32_t ranks_of(const exec::ExecSettings& settings) {
  return settings.parallel.ranks * settings.parallel.stages;
}

Result<exec::Ranks> make_cpu(const exec::ExecSettings& settings,
                             const weights::Checkpoint& checkpoint) {
  if (settings.quantization.products != "none") {
    return unsupported_on(settings.quantization.products, "a CPU", "quantization");
  }
  if (settings.quantization.head != "auto") {
    return unsupported_on(settings.quantization.head, "a CPU, whose head is as --dtype says",
                          "head-format");
  }
  const int32_t num_stages = settings.parallel.stages;
  const int32_t num_ranks = ranks_of(settings);
  const int32_t num_cores = usable_cores();
  if (num_ranks > 1 && num_ranks > num_cores) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} ranks are more than the {} cores that this process may use",
                            num_ranks, num_cores),
                num_stages > 1 ? "pipeline-parallel-size" : "tensor-parallel-size");
  }
  cpu::CpuOpsSettings cpu;
  cpu.dtype = loads_wide(settings, checkpoint) ? DType::kF32 : DType::kBF16;
  cpu.num_threads = settings.threads;
  cpu.kv = kv_codes(settings.kv_cache_dtype);
  exec::Ranks ranks;
  if (num_ranks == 1) {
    RUDDER_TRY(ranks.emplace_back(), cpu::make_cpu_ops(cpu));
    return ranks;
  }
  const int32_t threads = settings.threads == 0 ? num_cores : settings.threads;
  cpu.num_threads = std::max(1, threads / num_ranks);
  for (int32_t stage = 0; stage < num_stages; ++stage) {
    if (settings.parallel.ranks == 1) {
      RUDDER_TRY(ranks.emplace_back(), cpu::make_cpu_ops(cpu));
      continue;
    }
    for (auto& comm : cpu::HostComm::make_group(settings.parallel.ranks)) {
      cpu.comm = std::move(comm);
      RUDDER_TRY(ranks.emplace_back(), cpu::make_cpu_ops(cpu));
    }
  }
  return ranks;
}

// Below the user's cache folder; empty: the user has none.
std::string cache_path(const char* name) {
  std::string folder = environment_value("XDG_CACHE_HOME");
  if (folder.empty()) {
    const std::string home = environment_value("HOME");
    if (home.empty()) return {};
    folder = home + "/.cache";
  }
  return folder + "/rudder/" + name;
}

// What a plugin's modules do not do, by the setting that asks for it.
Result<void> check_pjrt(const exec::ExecSettings& settings, int32_t num_replicas) {
  const auto refuse = [](std::string_view what, const char* where) {
    return unsupported_on(what, "--device pjrt", where);
  };
  if (num_replicas > 1) return refuse("more than one engine", kReplicas);
  if (settings.parallel.ranks > 1) return refuse("more than one rank", "tensor-parallel-size");
  if (settings.parallel.stages > 1) return refuse("more than one stage", "pipeline-parallel-size");
  if (settings.quantization.products != "none") {
    return refuse(settings.quantization.products, "quantization");
  }
  if (settings.quantization.head != "auto") return refuse("a format of the head", "head-format");
  if (settings.kv_cache_dtype.starts_with("fp8")) {
    return refuse(settings.kv_cache_dtype, "kv-cache-dtype");
  }
  if (settings.batch_invariant) return refuse("a fixed order of sums", "batch-invariant");
  return {};
}

Result<exec::Ranks> make_pjrt(const exec::ExecSettings& settings, int32_t num_replicas,
                              const weights::Checkpoint& checkpoint) {
  RUDDER_TRY_VOID(check_pjrt(settings, num_replicas));
  RUDDER_TRY(const model::ModelSpec spec, model::read_spec(checkpoint));
  RUDDER_TRY_VOID(pjrt::check_spec(spec));
  RUDDER_TRY(
      std::unique_ptr<pjrt::PjrtOps> ops,
      pjrt::PjrtOps::make({.plugin = std::string(exec::plugin_of(settings.device)),
                           .dtype = loads_wide(settings, checkpoint) ? DType::kF32 : DType::kBF16,
                           .int8_kv = settings.kv_cache_dtype != "auto",
                           .num_threads = settings.threads}));
  exec::Ranks ranks;
  ranks.push_back(std::move(ops));
  return ranks;
}

#if RUDDER_HAS_CUDA

constexpr int32_t kMostGpuRanks = 4;  // of a group; the kernels take 8, which nobody has run

// On `first_device` and those behind it, one for each rank of each stage.
Result<exec::Ranks> make_cuda(const exec::ExecSettings& settings, int32_t first_device) {
  RUDDER_TRY(cuda::CudaOpsSettings cuda, cuda_settings(settings));
  const int32_t num_ranks = settings.parallel.ranks;
  if (num_ranks > kMostGpuRanks) {
    return unsupported_on(fmt::format("more than {} ranks ({})", kMostGpuRanks, num_ranks), "GPUs",
                          "tensor-parallel-size");
  }
  std::vector<int32_t> devices(static_cast<size_t>(ranks_of(settings)));
  std::iota(devices.begin(), devices.end(), first_device);
  if (settings.parallel.stages > 1) {
    return cuda::make_cuda_stages(cuda, devices, num_ranks);
  }
  if (num_ranks > 1) return cuda::make_cuda_ranks(cuda, devices);
  cuda.device = first_device;
  exec::Ranks ranks;
  RUDDER_TRY(ranks.emplace_back(), cuda::make_cuda_ops(cuda));
  return ranks;
}

int32_t num_gpus(const exec::ExecSettings& settings) {
  if (ranks_of(settings) > 1) cuda::load_kernels_early();
  return cuda::num_cuda_devices();
}
#else
Result<exec::Ranks> make_cuda(const exec::ExecSettings& /*settings*/, int32_t /*first_device*/) {
  return fail(ErrorCode::kUnsupported, "this build has no CUDA backend", "device");
}

int32_t num_gpus(const exec::ExecSettings& /*settings*/) {
  return 0;
}
#endif

// Each rank of each replica has a GPU of its own, and all of its memory.
Result<exec::ExecSettings> gpus_of_replica(const exec::ExecSettings& settings,
                                           int32_t num_replicas) {
  const int32_t needed = num_replicas * ranks_of(settings);
  const int32_t visible = num_gpus(settings);
  if (visible == 0 || needed <= visible) return settings;  // none: the backend says why
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} replicas with {} ranks each need {} GPUs; visible: {}", num_replicas,
                          ranks_of(settings), needed, visible),
              kReplicas);
}

}  // namespace

#if RUDDER_HAS_CUDA
Result<cuda::CudaOpsSettings> cuda_settings(const exec::ExecSettings& settings) {
  if (settings.dtype == "float32") return unsupported_on(settings.dtype, "a GPU", "dtype");
  cuda::CudaOpsSettings cuda;
  cuda.linear_dtype = settings.quantization.products == "fp8" ? DType::kF8E4M3 : DType::kBF16;
  if (settings.quantization.products == "w8a8") {
    cuda.low_format = {.codes = ops::Codes::kI8, .scale = ops::ScaleType::kF32};
  }
  if (settings.quantization.products == "w4a16") {
    cuda.low_format = {.codes = ops::Codes::kU4,
                       .scale = ops::ScaleType::kF16,
                       .group = 128,
                       .offset = ops::Offset::kMiddle};
  }
  cuda.head_dtype = settings.quantization.head == "fp8" ? DType::kF8E4M3 : DType::kBF16;
  cuda.kv = kv_codes(settings.kv_cache_dtype).value_or(ops::KvFormat{DType::kBF16});
  cuda.cublaslt_path = settings.cublaslt_path;
  cuda.policy_path =
      settings.kernel_policy.empty() ? cache_path("kernel-policy.json") : settings.kernel_policy;
  cuda.tune = settings.tune;
  cuda.batch_invariant = settings.batch_invariant;
  cuda.synchronous = settings.synchronous;
  return cuda;
}
#endif

exec::ExecSettings resolve_device(exec::ExecSettings settings) {
  if (settings.device == "auto") settings.device = num_gpus(settings) > 0 ? "cuda" : "cpu";
  if (settings.gpu_memory_utilization == 0) {
    settings.gpu_memory_utilization = settings.device == "cuda" ? kShareOfGpu : kShareOfRam;
  }
  return settings;
}

Result<exec::ExecSettings> share_of_replica(exec::ExecSettings settings, int32_t num_replicas) {
  // Stages on a CPU have one memory; GPUs have one each.
  if (settings.device == "cpu") settings.gpu_memory_utilization /= settings.parallel.stages;
  if (num_replicas == 1 || exec::is_pjrt(settings.device)) return settings;
  if (settings.device == "cuda") return gpus_of_replica(settings, num_replicas);
  const int32_t num_cores = usable_cores();
  const int32_t num_ranks = num_replicas * ranks_of(settings);
  if (num_ranks > num_cores) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} replicas with {} ranks are more than the {} cores that this process may "
                    "use",
                    num_replicas, num_ranks, num_cores),
        kReplicas);
  }
  const int32_t threads = settings.threads == 0 ? num_cores : settings.threads;
  settings.threads = std::max(1, threads / num_replicas);
  settings.gpu_memory_utilization /= num_replicas;
  return settings;
}

Result<std::vector<exec::Ranks>> make_replicas(const exec::ExecSettings& settings,
                                               int32_t num_replicas,
                                               const weights::Checkpoint& checkpoint) {
  std::vector<exec::Ranks> replicas;
  if (exec::is_pjrt(settings.device)) {
    RUDDER_TRY(replicas.emplace_back(), make_pjrt(settings, num_replicas, checkpoint));
    return replicas;
  }
  for (int32_t i = 0; i < num_replicas; ++i) {
    RUDDER_TRY(replicas.emplace_back(), settings.device == "cuda"
                                            ? make_cuda(settings, i * ranks_of(settings))
                                            : make_cpu(settings, checkpoint));
  }
  return replicas;
}

model::MakeOwnKvDecoder decoder_of(const exec::ExecSettings& settings) {
  if (!exec::is_pjrt(settings.device)) return {};
  return [folder = cache_path("pjrt")](const model::OwnKvDecoderParts& parts) {
    return pjrt::make_module_decoder(parts, {.cache_folder = folder, .compiles_at_start = true});
  };
}

}  // namespace rudder::apps
