// Times the sums of ranks (kernels/peers/peer.h) on several GPUs, and beside them those of NCCL
// where its library is found: a captured graph of kSumCalls sums on each rank, by events of rank 0;
// the median of all rounds. Likewise sums with the residual norm behind them, as two kernels and as
// one (kernels/peers/peer_residual.h) that divides rows among so many blocks. Then what a stage
// hands to the next (peer_message.h): kHops messages to and fro between the first two GPUs, each a
// copy into the message, its post, and a copy out of it. peer_bench [ranks [rounds [sums |
// residuals | messages]]]: all of it, or a part.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "rudder/cuda/device_info.h"
#include "rudder/cuda/kernels/peers/peer_residual.h"
#include "rudder/cuda/nccl_sums.h"
#include "rudder/cuda/peer_comm.h"
#include "rudder/cuda/peer_message.h"

namespace rudder::cuda {
namespace {

constexpr int kSumCalls = 50;
constexpr int kHops = 100;  // all of them fit in the queue of a stream
constexpr int64_t kCols = 8192;

struct SumMode {
  const char* name;
  bool is_two_shot;
  int32_t max_blocks;
};
constexpr SumMode kSumModes[] = {{"one-shot, 32 blocks", false, 32},
                                 {"one-shot, 64 blocks", false, 64},
                                 {"one-shot, 128 blocks", false, 128},
                                 {"two-shot, 64 blocks", true, 64},
                                 {"two-shot, 128 blocks", true, 128}};

void expect(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Enqueues one sum of a rank, in place at `data`.
using EnqueueSum = std::function<void(void* data, cudaStream_t stream)>;

EnqueueSum sum_of_peers(PeerComm& comm, const SumMode& mode, int64_t bytes) {
  PeerSumParams params;
  params.links = comm.links(true);
  params.rows = bytes / 2 / kCols;
  params.cols = kCols;
  params.is_two_shot = mode.is_two_shot;
  params.max_blocks = mode.max_blocks;
  return [params](void* data, cudaStream_t stream) mutable {
    params.y = data;
    expect(launch_peer_sum(params, stream), "sum");
  };
}

// Rows with the residual norm behind the sum, into fp8.
struct ResidualMode {
  const char* name;
  bool is_one_kernel;
  PeerWay way;
  int32_t row_blocks;  // 0: as many as there are for the rows
};
constexpr ResidualMode kResidualModes[] = {{"two kernels, one-shot", false, PeerWay::kOneShot, 0},
                                           {"two kernels, two-shot", false, PeerWay::kTwoShot, 0},
                                           {"one-shot", true, PeerWay::kOneShot, 0},
                                           {"one-shot, 1 block", true, PeerWay::kOneShot, 1},
                                           {"one-shot, 2 blocks", true, PeerWay::kOneShot, 2},
                                           {"one-shot, 4 blocks", true, PeerWay::kOneShot, 4},
                                           {"two-shot", true, PeerWay::kTwoShot, 0},
                                           {"two-shot, 1 block", true, PeerWay::kTwoShot, 1},
                                           {"two-shot, 2 blocks", true, PeerWay::kTwoShot, 2},
                                           {"two-shot, 4 blocks", true, PeerWay::kTwoShot, 4}};

// What a call works on, one behind the other: the branch, the residual and what comes out of
// `rows`, then scales and weights.
int64_t residual_bytes(int64_t rows, int64_t cols) {
  return rows * cols * 5 + rows * 8 + cols * 8;
}

EnqueueSum residual_of_peers(PeerComm& comm, const ResidualMode& mode, int64_t rows, int64_t cols) {
  PeerResidualParams params;
  params.links = comm.links(true);
  params.way = mode.way;
  params.row_blocks = mode.row_blocks;
  params.norm.rows = rows;
  params.norm.hidden = cols;
  return [params, mode](void* data, cudaStream_t stream) mutable {
    ResidualNormParams& norm = params.norm;
    char* next = static_cast<char*>(data);
    const auto take = [&](int64_t bytes) { return std::exchange(next, next + bytes); };
    norm.norm = reinterpret_cast<float*>(take(norm.hidden * 4));
    params.scales.column = reinterpret_cast<float*>(take(norm.hidden * 4));
    void* const branch = take(norm.rows * norm.hidden * 2);
    norm.delta = branch;
    norm.x = take(norm.rows * norm.hidden * 2);
    norm.out = take(norm.rows * norm.hidden);
    norm.out_scale = reinterpret_cast<float*>(take(norm.rows * 4));
    params.scales.row = reinterpret_cast<float*>(take(norm.rows * 4));
    if (mode.is_one_kernel) {
      return expect(launch_peer_residual_norm(params, stream), "sum and norm");
    }
    PeerSumParams sum;
    sum.links = params.links;
    sum.y = branch;
    sum.scales = params.scales;
    sum.rows = norm.rows;
    sum.cols = norm.hidden;
    sum.is_two_shot = mode.way == PeerWay::kTwoShot;
    expect(launch_peer_sum(sum, stream), "sum");
    expect(launch_residual_norm(norm, stream), "norm");
  };
}

EnqueueSum sum_of_nccl(NcclSums& nccl, int32_t rank, int64_t bytes) {
  return [&nccl, rank, bytes](void* data, cudaStream_t stream) {
    const Result<void> enqueued = nccl.sum(rank, data, bytes / 2, stream);
    if (enqueued) return;
    std::fprintf(stderr, "%s\n", enqueued.error().to_string().c_str());
    std::exit(1);
  };
}

// Microseconds a call, one rank's.
double time_sums(int32_t device, const EnqueueSum& enqueue, int64_t bytes, int rounds,
                 std::barrier<>& barrier) {
  use_device(device);
  cudaStream_t stream = nullptr;
  expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  expect(cudaEventCreate(&begin), "event");
  expect(cudaEventCreate(&end), "event");
  void* data = nullptr;
  expect(cudaMalloc(&data, static_cast<size_t>(bytes)), "malloc");
  expect(cudaMemset(data, 0x11, static_cast<size_t>(bytes)), "memset");
  enqueue(data, stream);  // a library may allocate the first time, which a capture forbids
  expect(cudaStreamSynchronize(stream), "sync");
  barrier.arrive_and_wait();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < kSumCalls; ++i) enqueue(data, stream);
  expect(cudaStreamEndCapture(stream, &graph), "capture");
  expect(cudaGraphInstantiate(&exec, graph, 0), "graph");
  expect(cudaDeviceSynchronize(), "sync");
  std::vector<double> times;
  for (int round = -2; round < rounds; ++round) {
    barrier.arrive_and_wait();
    expect(cudaGraphLaunch(exec, stream), "launch");  // behind it all ranks are there
    expect(cudaEventRecord(begin, stream), "record");
    expect(cudaGraphLaunch(exec, stream), "launch");
    expect(cudaEventRecord(end, stream), "record");
    expect(cudaEventSynchronize(end), "wait");
    float ms = 0;
    expect(cudaEventElapsedTime(&ms, begin, end), "time");
    if (round >= 0) times.push_back(1e3 * static_cast<double>(ms) / kSumCalls);
  }
  barrier.arrive_and_wait();
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaFree(data);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  std::ranges::nth_element(times, times.begin() + times.size() / 2);
  return times[times.size() / 2];
}

// One end: a GPU with a stream, what it sends and receives, and its message to the other.
struct End {
  cudaStream_t stream = nullptr;
  void* data = nullptr;
  std::unique_ptr<PeerMessage> message;
};

void hop(End& from, End& to, size_t bytes) {
  const auto copy = [&](void* out, const void* in, cudaStream_t stream) {
    expect(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDefault, stream), "copy");
  };
  use_device(from.message->device());
  copy(from.message->memory().data, from.data, from.stream);
  expect(from.message->post(from.stream), "post");
  use_device(to.message->device());
  expect(from.message->await(to.stream), "await");
  copy(to.data, from.message->memory().data, to.stream);
}

// Microseconds a hop. All hops are enqueued before the first runs.
double time_hops(std::array<End, 2>& ends, size_t bytes) {
  std::atomic<bool> enqueued = false;
  const auto wait = [](void* flag) {
    while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
  };
  use_device(0);
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  expect(cudaEventCreate(&begin), "event");
  expect(cudaEventCreate(&end), "event");
  expect(cudaLaunchHostFunc(ends[0].stream, wait, &enqueued), "wait");
  expect(cudaEventRecord(begin, ends[0].stream), "record");
  for (int i = 0; i < kHops; ++i) {
    hop(ends[static_cast<size_t>(i % 2)], ends[static_cast<size_t>(1 - i % 2)], bytes);
  }
  use_device(0);
  expect(cudaEventRecord(end, ends[0].stream), "record");
  enqueued = true;
  expect(cudaEventSynchronize(end), "wait");
  float ms = 0;
  expect(cudaEventElapsedTime(&ms, begin, end), "time");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return 1e3 * static_cast<double>(ms) / kHops;
}

void bench_handover(int rounds) {
  constexpr int64_t kMost = int64_t{32} << 20;
  std::array<End, 2> ends;
  for (int32_t i = 0; i < 2; ++i) {
    End& one = ends[static_cast<size_t>(i)];
    use_device(i);
    expect(cudaStreamCreateWithFlags(&one.stream, cudaStreamNonBlocking), "stream");
    expect(cudaMalloc(&one.data, kMost), "malloc");
    Result<std::unique_ptr<PeerMessage>> message = PeerMessage::make(i, kMost);
    if (!message) {
      std::fprintf(stderr, "%s\n", message.error().to_string().c_str());
      std::exit(1);
    }
    one.message = std::move(*message);
  }
  std::printf("message from stage to stage, us\n%-22s", "");
  const std::vector<int64_t> sizes = {1, 16, 64, 512, 2048, 8192, 32768};
  for (const int64_t kb : sizes) std::printf("%6lld KB", static_cast<long long>(kb));
  std::printf("\n%-22s", "copy, post, copy");
  for (const int64_t kb : sizes) {
    std::vector<double> times;
    for (int round = -2; round < rounds; ++round) {
      const double us = time_hops(ends, static_cast<size_t>(kb) << 10);
      if (round >= 0) times.push_back(us);
    }
    std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
    std::printf("%9.2f", times[times.size() / 2]);
  }
  std::printf("\n");
  for (End& one : ends) {
    cudaStreamDestroy(one.stream);
    cudaFree(one.data);
  }
}

// Microseconds a call of rank 0; sum_of(rank) is what a rank enqueues.
double time_ranks(const std::vector<int32_t>& devices,
                  const std::function<EnqueueSum(size_t)>& sum_of, int64_t bytes, int rounds) {
  std::barrier<> barrier(std::ssize(devices));
  std::vector<double> us(devices.size());
  std::vector<std::thread> threads;
  threads.reserve(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    threads.emplace_back(
        [&, i] { us[i] = time_sums(devices[i], sum_of(i), bytes, rounds, barrier); });
  }
  for (std::thread& thread : threads) thread.join();
  return us[0];
}

void bench_residuals(const std::vector<int32_t>& devices,
                     const std::vector<std::shared_ptr<PeerComm>>& comms, int rounds) {
  const std::vector<int64_t> all_rows = {1, 4, 8, 16, 32, 64, 128, 256};
  for (const int64_t cols : {4096, 8192}) {
    std::printf("sum and residual norm of %zu ranks, %lld columns, us a call\n%-22s",
                devices.size(), static_cast<long long>(cols), "");
    for (const int64_t rows : all_rows) std::printf("%4lld rows", static_cast<long long>(rows));
    std::printf("\n");
    for (const ResidualMode& mode : kResidualModes) {
      std::printf("%-22s", mode.name);
      for (const int64_t rows : all_rows) {
        const auto of_rank = [&](size_t i) {
          return residual_of_peers(*comms[i], mode, rows, cols);
        };
        std::printf("%9.2f", time_ranks(devices, of_rank, residual_bytes(rows, cols), rounds));
      }
      std::printf("\n");
    }
  }
}

void bench_sums(const std::vector<int32_t>& devices,
                const std::vector<std::shared_ptr<PeerComm>>& comms, int rounds) {
  std::printf("sum of %zu ranks, us a call\n%-22s", devices.size(), "");
  const std::vector<int64_t> sizes = {16, 64, 256, 512, 1024, 2048, 4096, 8192};
  for (const int64_t kb : sizes) std::printf("%6lld KB", static_cast<long long>(kb));
  std::printf("\n");
  const auto print_row = [&](const std::string& name,
                             const std::function<EnqueueSum(size_t, int64_t)>& sum_of) {
    std::printf("%-22s", name.c_str());
    for (const int64_t kb : sizes) {
      const int64_t bytes = kb << 10;
      const auto of_rank = [&](size_t i) { return sum_of(i, bytes); };
      std::printf("%9.2f", time_ranks(devices, of_rank, bytes, rounds));
    }
    std::printf("\n");
  };
  for (const SumMode& mode : kSumModes) {
    print_row(mode.name,
              [&](size_t i, int64_t bytes) { return sum_of_peers(*comms[i], mode, bytes); });
  }
  const Result<std::unique_ptr<NcclSums>> nccl = NcclSums::make(devices);
  if (nccl) {
    print_row("NCCL " + (*nccl)->version(), [&](size_t i, int64_t bytes) {
      return sum_of_nccl(**nccl, static_cast<int32_t>(i), bytes);
    });
  } else {
    std::printf("%-22s%s\n", "NCCL", nccl.error().to_string().c_str());
  }
}

int bench_peers(int ranks, int rounds, std::string_view part) {
  std::vector<int32_t> devices(static_cast<size_t>(ranks));
  std::iota(devices.begin(), devices.end(), 0);
  const auto comms = PeerComm::make_group(devices);
  if (!comms) {
    std::fprintf(stderr, "%s\n", comms.error().to_string().c_str());
    return 1;
  }
  if (part.empty() || part == "sums") bench_sums(devices, *comms, rounds);
  if (part.empty() || part == "residuals") bench_residuals(devices, *comms, rounds);
  if (part.empty() || part == "messages") bench_handover(rounds);
  const Result<void> status = comms->front()->status();
  if (!status) std::printf("%s\n", status.error().to_string().c_str());
  return status ? 0 : 1;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::bench_peers(argc > 1 ? std::atoi(argv[1]) : 2,
                                   argc > 2 ? std::atoi(argv[2]) : 15, argc > 3 ? argv[3] : "");
}
