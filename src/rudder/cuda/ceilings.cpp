#include "rudder/cuda/ceilings.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "rudder/cuda/cublaslt_api.h"
#include "rudder/cuda/device_info.h"
#include "rudder/cuda/device_memory.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/kernels/measure/read_memory.h"
#include "rudder/cuda/kernels/rows/convert.h"
#include "rudder/cuda/product.h"
#include "rudder/cuda/stream.h"

namespace rudder::cuda {
namespace {

using tensor::DType;
using tensor::View;

constexpr int64_t kBytes = int64_t{2} << 30;  // far more than any cache
constexpr int64_t kSide = 8192;
constexpr int kRepeats = 8;

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Seconds of one call, of several in a row after one that warms up.
  template <typename Call>
  Result<double> seconds(Call&& call) {
    RUDDER_TRY_VOID(call());
    RUDDER_CUDA_TRY(cudaEventRecord(begin_, stream_), "ceilings", "");
    for (int i = 0; i < kRepeats; ++i) RUDDER_TRY_VOID(call());
    RUDDER_CUDA_TRY(cudaEventRecord(end_, stream_), "ceilings", "");
    RUDDER_CUDA_TRY(cudaEventSynchronize(end_), "ceilings", "");
    float milliseconds = 0;
    RUDDER_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin_, end_), "ceilings", "");
    return double{milliseconds} * 1e-3 / kRepeats;
  }

 private:
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Seconds of the fastest algorithm for a large square product.
Result<double> product_seconds(const CublasLtApi& api, cublasLtHandle_t handle, DType dtype,
                               const View& operands, const View& y, const View& workspace,
                               Stopwatch& watch, cudaStream_t stream) {
  RUDDER_TRY(const auto product,
             Product::make(api, handle, {.out = kSide, .in = kSide, .dtype = dtype}));
  RUDDER_TRY(const auto algorithms, product->candidates(kSide, workspace.bytes(), 6));
  const Product::Operands ask{.x = operands.data,
                              .weight = static_cast<char*>(operands.data) + kSide * kSide * 2,
                              .bias = nullptr,
                              .x_scale = nullptr,
                              .w_scale = nullptr,
                              .y = y.data,
                              .tokens = kSide};
  std::optional<double> best;
  for (const Product::Algorithm& algorithm : algorithms) {
    const Result<double> time = watch.seconds([&] {
      return product->run(ask, algorithm, {workspace.data, workspace.bytes()}, stream);
    });
    if (!time) continue;
    best = std::min(best.value_or(*time), *time);
  }
  if (!best) return fail(ErrorCode::kInternal, "no large product runs", "device");
  return *best;
}

}  // namespace

Result<Ceilings> measure_ceilings(const std::string& cublaslt_path) {
  RUDDER_TRY(const DeviceInfo info, open_device());
  RUDDER_TRY(const CublasLtApi* const api, load_cublaslt(cublaslt_path));
  RUDDER_TRY(const std::unique_ptr<Stream> stream, Stream::make());
  const cudaStream_t raw = stream->handle();
  DeviceMemory memory(raw);
  RUDDER_TRY(const View from, memory.allocate_raw(DType::kU8, {kBytes}));
  RUDDER_TRY(const View to, memory.allocate_raw(DType::kU8, {kBytes}));
  RUDDER_TRY(const View workspace, memory.allocate_raw(DType::kU8, {kWorkspaceBytes}));
  FillRandomParams fill;  // not zeros, whose products take less power
  fill.to = from.data;
  fill.count = kBytes / 2;
  RUDDER_CUDA_TRY(launch_fill_random(fill, raw), "ceilings", "random values");

  Stopwatch watch(raw);
  Ceilings out;
  RUDDER_TRY(const double read, watch.seconds([&]() -> Result<void> {
    ReadMemoryParams params;
    params.data = from.data;
    params.bytes = kBytes;
    params.num_sms = info.num_sms;
    params.sum = static_cast<uint32_t*>(to.data);
    RUDDER_CUDA_TRY(launch_read_memory(params, raw), "ceilings", "read");
    return {};
  }));
  out.read_bytes_per_second = static_cast<double>(kBytes) / read;
  RUDDER_TRY(const double copy, watch.seconds([&]() -> Result<void> {
    RUDDER_CUDA_TRY(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(kBytes),
                                    cudaMemcpyDeviceToDevice, raw),
                    "ceilings", "copy");
    return {};
  }));
  out.copy_bytes_per_second = 2.0 * static_cast<double>(kBytes) / copy;

  cublasLtHandle_t handle = nullptr;
  if (api->create(&handle) != CUBLAS_STATUS_SUCCESS) {
    return fail(ErrorCode::kInternal, "cuBLASLt cannot start", "device");
  }
  const double flops = 2.0 * kSide * kSide * kSide;
  const Result<double> bf16 =
      product_seconds(*api, handle, DType::kBF16, from, to, workspace, watch, raw);
  const Result<double> fp8 =
      product_seconds(*api, handle, DType::kF8E4M3, from, to, workspace, watch, raw);
  api->destroy(handle);
  RUDDER_TRY(const double bf16_seconds, bf16);
  RUDDER_TRY(const double fp8_seconds, fp8);
  out.bf16_flops = flops / bf16_seconds;
  out.fp8_flops = flops / fp8_seconds;
  RUDDER_CUDA_TRY(cudaStreamSynchronize(raw), "ceilings", "");
  return out;
}

}  // namespace rudder::cuda
