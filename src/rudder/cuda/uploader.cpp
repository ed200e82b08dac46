#include "rudder/cuda/uploader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "rudder/cuda/device_status.h"

namespace rudder::cuda {
namespace {

constexpr int64_t kTaskBytes = int64_t{1} << 20;  // of one thread's turn at a buffer
constexpr int kMaxThreads = 8;                    // more do not make memory faster

}  // namespace

Result<void> Uploader::make_buffers() {
  if (pool_ != nullptr) return {};
  for (Buffer& buffer : buffers_) {
    const auto bytes = static_cast<size_t>(kPieceBytes);
    RUDDER_CUDA_TRY(cudaHostAlloc(&buffer.pinned, bytes, cudaHostAllocDefault), "upload",
                    "pinned buffer");
    RUDDER_CUDA_TRY(cudaMalloc(&buffer.device, bytes), "upload", "device buffer");
    RUDDER_CUDA_TRY(cudaEventCreateWithFlags(&buffer.read, cudaEventDisableTiming), "upload",
                    "event");
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  pool_ = std::make_unique<ThreadPool>(std::clamp(cores, 1, kMaxThreads));
  return {};
}

void Uploader::release() {
  for (Buffer& buffer : buffers_) {
    if (buffer.read != nullptr) {
      cudaEventSynchronize(buffer.read);
      cudaEventDestroy(buffer.read);
    }
    cudaFreeHost(buffer.pinned);
    cudaFree(buffer.device);
    buffer = {};
  }
  pool_.reset();
}

Result<Uploader::Buffer*> Uploader::fill(const char* host, int64_t bytes) {
  RUDDER_TRY_VOID(make_buffers());
  Buffer& buffer = buffers_[next_];
  next_ = (next_ + 1) % buffers_.size();
  RUDDER_CUDA_TRY(cudaEventSynchronize(buffer.read), "upload", "waiting for a buffer");
  char* pinned = static_cast<char*>(buffer.pinned);
  pool_->parallel_for((bytes + kTaskBytes - 1) / kTaskBytes, [&](int64_t task) {
    const int64_t begin = task * kTaskBytes;
    std::memcpy(pinned + begin, host + begin,
                static_cast<size_t>(std::min(kTaskBytes, bytes - begin)));
  });
  return &buffer;
}

Result<void> Uploader::copy(const void* host, void* device, int64_t bytes) {
  for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const int64_t count = std::min(kPieceBytes, bytes - begin);
    RUDDER_TRY(Buffer* const buffer, fill(static_cast<const char*>(host) + begin, count));
    RUDDER_CUDA_TRY(cudaMemcpyAsync(static_cast<char*>(device) + begin, buffer->pinned,
                                    static_cast<size_t>(count), cudaMemcpyHostToDevice, stream_),
                    "upload", fmt::format("{} bytes at {}", count, begin));
    RUDDER_CUDA_TRY(cudaEventRecord(buffer->read, stream_), "upload", "");
  }
  return {};
}

Result<void> Uploader::for_each_piece(const void* host, int64_t bytes, int64_t unit,
                                      const Use& use) {
  if (unit > kPieceBytes) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("a row of {} bytes is longer than {}", unit, kPieceBytes));
  }
  const int64_t piece = kPieceBytes / std::max<int64_t>(unit, 1) * unit;
  for (int64_t begin = 0; begin < bytes; begin += piece) {
    const int64_t count = std::min(piece, bytes - begin);
    RUDDER_TRY(Buffer* const buffer, fill(static_cast<const char*>(host) + begin, count));
    RUDDER_CUDA_TRY(cudaMemcpyAsync(buffer->device, buffer->pinned, static_cast<size_t>(count),
                                    cudaMemcpyHostToDevice, stream_),
                    "upload", fmt::format("{} bytes at {}", count, begin));
    RUDDER_CUDA_TRY(use(buffer->device, begin, count), "upload",
                    fmt::format("converting {} bytes at {}", count, begin));
    RUDDER_CUDA_TRY(cudaEventRecord(buffer->read, stream_), "upload", "");
  }
  return {};
}

}  // namespace rudder::cuda
