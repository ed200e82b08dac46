#include "rudder/cuda/peer_message.h"

#include <fmt/format.h>

#include "rudder/cuda/device_info.h"
#include "rudder/cuda/device_status.h"

namespace rudder::cuda {

Result<std::unique_ptr<PeerMessage>> PeerMessage::make(int32_t device, int64_t bytes) {
  use_device(device);
  std::unique_ptr<PeerMessage> message(new PeerMessage(device, bytes));
  RUDDER_CUDA_TRY(cudaMalloc(&message->memory_, static_cast<size_t>(bytes)), "stages",
                  fmt::format("{} bytes", bytes));
  RUDDER_CUDA_TRY(cudaEventCreateWithFlags(&message->posted_, cudaEventDisableTiming), "stages",
                  "");
  return message;
}

PeerMessage::~PeerMessage() {
  use_device(device_);
  if (posted_ != nullptr) cudaEventDestroy(posted_);
  cudaFree(memory_);
}

}  // namespace rudder::cuda
