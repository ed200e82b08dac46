// StreamMarks: how far a stream has come, as a number that any thread may look at while the device
// works. CudaOps of a stage has them: others wait for it, and must tell a long step from one that
// never ends.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "rudder/base/result.h"

namespace rudder::cuda {

class StreamMarks {
 public:
  static Result<std::unique_ptr<StreamMarks>> make();
  explicit StreamMarks(uint64_t* word) : word_(word) {}
  ~StreamMarks() { cudaFreeHost(word_); }
  StreamMarks(const StreamMarks&) = delete;
  StreamMarks& operator=(const StreamMarks&) = delete;

  // The thread of the Ops. Not in a capture, which would repeat the mark.
  cudaError_t mark(cudaStream_t stream);
  // Marks that the device has passed. Any thread.
  uint64_t num_passed() const { return *static_cast<const volatile uint64_t*>(word_); }

 private:
  uint64_t* const word_;  // pinned; kernels write it
  uint64_t num_marks_ = 0;
};

}  // namespace rudder::cuda
