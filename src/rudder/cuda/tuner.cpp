#include "rudder/cuda/tuner.h"

#include <algorithm>
#include <optional>
#include <random>

#include "rudder/cuda/device_status.h"
#include "rudder/cuda/kernels/measure/pause.h"
#include "rudder/cuda/kernels/rows/convert.h"
#include "rudder/cuda/linear.h"
#include "rudder/cuda/stream.h"

namespace rudder::cuda {

namespace {

// About what a step's small kernels take between two products: 4 us.
constexpr int64_t kPauseCycles = 7000;

}  // namespace

Result<std::unique_ptr<Tuner>> Tuner::make(cudaStream_t stream, int64_t x_bytes, int64_t y_bytes,
                                           int64_t max_tokens) {
  std::unique_ptr<Tuner> tuner(new Tuner(stream));
  const int64_t scale_bytes = max_tokens * static_cast<int64_t>(sizeof(float));
  const auto make = [&](void*& data, int64_t bytes) {
    const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 16)));
    if (error != cudaSuccess) cudaGetLastError();  // not a fault of the stream
    return error;
  };
  RUDDER_CUDA_TRY(make(tuner->x_, x_bytes), "tune", "");
  RUDDER_CUDA_TRY(make(tuner->y_, y_bytes), "tune", "");
  RUDDER_CUDA_TRY(make(tuner->x_scale_, scale_bytes), "tune", "");
  RUDDER_CUDA_TRY(cudaEventCreate(&tuner->begin_), "tune", "");
  RUDDER_CUDA_TRY(cudaEventCreate(&tuner->end_), "tune", "");
  // Zeros would be multiplied with less power, and so faster.
  FillRandomParams fill;
  fill.to = tuner->x_;
  fill.element = Element::kBf16;
  fill.count = x_bytes / 2;
  RUDDER_CUDA_TRY(launch_fill_random(fill, stream), "tune", "random x");
  fill.to = tuner->x_scale_;
  fill.element = Element::kF32;
  fill.count = max_tokens;
  fill.mean = 0.01f;
  fill.deviation = 0.001f;
  RUDDER_CUDA_TRY(launch_fill_random(fill, stream), "tune", "random scales");
  return tuner;
}

Tuner::~Tuner() {
  cudaStreamSynchronize(stream_);
  for (void* data : {x_, y_, x_scale_}) cudaFree(data);
  for (cudaEvent_t event : {begin_, end_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

ShapeKernels::Args Tuner::args_of(const ShapeKernels& shape_kernels, int64_t tokens,
                                  const ops::LinearWeight& of) const {
  const CudaWeight& weight = cuda_weight(of);
  const bool is_fp8 = weight.weight.dtype == tensor::DType::kF8E4M3;
  return {.x = x_,
          .x_scale = is_fp8 ? static_cast<const float*>(x_scale_) : nullptr,
          .weight = weight.weight.data,
          .w_scale = static_cast<const float*>(weight.scale.data),
          .bias = weight.bias.data,
          .y = y_,
          .tokens = tokens,
          .softcap = 0.0f,
          .reader_scales = shape_kernels.key().out_dtype == tensor::DType::kBF16};
}

Result<void> Tuner::run_once(ShapeKernels& shape_kernels, int64_t bucket,
                             const ops::LinearWeight& weight) {
  RUDDER_TRY_VOID(shape_kernels.run(args_of(shape_kernels, bucket, weight)));
  RUDDER_CUDA_TRY(cudaStreamSynchronize(stream_), "load kernels", "");
  return {};
}

Result<double> Tuner::microseconds(ShapeKernels& shape_kernels, const PolicyEntry& entry,
                                   int64_t tokens, std::span<const ops::LinearWeight> weights,
                                   int repeats) {
  const auto run = [&]() -> Result<bool> {
    const ops::LinearWeight& weight = weights[next_weight_++ % weights.size()];
    return shape_kernels.run(args_of(shape_kernels, tokens, weight), entry);
  };
  RUDDER_TRY_VOID(run());  // loads the kernel
  // As a step runs it, from a graph: there a library's kernel that needs a fill before it costs
  // more than in a stream.
  RUDDER_CUDA_TRY(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "tune", "");
  Result<bool> enqueued = false;
  cudaError_t paused = cudaSuccess;
  for (int i = 0; enqueued && paused == cudaSuccess && i < repeats; ++i) {
    enqueued = run();
    // Other kernels stand between two products. They have to find room beside the first, so one
    // that fills every multiprocessor for the next of its kind gains nothing; and they leave memory
    // idle, which a kernel that fetches weights ahead makes use of.
    paused = launch_pause(kPauseCycles, shape_kernels.fetches_ahead(tokens, entry),
                          shape_kernels.num_sms(), stream_);
  }
  const Result<std::unique_ptr<CudaGraph>> graph = end_capture(stream_);
  RUDDER_TRY_VOID(enqueued);
  RUDDER_CUDA_TRY(paused, "tune", "");
  if (!graph) return tl::unexpected(graph.error());
  RUDDER_CUDA_TRY(cudaGraphLaunch((*graph)->handle(), stream_), "tune", "");
  RUDDER_CUDA_TRY(cudaEventRecord(begin_, stream_), "tune", "");
  RUDDER_CUDA_TRY(cudaGraphLaunch((*graph)->handle(), stream_), "tune", "");
  RUDDER_CUDA_TRY(cudaEventRecord(end_, stream_), "tune", "");
  RUDDER_CUDA_TRY(cudaEventSynchronize(end_), "tune", shape_kernels.key().bias ? "with bias" : "");
  float milliseconds = 0;
  RUDDER_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin_, end_), "tune", "");
  return double{milliseconds} * 1000 / repeats;
}

Result<PolicyEntry> Tuner::fastest(ShapeKernels& shape_kernels, int64_t bucket,
                                   std::span<const ops::LinearWeight> weights) {
  // Large products take long, and their kernels differ less.
  constexpr int64_t kManyTokens = 1024;
  constexpr int64_t kFewTokens = 256;
  const int max_algorithms = bucket >= kManyTokens ? 8 : 16;
  const int repeats = bucket >= kManyTokens ? 2 : 8;
  RUDDER_TRY(const std::vector<PolicyEntry> candidates,
             shape_kernels.candidates(bucket, max_algorithms));
  std::vector<PolicyEntry> measured;
  std::optional<Error> refusal;
  for (const PolicyEntry& candidate : candidates) {
    const Result<double> time = microseconds(shape_kernels, candidate, bucket, weights, repeats);
    if (!time) {
      refusal = time.error();
      RUDDER_CUDA_TRY(cudaStreamSynchronize(stream_), "tune", refusal->message);
      continue;
    }
    measured.push_back(candidate);
    measured.back().microseconds = *time;
  }
  if (measured.empty()) return tl::unexpected(std::move(*refusal));
  std::ranges::sort(measured, {}, &PolicyEntry::microseconds);
  if (bucket < kFewTokens) RUDDER_TRY_VOID(measure_again(shape_kernels, bucket, weights, measured));
  return measured.front();
}

// The first few once more and in turn, the fastest then first: of so short products one measurement
// says which are about as fast, not which is fastest.
Result<void> Tuner::measure_again(ShapeKernels& shape_kernels, int64_t bucket,
                                  std::span<const ops::LinearWeight> weights,
                                  std::vector<PolicyEntry>& measured) {
  constexpr size_t kMost = 4;
  constexpr int kTurns = 3;
  constexpr int kRepeats = 16;
  measured.resize(std::min(measured.size(), kMost));
  for (int turn = 0; turn < kTurns; ++turn) {
    for (PolicyEntry& entry : measured) {
      RUDDER_TRY(const double time, microseconds(shape_kernels, entry, bucket, weights, kRepeats));
      entry.microseconds = turn == 0 ? time : std::min(entry.microseconds, time);
    }
  }
  std::ranges::sort(measured, {}, &PolicyEntry::microseconds);
  return {};
}

// x as e4m3 below 1: what it was filled with holds bytes that are NaN, and one NaN hides a row.
Result<void> Tuner::fill_fp8(int64_t bytes) {
  std::vector<uint8_t> values(static_cast<size_t>(bytes));
  std::minstd_rand random(1);
  for (uint8_t& value : values) value = static_cast<uint8_t>(random() >> 8) & 0xBF;
  RUDDER_CUDA_TRY(
      cudaMemcpyAsync(x_, values.data(), values.size(), cudaMemcpyHostToDevice, stream_),
      "check rows", "");
  RUDDER_CUDA_TRY(cudaStreamSynchronize(stream_), "check rows", "");
  return {};
}

Result<std::vector<char>> Tuner::row_of(ShapeKernels& shape_kernels, const PolicyEntry& entry,
                                        const ops::LinearWeight& weight, int64_t first,
                                        int64_t tokens, int64_t row) {
  const PolicyKey& key = shape_kernels.key();
  const CudaWeight& stored = cuda_weight(weight);
  const int64_t x_offset = first * key.in * static_cast<int64_t>(tensor::dtype_bytes(key.dtype));
  const bool is_fp8 = stored.weight.dtype == tensor::DType::kF8E4M3;
  const float* scales = is_fp8 ? static_cast<const float*>(x_scale_) : nullptr;
  RUDDER_TRY_VOID(shape_kernels.run({.x = static_cast<const char*>(x_) + x_offset,
                                     .x_scale = scales == nullptr ? nullptr : scales + first,
                                     .weight = stored.weight.data,
                                     .w_scale = static_cast<const float*>(stored.scale.data),
                                     .bias = stored.bias.data,
                                     .y = y_,
                                     .tokens = tokens},
                                    entry));
  const auto bytes = static_cast<size_t>(key.out) * tensor::dtype_bytes(key.out_dtype);
  std::vector<char> out(bytes);
  const char* from = static_cast<const char*>(y_) + static_cast<size_t>(row - first) * bytes;
  RUDDER_CUDA_TRY(cudaMemcpyAsync(out.data(), from, bytes, cudaMemcpyDeviceToHost, stream_),
                  "check rows", "");
  RUDDER_CUDA_TRY(cudaStreamSynchronize(stream_), "check rows", "");
  return out;
}

Result<bool> Tuner::rows_are_independent(ShapeKernels& shape_kernels, const PolicyEntry& entry,
                                         int64_t max_tokens, const ops::LinearWeight& weight) {
  if (shape_kernels.key().dtype == tensor::DType::kF8E4M3) {
    RUDDER_TRY_VOID(fill_fp8(max_tokens * shape_kernels.key().in));
  }
  for (const int64_t wanted : {int64_t{0}, int64_t{7}, int64_t{130}, max_tokens / 2, max_tokens}) {
    const int64_t row = std::min(wanted, max_tokens - 1);
    RUDDER_TRY(const std::vector<char> alone, row_of(shape_kernels, entry, weight, row, 1, row));
    for (const int64_t tokens : {2, 9, 17, 33, 70, 129, 300, 1000, 3000}) {
      const int64_t batch = std::min<int64_t>(tokens, max_tokens);
      const int64_t first = std::clamp<int64_t>(row - batch / 3, 0, max_tokens - batch);
      RUDDER_TRY(const std::vector<char> together,
                 row_of(shape_kernels, entry, weight, first, batch, row));
      if (alone != together) return false;
    }
    RUDDER_TRY(const std::vector<char> among_all,
               row_of(shape_kernels, entry, weight, 0, max_tokens, row));
    if (alone != among_all) return false;
  }
  return true;
}

}  // namespace rudder::cuda
