#include "rudder/cuda/device_info.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>

#include "rudder/cuda/cuda_ops.h"
#include "rudder/cuda/device_status.h"

namespace rudder::cuda {
namespace {

// The kernels are machine code of sm_90a, which runs on compute capability 9.0 and nothing else.
constexpr int kMajor = 9;
constexpr int kMinor = 0;
// A build that only checks the kernels has none of it (cmake/cuda.cmake).
constexpr bool kHasMachineCode = RUDDER_HAS_MACHINE_CODE;

}  // namespace

Result<DeviceInfo> open_device(int32_t device, const char* where) {
  if (!kHasMachineCode) {
    return fail(ErrorCode::kUnsupported,
                "this build has checked its kernels and made no machine code of them "
                "(RUDDER_CUDA=CHECK): build it with RUDDER_CUDA=ON",
                "device");
  }
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("there is no CUDA device: {}",
                            found != cudaSuccess ? cudaGetErrorString(found) : "none is visible"),
                "device");
  }
  if (device >= count) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("rank {} needs a GPU of its own, and {} are visible", device, count),
                where);
  }
  cudaDeviceProp properties = {};
  RUDDER_CUDA_TRY(cudaGetDeviceProperties(&properties, device), "open_device", "");
  DeviceInfo info;
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.l2_bytes = properties.l2CacheSize;
  RUDDER_CUDA_TRY(cudaDriverGetVersion(&info.driver), "open_device", "");
  if (info.major != kMajor || info.minor != kMinor) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} has compute capability {}.{}; this build has kernels for {}.{}",
                            info.name, info.major, info.minor, kMajor, kMinor),
                "device");
  }
  use_device(device);
  return info;
}

void use_device(int32_t device) {
  thread_local int32_t current = -1;
  if (current != device && cudaSetDevice(device) == cudaSuccess) current = device;
}

void load_kernels_early() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

int32_t num_cuda_devices() {
  int visible = 0;
  if (!kHasMachineCode || cudaGetDeviceCount(&visible) != cudaSuccess) return 0;
  int32_t usable = 0;
  while (usable < visible) {
    int major = 0;
    int minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, usable);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, usable);
    if (major != kMajor || minor != kMinor) break;
    ++usable;
  }
  return usable;
}

int64_t free_memory(int32_t device) {
  use_device(device);
  size_t free = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
  return static_cast<int64_t>(free);
}

}  // namespace rudder::cuda
