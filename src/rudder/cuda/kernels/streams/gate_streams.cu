#include <algorithm>

#include "rudder/cuda/kernels/device_barrier.cuh"
#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/streams/stream_numbers.cuh"
#include "rudder/cuda/kernels/streams/streams.h"
#include "rudder/cuda/kernels/taps/capture_point.cuh"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kCluster = 8;

struct GateShared {
  float scratch[32];
  float inverse[kMostStreams];  // of each stream's root mean square
  float post[kMostStreams];
};

// A row of streams, by a cluster. All blocks read all of it and make the write's numbers; each
// writes, and reads for the branch, a slice of every stream's columns, and has a share of `low`.
class GatedRow {
 public:
  __device__ GatedRow(const GateStreamsParams& p, const TapParams<1>& taps, GateShared& s,
                      float* low)
      : p_(p),
        taps_(taps),
        s_(s),
        low_(low),
        token_(blockIdx.x / kCluster),
        rank_(static_cast<int>(cluster_rank())),
        n_(p.streams),
        width_(static_cast<int>(p.width)),
        x_(static_cast<Bf16*>(p.x) + token_ * p.streams * p.width),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        lane_(thread_ % 32) {
    const int slice = (width_ + kCluster - 1) / kCluster;
    begin_ = min(width_, rank_ * slice);
    end_ = min(width_, begin_ + slice);
  }

  __device__ void run() {
    if (p_.delta != nullptr) {
      measure(p_.write);
      make_post();
      cluster_barrier();  // all have read the row
      write();
      cluster_barrier();  // all of it is written
    }
    if (p_.out == nullptr) return;
    measure(p_.read);
    make_low();
    cluster_barrier();
    read();
  }

 private:
  __device__ void measure(const StreamGateParams& gate) {
    for (int i = 0; i < n_; ++i) {
      float squares = 0.0f;
      for (int k = thread_; k < width_; k += kThreads) {
        const float x = __bfloat162float(x_[i * width_ + k]);
        squares = fmaf(x, x, squares);
      }
      squares = block_sum(squares, s_.scratch);
      if (thread_ == 0) s_.inverse[i] = stream_inverse(squares, width_, gate.eps);
      __syncthreads();
    }
  }
  __device__ float normed(const StreamGateParams& gate, int stream, int k) const {
    const int at = stream * width_ + k;
    return __bfloat162float(x_[at]) * s_.inverse[stream] * gate.norm[at];
  }
  // A row of a product with all normed streams, by a warp.
  __device__ float dot(const StreamGateParams& gate, const float* by) const {
    float sum = 0.0f;
    for (int i = 0; i < n_; ++i) {
      for (int k = lane_; k < width_; k += 32) {
        sum = fmaf(by[i * width_ + k], normed(gate, i, k), sum);
      }
    }
    return warp_sum(sum);
  }

  __device__ void make_post() {
    const float share = 1.0f / static_cast<float>(n_);
    for (int j = warp_; j < n_; j += kWarps) {
      const float sum = dot(p_.write, p_.write.inject + int64_t{j} * n_ * width_);
      if (lane_ == 0) s_.post[j] = 2.0f * stream_sigmoid(sum * share);
    }
    __syncthreads();
    if (rank_ == 0 && taps_.point[0] >= 0) {
      PointTaps<1>{taps_, token_, 0}.keep(s_.post, n_, thread_, kThreads);
    }
  }
  __device__ void write() const {
    const Bf16* const delta = static_cast<const Bf16*>(p_.delta) + token_ * width_;
    for (int k = begin_ + thread_; k < end_; k += kThreads) {
      const float branch = __bfloat162float(delta[k]);
      for (int j = 0; j < n_; ++j) {
        Bf16& x = x_[j * width_ + k];
        x = __float2bfloat16(fmaf(s_.post[j], branch, __bfloat162float(x)));
      }
    }
  }

  // To every block.
  __device__ void make_low() const {
    const float share = 1.0f / static_cast<float>(n_);
    for (int r = rank_ * kWarps + warp_; r < p_.rank; r += kCluster * kWarps) {
      const float sum = dot(p_.read, p_.read.down + int64_t{r} * n_ * width_) * share;
      if (lane_ >= kCluster) continue;
      const uint32_t to = shared_of_rank(shared_address(low_ + r), static_cast<uint32_t>(lane_));
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(sum * stream_sigmoid(sum))
                   : "memory");
    }
  }
  __device__ void read() const {
    Bf16* const out = static_cast<Bf16*>(p_.out) + token_ * width_;
    for (int k = begin_ + warp_; k < end_; k += kWarps) {
      float sum = 0.0f;
      for (int i = 0; i < n_; ++i) {
        const float* const up = p_.read.up + (int64_t{i} * width_ + k) * p_.rank;
        float open = 0.0f;
        for (int r = lane_; r < p_.rank; r += 32) open = fmaf(up[r], low_[r], open);
        sum = fmaf(stream_sigmoid(warp_sum(open)), normed(p_.read, i, k), sum);
      }
      if (lane_ == 0) out[k] = __float2bfloat16(sum / static_cast<float>(n_));
    }
  }

  const GateStreamsParams& p_;
  const TapParams<1>& taps_;
  GateShared& s_;
  float* const low_;  // [rank]
  const int64_t token_;
  const int rank_;  // in the cluster
  const int n_;
  const int width_;
  Bf16* const x_;
  const int thread_;
  const int warp_;
  const int lane_;
  int begin_;
  int end_;
};

__global__ void __launch_bounds__(kThreads)
    gate_streams_kernel(const __grid_constant__ GateStreamsParams p,
                        const __grid_constant__ TapParams<1> taps) {
  extern __shared__ float low[];
  __shared__ GateShared shared;
  dependency_wait();
  dependency_trigger();
  cluster_barrier();  // all blocks have begun, before one writes to another
  GatedRow(p, taps, shared, low).run();
}

}  // namespace

cudaError_t launch_gate_streams(const GateStreamsParams& p, const TapParams<1>& taps,
                                cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  if (p.streams < 1 || p.streams > kMostStreams || p.rank < 0 || p.rank > kMostGateRank) {
    return cudaErrorInvalidValue;
  }
  return launch_pdl_cluster(gate_streams_kernel, dim3(static_cast<unsigned>(p.rows * kCluster)),
                            dim3(kThreads), static_cast<size_t>(p.rank) * sizeof(float), kCluster,
                            stream, p, taps);
}

}  // namespace rudder::cuda
