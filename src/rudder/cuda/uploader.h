// Uploader: copies weights from host memory to the device while a model is loaded, through pinned
// buffers that several threads fill. So a mapped file is read at the speed of memory, and the
// device works on one piece while the next one is copied. CudaOps owns it; its thread uses it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "rudder/base/result.h"
#include "rudder/base/thread_pool.h"

namespace rudder::cuda {

class Uploader {
 public:
  explicit Uploader(cudaStream_t stream) : stream_(stream) {}
  ~Uploader() { release(); }
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // The host's bytes are read before this returns; the device has them in the order of the stream.
  Result<void> copy(const void* host, void* device, int64_t bytes);

  // Hands the host's bytes to `use` in pieces of whole `unit` bytes, each in device memory that is
  // good for what `use` enqueues on the stream. `offset` is of the piece in the whole.
  using Use = std::function<cudaError_t(const void* device, int64_t offset, int64_t bytes)>;
  Result<void> for_each_piece(const void* host, int64_t bytes, int64_t unit, const Use& use);

  // Frees the buffers, which are made at their first use; waits for copies in progress.
  void release();

 private:
  static constexpr int64_t kPieceBytes = int64_t{32} << 20;

  struct Buffer {
    void* pinned = nullptr;
    void* device = nullptr;      // for_each_piece alone
    cudaEvent_t read = nullptr;  // when the device has done with it
  };

  Result<void> make_buffers();
  // The next buffer, filled with the bytes.
  Result<Buffer*> fill(const char* host, int64_t bytes);

  const cudaStream_t stream_;
  std::unique_ptr<ThreadPool> pool_;
  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
};

}  // namespace rudder::cuda
