// NcclSums: the sums of NCCL over several GPUs of this process, as the baseline of peer_bench. The
// library is opened when it is asked for (libnccl.so.2, by name); nothing is linked against it.
// NVLink multicast is off, as it is in Rudder's own sums.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rudder/base/result.h"

namespace rudder::cuda {

class NcclSums {
 public:
  // Of one rank a device. An Error: no library, or what it says.
  static Result<std::unique_ptr<NcclSums>> make(std::span<const int32_t> devices);
  ~NcclSums();

  // "2.28.9"
  std::string version() const;
  // Enqueues the sum of `count` bf16 of every rank at `data`, in place. Each rank's own thread
  // calls it; the stream may be one that is captured, after one call that was not.
  Result<void> sum(int32_t rank, void* data, int64_t count, cudaStream_t stream);

 private:
  struct Library;

  explicit NcclSums(std::unique_ptr<Library> library);

  const std::unique_ptr<Library> library_;
};

}  // namespace rudder::cuda
