// The device's stream, its events and its captured graphs, as RAII objects over the CUDA runtime's
// handles. CudaOps makes them and outlives them.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "rudder/base/result.h"
#include "rudder/cuda/device_status.h"
#include "rudder/ops/comm.h"
#include "rudder/ops/stream.h"

namespace rudder::cuda {

class Stream {
 public:
  static Result<std::unique_ptr<Stream>> make();
  explicit Stream(cudaStream_t handle) : handle_(handle) {}
  ~Stream() { cudaStreamDestroy(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t handle() const { return handle_; }

 private:
  const cudaStream_t handle_;
};

// A stream of copies that no op waits for.
class SideStream {
 public:
  static Result<std::unique_ptr<SideStream>> make();
  SideStream(std::unique_ptr<Stream> stream, cudaEvent_t fork)
      : stream_(std::move(stream)), fork_(fork) {}
  ~SideStream() { cudaEventDestroy(fork_); }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  cudaStream_t handle() const { return stream_->handle(); }
  // To pinned memory, once `after` has come to where it is now.
  cudaError_t copy_out(void* to, const void* from, size_t bytes, cudaStream_t after);

 private:
  const std::unique_ptr<Stream> stream_;
  // Recorded anew while an earlier copy may still wait: a wait is for the record that it found.
  const cudaEvent_t fork_;
};

// Any thread may wait; every wait after a device fault, or after a failure of the device's group,
// returns that fault.
class CudaEvent final : public ops::Event {
 public:
  // `status` and `comm` (null: the device is alone) outlive the event. A handle that could not be
  // made is reported by wait().
  explicit CudaEvent(DeviceStatus& status, ops::Comm* comm = nullptr);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  Result<void> wait() override;
  bool done() override;
  void record(cudaStream_t stream);

 private:
  DeviceStatus& status_;
  ops::Comm* const comm_;
  cudaEvent_t handle_ = nullptr;
};

class CudaGraph final : public ops::Graph {
 public:
  explicit CudaGraph(cudaGraphExec_t handle) : handle_(handle) {}
  ~CudaGraph() override { cudaGraphExecDestroy(handle_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  cudaGraphExec_t handle() const { return handle_; }

 private:
  const cudaGraphExec_t handle_;
};

// Ends the capture on `stream`: instantiates what was recorded and puts it on the device.
Result<std::unique_ptr<CudaGraph>> end_capture(cudaStream_t stream);

}  // namespace rudder::cuda
