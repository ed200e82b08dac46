// Reads which GPU this is, and whether this build has kernels for it. Called once at start; any
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "rudder/base/result.h"

namespace rudder::cuda {

struct DeviceInfo {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int major = 0;     // compute capability
  int minor = 0;
  int32_t num_sms = 0;
  int driver = 0;  // cudaDriverGetVersion
  int64_t l2_bytes = 0;
};

// A visible device, made current for this thread. An Error says why there is none: no driver, fewer
// devices (by the setting `where`), or one that this build has no kernels for.
Result<DeviceInfo> open_device(int32_t device = 0, const char* where = "tensor-parallel-size");

// Makes a device current for this thread. What CUDA allocates, launches and makes is the current
// device's, so whoever has several comes through here first; it costs nothing when it is current.
void use_device(int32_t device);

// Bytes that are free on the device, which is then current; 0 where the driver does not say.
int64_t free_memory(int32_t device);

}  // namespace rudder::cuda
