// CudaLane: the CopyLane of a GPU: streams of copies for each direction, beside the stream of the
// ops and its graphs, and pinned memory of the host. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/cuda/stream.h"
#include "rudder/ops/copy_lane.h"

namespace rudder::cuda {

class CudaLane final : public ops::CopyLane {
 public:
  static Result<std::unique_ptr<CudaLane>> make(int32_t device);
  ~CudaLane() override;  // nobody copies any more
  CudaLane(const CudaLane&) = delete;
  CudaLane& operator=(const CudaLane&) = delete;

  Result<std::span<std::byte>> allocate(int64_t bytes) override;
  Result<void> copy_in(std::span<const ops::LanePiece> pieces,
                       FunctionRef<void()> meanwhile) override;
  Result<void> copy_out(std::span<const ops::LanePiece> pieces) override;

 private:
  // Two a direction: while one begins a copy, which takes some microseconds, the other's runs.
  struct Way {
    std::array<std::unique_ptr<Stream>, 2> streams;
    std::atomic<uint32_t> next = 0;
  };

  explicit CudaLane(int32_t device) : device_(device) {}
  Result<void> copy(std::span<const ops::LanePiece> pieces, cudaMemcpyKind kind, Way& way,
                    FunctionRef<void()> meanwhile);
  Result<std::span<std::byte>> pin_by_driver(size_t size);
  Result<cudaEvent_t> take_event();

  const int32_t device_;
  Way in_;
  Way out_;
  std::vector<std::span<std::byte>> registered_;
  std::vector<void*> pinned_;  // by the driver
  std::mutex mutex_;           // of events_
  std::vector<cudaEvent_t> events_;
};

}  // namespace rudder::cuda
