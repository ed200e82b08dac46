// LoadScratch: device memory for the making of one weight while a model is loaded, in the order of
// the stream. The thread of the Ops.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/uploader.h"
#include "rudder/tensor/view.h"

namespace rudder::cuda {

class LoadScratch {
 public:
  explicit LoadScratch(cudaStream_t stream) : stream_(stream) {}
  ~LoadScratch() {
    for (void* data : data_) cudaFreeAsync(data, stream_);
  }
  LoadScratch(const LoadScratch&) = delete;
  LoadScratch& operator=(const LoadScratch&) = delete;

  template <typename T>
  Result<T*> allocate(int64_t count) {
    void* data = nullptr;
    const auto bytes = std::max<size_t>(static_cast<size_t>(count) * sizeof(T), 16);
    RUDDER_CUDA_TRY(cudaMallocAsync(&data, bytes, stream_), "make_linear", "");
    data_.push_back(data);
    return static_cast<T*>(data);
  }
  Result<void*> upload(const tensor::View& host, Uploader& uploader) {
    const auto bytes = static_cast<int64_t>(host.bytes());
    RUDDER_TRY(uint8_t* const data, allocate<uint8_t>(bytes));
    RUDDER_TRY_VOID(uploader.copy(host.data, data, bytes));
    return static_cast<void*>(data);
  }

 private:
  const cudaStream_t stream_;
  std::vector<void*> data_;
};

}  // namespace rudder::cuda
