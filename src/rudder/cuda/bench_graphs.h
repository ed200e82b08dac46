// What the programs that time kernels share: device memory, and captured graphs that are timed.
// Each ends at the first error of the device.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

namespace rudder::cuda {

// Of products, between which small kernels leave memory idle (kernels/measure/pause.h).
inline constexpr int32_t kMultiprocessors = 132;
inline constexpr int64_t kIdleCycles = 7000;

inline constexpr int64_t kFlushBytes = int64_t{256} << 20;
inline constexpr double kReadBytesPerSecond = 3.11e12;  // one H100, as read_memory measures it

inline void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count, int byte = 0) : count_(count) {
    must(cudaMalloc(&data_, bytes()), "malloc");
    must(cudaMemset(data_, byte, bytes()), "memset");
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(static_cast<int64_t>(values.size())) {
    must(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "copy");
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  size_t bytes() const { return static_cast<size_t>(count_) * sizeof(T); }

 private:
  const int64_t count_;
  void* data_ = nullptr;
};

class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& enqueue_calls) {
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    enqueue_calls();
    cudaGraph_t graph = nullptr;
    must(cudaStreamEndCapture(stream, &graph), "end of capture");
    must(cudaGraphInstantiate(&handle_, graph, 0), "graph");
    cudaGraphDestroy(graph);
  }
  ~Graph() { cudaGraphExecDestroy(handle_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream) const { must(cudaGraphLaunch(handle_, stream), "replay"); }

 private:
  cudaGraphExec_t handle_ = nullptr;
};

// Microseconds that each of the graphs takes, the median of the rounds, in which they take turns.
// The L2 cache holds `flush` alone when one begins.
inline std::vector<double> time_graphs(const std::vector<std::unique_ptr<Graph>>& graphs,
                                       int rounds, const Buffer<uint8_t>& flush,
                                       cudaStream_t stream) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  must(cudaEventCreate(&begin), "event");
  must(cudaEventCreate(&end), "event");
  std::vector<std::vector<double>> times(graphs.size());
  for (int round = -2; round < rounds; ++round) {
    for (size_t i = 0; i < graphs.size(); ++i) {
      must(cudaMemsetAsync(flush.data(), round & 0xff, flush.bytes(), stream), "flush");
      must(cudaEventRecord(begin, stream), "record");
      graphs[i]->launch(stream);
      must(cudaEventRecord(end, stream), "record");
      must(cudaEventSynchronize(end), "wait");
      float ms = 0;
      must(cudaEventElapsedTime(&ms, begin, end), "time");
      if (round >= 0) times[i].push_back(1e3 * static_cast<double>(ms));
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::vector<double> medians;
  for (std::vector<double>& of_mode : times) {
    std::ranges::nth_element(of_mode, of_mode.begin() + of_mode.size() / 2);
    medians.push_back(of_mode[of_mode.size() / 2]);
  }
  return medians;
}

}  // namespace rudder::cuda
