#include "rudder/cuda/peer_access.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "rudder/cuda/device_info.h"
#include "rudder/cuda/device_status.h"

namespace rudder::cuda {
namespace {

Result<void> enable_peer(int32_t from, int32_t to, const char* where) {
  if (from == to) return {};
  int can = 0;
  RUDDER_CUDA_TRY(cudaDeviceCanAccessPeer(&can, from, to), "peer access", "");
  if (can == 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("GPU {} cannot read the memory of GPU {}: ranks on GPUs need peer "
                            "access between all pairs",
                            from, to),
                where);
  }
  use_device(from);
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(to, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return {};
  }
  RUDDER_CUDA_TRY(enabled, "peer access", fmt::format("GPU {} to GPU {}", from, to));
  return {};
}

}  // namespace

// Kernels of two streams of one GPU need not run at once.
Result<void> check_each_its_own(std::span<const int32_t> devices, const char* where) {
  for (const int32_t device : devices) {
    if (std::ranges::count(devices, device) == 1) continue;
    return fail(ErrorCode::kUnsupported,
                fmt::format("GPU {} cannot be two ranks: each needs one of its own", device),
                where);
  }
  return {};
}

Result<void> enable_peer_access(std::span<const int32_t> devices, const char* where) {
  for (const int32_t device : devices) RUDDER_TRY_VOID(open_device(device, where));
  for (const int32_t from : devices) {
    for (const int32_t to : devices) RUDDER_TRY_VOID(enable_peer(from, to, where));
  }
  return {};
}

}  // namespace rudder::cuda
