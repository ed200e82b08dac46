#include "rudder/cuda/copy_lane.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/clock.h"
#include "rudder/base/log.h"
#include "rudder/base/thread_pool.h"
#include "rudder/cuda/device_info.h"
#include "rudder/cuda/device_status.h"

namespace rudder::cuda {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Pages that are there before the driver pins them, made by all cores: it would make one after the
// other.
void touch(std::span<std::byte> memory) {
  constexpr size_t kPiece = size_t{64} << 20;
  constexpr size_t kPage = 4096;
  ThreadPool pool;
  pool.parallel_for(static_cast<int64_t>((memory.size() + kPiece - 1) / kPiece), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kPiece;
    const size_t end = std::min(begin + kPiece, memory.size());
    for (size_t at = begin; at < end; at += kPage) {
      *static_cast<volatile std::byte*>(&memory[at]) = std::byte{0};
    }
  });
}

}  // namespace

Result<std::unique_ptr<CudaLane>> CudaLane::make(int32_t device) {
  use_device(device);
  std::unique_ptr<CudaLane> lane(new CudaLane(device));
  for (Way* const way : {&lane->in_, &lane->out_}) {
    for (std::unique_ptr<Stream>& stream : way->streams) {
      RUDDER_TRY(stream, Stream::make());
    }
  }
  return lane;
}

CudaLane::~CudaLane() {
  use_device(device_);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  for (const std::span<std::byte> memory : registered_) {
    cudaHostUnregister(memory.data());
    ::munmap(memory.data(), memory.size());
  }
  for (void* const memory : pinned_) cudaFreeHost(memory);
}

// In one piece whatever its size: a copy may not cross from one registered range to the next.
Result<std::span<std::byte>> CudaLane::allocate(int64_t bytes) {
  use_device(device_);
  const size_t size =
      (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + kHugePage - 1) / kHugePage * kHugePage;
  void* const data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("{} bytes of host memory are not to be had", bytes));
  }
  std::span all(static_cast<std::byte*>(data), size);
  const SteadyClock clock;
  const int64_t start_us = clock.now_us();
  ::madvise(data, size, MADV_HUGEPAGE);  // where there are none, small ones do
  touch(all);
  const int64_t touched_us = clock.now_us();
  const bool is_registered = cudaHostRegister(data, size, cudaHostRegisterDefault) == cudaSuccess;
  if (is_registered) {
    registered_.push_back(all);
  } else {
    cudaGetLastError();  // it is no fault of the device
    ::munmap(data, size);
    RUDDER_TRY(all, pin_by_driver(size));
  }
  log_info("{:.2f} GiB of host memory: {:.2f} s to get, {:.2f} s to pin{}",
           static_cast<double>(size) / (1 << 30), static_cast<double>(touched_us - start_us) * 1e-6,
           static_cast<double>(clock.now_us() - touched_us) * 1e-6,
           is_registered ? "" : ", by the driver");
  return all.first(static_cast<size_t>(bytes));
}

// Slower to get: where the driver does not pin what is there.
Result<std::span<std::byte>> CudaLane::pin_by_driver(size_t size) {
  void* data = nullptr;
  const cudaError_t pinned = cudaHostAlloc(&data, size, cudaHostAllocDefault);
  if (pinned != cudaSuccess) {
    cudaGetLastError();  // it is told here
    Error error = device_error(pinned, "pin", fmt::format("{} bytes of host memory", size));
    error.code = ErrorCode::kUnavailable;
    return tl::unexpected(std::move(error));
  }
  pinned_.push_back(data);
  return std::span(static_cast<std::byte*>(data), size);
}

Result<void> CudaLane::copy_in(std::span<const ops::LanePiece> pieces,
                               FunctionRef<void()> meanwhile) {
  return copy(pieces, cudaMemcpyHostToDevice, in_, meanwhile);
}

Result<void> CudaLane::copy_out(std::span<const ops::LanePiece> pieces) {
  return copy(pieces, cudaMemcpyDeviceToHost, out_, [] {});
}

// What others put on the stream between these pieces and their event is waited for as well.
Result<void> CudaLane::copy(std::span<const ops::LanePiece> pieces, cudaMemcpyKind kind, Way& way,
                            FunctionRef<void()> meanwhile) {
  use_device(device_);
  const cudaStream_t stream = way.streams[way.next++ % way.streams.size()]->handle();
  for (const ops::LanePiece& piece : pieces) {
    RUDDER_CHECK(piece.device.size() == piece.host.size(), "{} bytes to {}", piece.device.size(),
                 piece.host.size());
    const bool is_in = kind == cudaMemcpyHostToDevice;
    RUDDER_CUDA_TRY(cudaMemcpyAsync(is_in ? piece.device.data() : piece.host.data(),
                                    is_in ? piece.host.data() : piece.device.data(),
                                    piece.host.size(), kind, stream),
                    "copy_record", fmt::format("{} bytes", piece.host.size()));
  }
  RUDDER_TRY(const cudaEvent_t event, take_event());
  cudaError_t waited = cudaEventRecord(event, stream);
  meanwhile();
  if (waited == cudaSuccess) waited = cudaEventSynchronize(event);
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  RUDDER_CUDA_TRY(waited, "copy_record", "");
  return {};
}

// Whoever waits for it sleeps: several threads do so at once, and the ops' thread has more use for
// a core.
Result<cudaEvent_t> CudaLane::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      const cudaEvent_t event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  RUDDER_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                  "copy_record", "");
  return event;
}

}  // namespace rudder::cuda
