#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/states/state_part.cuh"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 128;  // a channel each
constexpr int kTokens = 16;    // of a block

// A channel's filter over kTokens tokens, of which in[kLength - 1] is the first one's input.
template <int kLength>
class Filter {
 public:
  static constexpr int kPast = kLength - 1;

  __device__ Filter(const ConvolveParams& p, int channel) : p_(p), channel_(channel) {
#pragma unroll
    for (int j = 0; j < kLength; ++j) weight_[j] = p.weight[int64_t{channel} * kLength + j];
    bias_ = p.bias == nullptr ? 0.0f : p.bias[channel];
  }

  __device__ float input(int64_t token) const {
    return __bfloat162float(static_cast<const Bf16*>(p_.x)[token * p_.x_stride + channel_]);
  }
  // Of those of the tokens behind `first` that `is_written` has a bit of.
  __device__ void write(const float (&in)[kPast + kTokens], int64_t first,
                        uint32_t is_written) const {
    Bf16* const out = static_cast<Bf16*>(p_.out) + channel_;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float y = bias_;
#pragma unroll
      for (int j = 0; j < kLength; ++j) y = fmaf(weight_[j], in[t + j], y);
      if (p_.silu) y = __fmul_rn(y, sigmoid(y));
      if ((is_written >> t & 1) != 0) out[(first + t) * p_.channels] = __float2bfloat16(y);
    }
  }

 private:
  const ConvolveParams& p_;
  const int channel_;
  float weight_[kLength];
  float bias_;
};

// A sequence's state, and its first tokens.
template <int kLength>
__device__ void run_first(const ConvolveParams& p, const Filter<kLength>& filter, int seq,
                          int channel) {
  constexpr int kPast = kLength - 1;
  const StatePart part = load_part(p.state, seq);
  if (part.count <= 0) return;
  float* const state = part.of_pool == nullptr ? nullptr : part.state() + channel;
  float in[kPast + kTokens];
#pragma unroll
  for (int i = 0; i < kPast; ++i) in[i] = 0.0f;
  if (part.position > 0) {
#pragma unroll
    for (int i = 0; i < kPast; ++i) in[i] = state[int64_t{i} * p.channels];
  }
  for (int a = 0; a < part.accepted; ++a) {
#pragma unroll
    for (int i = 0; i + 1 < kPast; ++i) in[i] = in[i + 1];
    if (kPast > 0) in[kPast > 0 ? kPast - 1 : 0] = part.kept[a * p.state.row_stride + channel];
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    in[kPast + t] = t < part.count ? filter.input(int64_t{part.begin} + t) : 0.0f;
  }
  const uint32_t all = (1u << kTokens) - 1;
  filter.write(in, part.begin, part.count >= kTokens ? all : (1u << part.count) - 1);
  if (state == nullptr) return;
  const int moved = part.has_drafts ? 0 : part.count;
#pragma unroll
  for (int i = 0; i < kPast; ++i) {
    float input = 0.0f;  // the one `moved` behind input i
    if (i + moved >= kPast + kTokens) {
      input = filter.input(int64_t{part.begin} + i + moved - kPast);
    } else {
#pragma unroll
      for (int j = 0; j < kPast + kTokens; ++j) {
        if (j == i + moved) input = in[j];
      }
    }
    state[int64_t{i} * p.channels] = input;
  }
  if (channel == 0) note_if_alone(p.state, part);
}

// Those of kTokens tokens of the step that are not among a sequence's first.
template <int kLength>
__device__ void run_others(const ConvolveParams& p, const Filter<kLength>& filter, int block) {
  constexpr int kPast = kLength - 1;
  const int first = block * kTokens;
  const int end = min(first + kTokens, p.state.q_begin[p.state.seqs]);
  int seq = 0;  // the last one that begins at `first` or in front of it
  for (int above = p.state.seqs; above - seq > 1;) {
    const int middle = (seq + above) / 2;
    if (p.state.q_begin[middle] <= first) {
      seq = middle;
    } else {
      above = middle;
    }
  }
  uint32_t is_written = 0;
  for (int t = first; t < end; ++t) {
    while (seq + 1 < p.state.seqs && p.state.q_begin[seq + 1] <= t) ++seq;
    if (t - p.state.q_begin[seq] >= kTokens) is_written |= 1u << (t - first);
  }
  if (is_written == 0) return;
  float in[kPast + kTokens];
#pragma unroll
  for (int i = 0; i < kPast + kTokens; ++i) {
    const int t = first - kPast + i;
    in[i] = t >= 0 && t < end ? filter.input(t) : 0.0f;
  }
  filter.write(in, first, is_written);
}

template <int kLength>
__global__ void __launch_bounds__(kThreads) convolve_kernel(const ConvolveParams p) {
  const int channel = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (channel >= p.channels) return;
  const Filter<kLength> filter(p, channel);
  dependency_wait();
  dependency_trigger();
  const auto block = static_cast<int>(blockIdx.y);
  if (block < p.state.seqs) {
    run_first<kLength>(p, filter, block, channel);
  } else {
    run_others<kLength>(p, filter, block - p.state.seqs);
  }
}

template <int kLength>
cudaError_t launch_length(const ConvolveParams& p, cudaStream_t stream) {
  const int32_t others = p.state.tokens > kTokens ? (p.state.tokens + kTokens - 1) / kTokens : 0;
  const dim3 grid(static_cast<unsigned>((p.channels + kThreads - 1) / kThreads),
                  static_cast<unsigned>(p.state.seqs + others));
  return launch_pdl(convolve_kernel<kLength>, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace

cudaError_t launch_convolve(const ConvolveParams& p, cudaStream_t stream) {
  if (p.state.seqs == 0 || p.state.tokens == 0 || p.channels == 0) return cudaSuccess;
  switch (p.length) {
    case 1:
      return launch_length<1>(p, stream);
    case 2:
      return launch_length<2>(p, stream);
    case 3:
      return launch_length<3>(p, stream);
    case 4:
      return launch_length<4>(p, stream);
    case 5:
      return launch_length<5>(p, stream);
    case 6:
      return launch_length<6>(p, stream);
    case 7:
      return launch_length<7>(p, stream);
    case kMostFilter:
      return launch_length<kMostFilter>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace rudder::cuda
