#include <algorithm>

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/streams/stream_numbers.cuh"
#include "rudder/cuda/kernels/streams/streams.h"
#include "rudder/cuda/kernels/taps/capture_point.cuh"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMost = kMostStreams;
constexpr int kMostMapRows = 2 * kMost + kMost * kMost;

struct AnyShared {
  float sums[kMostMapRows];  // dots of a row of the map
  float squares[32];
  float pre[kMost];
  float post[kMost];
  float mix[kMost * kMost];
};

// A row of streams, by a block. Each column is changed by one thread; what threads have summed of
// it is summed before or behind a barrier.
class AnyRow {
 public:
  __device__ AnyRow(const ConnectStreamsParams& p, const TapParams<kStreamPoints>& taps,
                    AnyShared& s)
      : p_(p),
        taps_(taps),
        s_(s),
        token_(blockIdx.x),
        n_(p.streams),
        width_(static_cast<int>(p.width)),
        columns_(p.streams * static_cast<int>(p.width)),
        x_(static_cast<Bf16*>(p.x) + token_ * columns_),
        thread_(static_cast<int>(threadIdx.x)) {}

  __device__ void run() {
    if (p_.delta != nullptr) {
      sum(p_.write.fn, static_cast<int>(rows_of_write()));
      make_write_numbers();
      write();
      __syncthreads();
    }
    if (p_.out == nullptr) return;
    make_pre();
    read();
  }

 private:
  __device__ int rows_of_write() const { return 2 * n_ + (p_.iterations > 0 ? n_ * n_ : 0); }

  // Dots of the row with rows of the map, a warp each, and its squares.
  __device__ void sum(const float* fn, int rows) {
    const int lane = thread_ % 32;
    for (int q = thread_ / 32; q < rows; q += kWarps) {
      const float* const by = fn + int64_t{q} * columns_;
      float dot = 0.0f;
      for (int i = lane; i < columns_; i += 32) dot = fmaf(__bfloat162float(x_[i]), by[i], dot);
      dot = warp_sum(dot);
      if (lane == 0) s_.sums[q] = dot;
    }
    float squares = 0.0f;
    for (int i = thread_; i < columns_; i += kThreads) {
      const float x = __bfloat162float(x_[i]);
      squares = fmaf(x, x, squares);
    }
    inverse_ = stream_inverse(block_sum(squares, s_.squares), columns_, p_.norm_eps);
    __syncthreads();
  }
  __device__ float logit(const StreamMapParams& map, int row, int part) const {
    return fmaf(s_.sums[row] * inverse_, map.scale[part], map.base[row]);
  }

  __device__ void make_write_numbers() {
    if (thread_ < n_) {
      s_.post[thread_] =
          fmaf(p_.magnitude, stream_sigmoid(logit(p_.write, n_ + thread_, 1)), p_.post_eps);
      if (p_.pre != nullptr) {
        s_.pre[thread_] = stream_sigmoid(logit(p_.write, thread_, 0)) + p_.eps;
        p_.pre[token_ * n_ + thread_] = s_.pre[thread_];
      }
    }
    if (thread_ < 32 && p_.iterations > 0) make_mix();
    __syncthreads();
    if (taps_.point[kPostPoint] >= 0) {
      PointTaps<kStreamPoints>{taps_, token_, kPostPoint}.keep(s_.post, n_, thread_, kThreads);
    }
    if (taps_.point[kMixPoint] >= 0) {
      PointTaps<kStreamPoints>{taps_, token_, kMixPoint}.keep(s_.mix, n_ * n_, thread_, kThreads);
    }
  }
  // By a warp; a lane has a line.
  __device__ void make_mix() {
    if (thread_ < n_) {
      float* const c = s_.mix + thread_ * n_;
      float largest = -INFINITY;
      for (int j = 0; j < n_; ++j) {
        c[j] = logit(p_.write, (2 + thread_) * n_ + j, 2);
        largest = fmaxf(largest, c[j]);
      }
      float total = 0.0f;
      for (int j = 0; j < n_; ++j) total += c[j] = expf(c[j] - largest);
      for (int j = 0; j < n_; ++j) c[j] = c[j] / total + p_.eps;
    }
    divide(1, n_);
    for (int again = 1; again < p_.iterations; ++again) {
      divide(n_, 1);
      divide(1, n_);
    }
    __syncwarp();
  }
  // Each line of numbers that lie `step` apart by its sum; lines begin `apart` from each other.
  __device__ void divide(int apart, int step) {
    __syncwarp();
    if (thread_ >= n_) return;
    float* const line = s_.mix + thread_ * apart;
    float sum = p_.eps;
    for (int i = 0; i < n_; ++i) sum += line[i * step];
    for (int i = 0; i < n_; ++i) line[i * step] /= sum;
  }

  __device__ void write() {
    const Bf16* const delta = static_cast<const Bf16*>(p_.delta) + token_ * width_;
    for (int k = thread_; k < width_; k += kThreads) {
      float before[kMost];
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        before[i] = i < n_ ? __bfloat162float(x_[i * width_ + k]) : 0.0f;
      }
      const float branch = __bfloat162float(delta[k]);
      for (int j = 0; j < n_; ++j) {
        float sum = s_.post[j] * branch;
        if (p_.iterations > 0) {
#pragma unroll
          for (int i = 0; i < kMost; ++i) {
            if (i < n_) sum = fmaf(s_.mix[i * n_ + j], before[i], sum);
          }
        } else {
          sum += __bfloat162float(x_[j * width_ + k]);
        }
        x_[j * width_ + k] = __float2bfloat16(sum);
      }
    }
  }

  __device__ void make_pre() {
    const bool makes = p_.read.fn != nullptr && p_.pre == nullptr;
    if (makes) sum(p_.read.fn, n_);
    if (thread_ < n_) {
      if (makes) {
        s_.pre[thread_] = stream_sigmoid(logit(p_.read, thread_, 0)) + p_.eps;
      } else if (p_.pre == nullptr) {
        s_.pre[thread_] = 1.0f / static_cast<float>(n_);
      } else if (p_.delta == nullptr) {
        s_.pre[thread_] = p_.pre[(p_.pre_is_one ? 0 : token_ * n_) + thread_];
      }
    }
    __syncthreads();
  }
  __device__ void read() const {
    Bf16* const out = static_cast<Bf16*>(p_.out) + token_ * width_;
    for (int k = thread_; k < width_; k += kThreads) {
      float sum = 0.0f;
      for (int i = 0; i < n_; ++i) {
        sum = fmaf(s_.pre[i], __bfloat162float(x_[i * width_ + k]), sum);
      }
      out[k] = __float2bfloat16(sum);
    }
  }

  const ConnectStreamsParams& p_;
  const TapParams<kStreamPoints>& taps_;
  AnyShared& s_;
  const int64_t token_;
  const int n_;
  const int width_;
  const int columns_;
  Bf16* const x_;
  const int thread_;
  float inverse_ = 1.0f;
};

__global__ void __launch_bounds__(kThreads)
    connect_any_kernel(const __grid_constant__ ConnectStreamsParams p,
                       const __grid_constant__ TapParams<kStreamPoints> taps) {
  __shared__ AnyShared shared;
  dependency_wait();
  dependency_trigger();
  AnyRow(p, taps, shared).run();
}

}  // namespace

cudaError_t launch_connect_any(const ConnectStreamsParams& p, const TapParams<kStreamPoints>& taps,
                               cudaStream_t stream) {
  return launch_pdl(connect_any_kernel, dim3(static_cast<unsigned>(p.rows)), dim3(kThreads), 0,
                    stream, p, taps);
}

cudaError_t launch_connect_streams(const ConnectStreamsParams& p,
                                   const TapParams<kStreamPoints>& taps, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  if (p.streams < 1 || p.streams > kMostStreams || p.width < 1) return cudaErrorInvalidValue;
  if (p.norm.weight != nullptr && !takes_norm(p)) return cudaErrorInvalidValue;
  return takes_four(p) ? launch_connect_four(p, taps, stream) : launch_connect_any(p, taps, stream);
}

}  // namespace rudder::cuda
