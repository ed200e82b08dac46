// PeerMessage: a message of a stage on a GPU (ops/message.h): memory of that GPU, which the GPUs of
// other stages read by peer access, and an event of its stream, which their streams wait for. It
// belongs to no CudaOps, so it may outlive the one that made it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "rudder/base/result.h"
#include "rudder/ops/message.h"

namespace rudder::cuda {

class PeerMessage final : public ops::Message {
 public:
  static Result<std::unique_ptr<PeerMessage>> make(int32_t device, int64_t bytes);
  ~PeerMessage() override;
  PeerMessage(const PeerMessage&) = delete;
  PeerMessage& operator=(const PeerMessage&) = delete;

  tensor::View memory() const override { return {memory_, tensor::DType::kU8, {bytes_}}; }
  int32_t device() const { return device_; }
  bool has_arrived() override { return cudaEventQuery(posted_) != cudaErrorNotReady; }

  // `sender` is a stream of the message's GPU, `reader` one of any.
  cudaError_t post(cudaStream_t sender) { return cudaEventRecord(posted_, sender); }
  cudaError_t await(cudaStream_t reader) { return cudaStreamWaitEvent(reader, posted_, 0); }

 private:
  PeerMessage(int32_t device, int64_t bytes) : device_(device), bytes_(bytes) {}

  const int32_t device_;
  const int64_t bytes_;
  void* memory_ = nullptr;
  cudaEvent_t posted_ = nullptr;
};

}  // namespace rudder::cuda
