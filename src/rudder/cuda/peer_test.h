// Shared by the tests of kernels that exchange between GPUs: ranks, each with a thread, a stream
// and memory of its own, and groups of GPUs. A group of more GPUs than there are is skipped by
// name. Tests only.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rudder/cuda/cuda_ops.h"
#include "rudder/cuda/device_info.h"
#include "rudder/cuda/peer_comm.h"

namespace rudder::cuda {

using Comms = std::vector<std::shared_ptr<PeerComm>>;
using Bits = std::vector<uint16_t>;

inline void succeed(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

inline int32_t num_devices() {
  // Ranks that share a GPU wait for each other, so each needs a queue of its own.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  load_kernels_early();
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// One rank's stream and memory; its thread makes it.
class PeerRank {
 public:
  PeerRank(PeerComm& of, std::barrier<>& barrier) : comm(of), barrier_(barrier) {
    use_device(comm.device());
    succeed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  ~PeerRank() {
    cudaStreamSynchronize(stream);
    for (void* one : memory_) cudaFree(one);
    cudaStreamDestroy(stream);
  }
  PeerRank(const PeerRank&) = delete;
  PeerRank& operator=(const PeerRank&) = delete;

  template <typename T>
  T* to_device(const std::vector<T>& values) {
    T* const to = room<T>(values.size());
    succeed(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                            stream));
    succeed(cudaStreamSynchronize(stream));
    return to;
  }
  template <typename T>
  T* room(size_t count) {
    succeed(cudaMalloc(&memory_.emplace_back(), count * sizeof(T) + 1));
    return static_cast<T*>(memory_.back());
  }
  template <typename T>
  std::vector<T> to_host(const T* from, size_t count) {
    // A copy that waits for kernels keeps other ranks of the GPU from launching theirs.
    succeed(cudaStreamSynchronize(stream));
    std::vector<T> out(count);
    succeed(cudaMemcpyAsync(out.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
    succeed(cudaStreamSynchronize(stream));
    return out;
  }
  // Nothing is allocated behind it: that may wait for kernels, which wait for other ranks.
  void all_have_allocated() { barrier_.arrive_and_wait(); }
  int index() const { return comm.rank().index; }
  int count() const { return comm.rank().count; }

  PeerComm& comm;
  cudaStream_t stream = nullptr;

 private:
  std::barrier<>& barrier_;
  std::vector<void*> memory_;
};

inline void run_ranks(const Comms& comms, const std::function<void(PeerRank&)>& body) {
  std::barrier<> barrier(std::ssize(comms));
  std::vector<std::thread> threads;
  for (const auto& comm : comms) {
    threads.emplace_back([&body, &comm, &barrier] {
      try {
        PeerRank rank(*comm, barrier);
        comm->open();
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
      barrier.arrive_and_drop();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class PeerTest : public ::testing::TestWithParam<std::vector<int32_t>> {
 protected:
  void SetUp() override {
    const int32_t wanted = *std::ranges::max_element(GetParam()) + 1;
    if (num_devices() < wanted) {
      GTEST_SKIP() << "needs " << wanted << " GPUs, " << num_devices() << " visible";
    }
  }
  static Comms group(int32_t patience_ms = 5000) {
    Result<Comms> made = PeerComm::make_group(GetParam(), patience_ms, PeerComm::Gpus::kShared);
    if (!made) throw std::runtime_error(made.error().to_string());
    return std::move(*made);
  }
};

inline std::string gpus_of(const ::testing::TestParamInfo<std::vector<int32_t>>& test) {
  return fmt::format("On_{}", fmt::join(test.param, "_"));
}
// A GPU a rank, and more ranks than GPUs.
using Gpus = std::vector<int32_t>;
inline const std::vector<Gpus> kGroupsOfTwoAndFour = {
    {0, 1}, {0, 1, 2, 3}, {0, 0}, {0, 0, 0, 0}, {0, 1, 0, 1}};
inline const std::vector<Gpus> kGroupsOfEight = {{0, 1, 2, 3, 4, 5, 6, 7},
                                                 {0, 0, 0, 0, 0, 0, 0, 0},
                                                 {0, 1, 0, 1, 0, 1, 0, 1},
                                                 {0, 1, 2, 3, 0, 1, 2, 3}};

}  // namespace rudder::cuda
