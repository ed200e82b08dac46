// DeviceStatus: keeps the first fault of a device for good. A fault of a kernel surfaces at some
// later call, so the message says where it was found, in which layer, on which stream, and which
// ops were enqueued before. The thread of the Ops calls note() and check(); any thread calls
// status().
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/result.h"

namespace rudder::cuda {

// "CUDA error 2 (out of memory) in allocate: 1048576 bytes"
Error device_error(cudaError_t error, std::string_view op, std::string_view detail);

// RUDDER_CUDA_TRY(call, "op", detail): returns the device's Error from a function that returns
// Result.
#define RUDDER_CUDA_TRY(call, op, detail)                                                       \
  do {                                                                                          \
    const cudaError_t rudder_cuda_error = (call);                                               \
    if (rudder_cuda_error != cudaSuccess)                                                       \
      return ::tl::unexpected(::rudder::cuda::device_error(rudder_cuda_error, (op), (detail))); \
  } while (false)

class DeviceStatus {
 public:
  explicit DeviceStatus(std::string stream) : stream_(std::move(stream)) {}

  // The op that is being enqueued. `op` is a literal. Layers are counted by their "attention", from
  // the step's "embed" on.
  void note(const char* op);
  // Keeps the first failure. `shapes` is called for that one only and returns text.
  template <typename Shapes>
  void check(cudaError_t error, const char* op, Shapes&& shapes) {
    if (error != cudaSuccess) [[unlikely]]
      keep(error, op, shapes());
  }
  void check(cudaError_t error, const char* op) {
    check(error, op, [] { return std::string(); });
  }
  // A failure that has no CUDA error number (a library's).
  void keep(Error error);

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Result<void> status() const;

 private:
  void keep(cudaError_t error, const char* op, const std::string& shapes);
  std::string place() const;

  const std::string stream_;
  std::array<std::atomic<const char*>, 8> recent_ = {};  // the last ops, a ring
  std::atomic<size_t> next_ = 0;
  std::atomic<int> attentions_ = 0;  // of the forward pass that is being enqueued
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;  // of error_
  Error error_;
};

}  // namespace rudder::cuda
