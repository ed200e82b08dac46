// DeviceMemory: all memory of one CUDA backend, on the device and pinned on the host: zeroed,
// 256-byte aligned, freed with the backend. Owned by CudaOps and used by its thread.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "rudder/base/result.h"
#include "rudder/cuda/arena_layout.h"
#include "rudder/tensor/view.h"

namespace rudder::cuda {

class DeviceMemory {
 public:
  explicit DeviceMemory(cudaStream_t stream) : stream_(stream), layout_(kChunkBytes) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Zeroed in the order of the stream.
  Result<tensor::View> allocate(tensor::DType dtype, const tensor::Shape& shape);
  // Not zeroed: for memory that is fully written before it is read.
  Result<tensor::View> allocate_raw(tensor::DType dtype, const tensor::Shape& shape);
  Result<tensor::View> allocate_pinned(int64_t bytes);  // [bytes] u8, zeroed

  int64_t used_bytes() const { return layout_.used_bytes(); }

 private:
  static constexpr int64_t kChunkBytes = int64_t{64} << 20;

  const cudaStream_t stream_;
  ArenaLayout layout_;
  std::vector<void*> chunks_;
  std::vector<void*> pinned_;
};

}  // namespace rudder::cuda
