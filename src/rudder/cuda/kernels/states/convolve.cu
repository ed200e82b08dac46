#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/states/state_part.cuh"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 128;  // one channel each, or two
// Tokens of a block, where sequences have many and where they have few: what is kept of fewer lets
// more blocks wait for their states at once.
constexpr int kManyTokens = 16;
constexpr int kFewTokens = 4;

// Of neighbouring channels, so many as a thread has.
template <int kWide>
struct Numbers {
  float of[kWide];
};
template <int kWide>
__device__ Numbers<kWide> load_floats_of(const float* from) {
  Numbers<kWide> x;
  if constexpr (kWide == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    x.of[0] = two.x;
    x.of[1] = two.y;
  } else {
    x.of[0] = *from;
  }
  return x;
}

// The filters of a thread's channels over kTokens tokens, of which in[kLength - 1] is the first
// one's input.
template <int kLength, int kWide, int kTokens>
class Filter {
 public:
  static constexpr int kPast = kLength - 1;
  static constexpr uint32_t kAllTokens = (1u << kTokens) - 1;
  using Input = Numbers<kWide>;

  __device__ Filter(const ConvolveParams& p, int channel) : p_(p), channel_(channel) {
    alignas(16) float weights[kWide * kLength];
    const float* const from = p.weight + int64_t{channel} * kLength;
    if constexpr (kWide == 2 && kLength % 2 == 0) {
#pragma unroll
      for (int i = 0; i < kWide * kLength; i += 4) {
        *reinterpret_cast<float4*>(weights + i) = *reinterpret_cast<const float4*>(from + i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWide * kLength; ++i) weights[i] = from[i];
    }
#pragma unroll
    for (int c = 0; c < kWide; ++c) {
#pragma unroll
      for (int j = 0; j < kLength; ++j) weight_[j].of[c] = weights[c * kLength + j];
      bias_.of[c] = p.bias == nullptr ? 0.0f : p.bias[channel + c];
    }
  }

  __device__ Input input(int64_t token) const {
    const Bf16* const from = static_cast<const Bf16*>(p_.x) + token * p_.x_stride + channel_;
    Input x;
    if constexpr (kWide == 2) {
      const float2 two = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
      x.of[0] = two.x;
      x.of[1] = two.y;
    } else {
      x.of[0] = __bfloat162float(*from);
    }
    return x;
  }
  // Of those of the tokens behind `first` that `is_written` has a bit of.
  __device__ void write(const Input (&in)[kPast + kTokens], int64_t first,
                        uint32_t is_written) const {
    if (is_written == kAllTokens) {  // side by side
#pragma unroll
      for (int t = 0; t < kTokens; ++t) write_one(in, t, first + t);
    } else {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if ((is_written >> t & 1) != 0) write_one(in, t, first + t);
      }
    }
  }

 private:
  __device__ void write_one(const Input (&in)[kPast + kTokens], int t, int64_t token) const {
    Input y = bias_;
#pragma unroll
    for (int c = 0; c < kWide; ++c) {
#pragma unroll
      for (int j = 0; j < kLength; ++j) {
        y.of[c] = fmaf(weight_[j].of[c], in[t + j].of[c], y.of[c]);
      }
      if (p_.silu) y.of[c] = __fmul_rn(y.of[c], sigmoid(y.of[c]));
    }
    Bf16* const to = static_cast<Bf16*>(p_.out) + token * p_.channels + channel_;
    if constexpr (kWide == 2) {
      *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(y.of[0], y.of[1]);
    } else {
      *to = __float2bfloat16(y.of[0]);
    }
  }

  const ConvolveParams& p_;
  const int channel_;
  Input weight_[kLength];
  Input bias_;
};

// A sequence's state, and its first tokens.
template <int kLength, int kWide, int kTokens>
__device__ void run_first(const ConvolveParams& p, const Filter<kLength, kWide, kTokens>& filter,
                          int seq, int channel) {
  constexpr int kPast = kLength - 1;
  const StatePart part = load_part(p.state, seq);
  if (part.count <= 0) return;
  float* const state = part.of_pool == nullptr ? nullptr : part.state() + channel;
  Numbers<kWide> in[kPast + kTokens] = {};
  if (part.position > 0) {
#pragma unroll
    for (int i = 0; i < kPast; ++i) in[i] = load_floats_of<kWide>(state + int64_t{i} * p.channels);
  }
  for (int a = 0; a < part.accepted; ++a) {
#pragma unroll
    for (int i = 0; i + 1 < kPast; ++i) in[i] = in[i + 1];
    if constexpr (kPast > 0) {
#pragma unroll
      for (int c = 0; c < kWide; ++c) {
        in[kPast - 1].of[c] = part.kept[a * p.state.row_stride + channel + c];
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t < part.count) in[kPast + t] = filter.input(int64_t{part.begin} + t);
  }
  filter.write(in, part.begin, (1u << min(part.count, kTokens)) - 1);
  if (state == nullptr) return;
  const int moved = part.has_drafts ? 0 : part.count;
#pragma unroll
  for (int i = 0; i < kPast; ++i) {
    Numbers<kWide> input = {};  // the one `moved` behind input i
    if (i + moved >= kPast + kTokens) {
      input = filter.input(int64_t{part.begin} + i + moved - kPast);
    } else {
#pragma unroll
      for (int j = 0; j < kPast + kTokens; ++j) {
        if (j == i + moved) input = in[j];
      }
    }
    float* const to = state + int64_t{i} * p.channels;
    if constexpr (kWide == 2) {
      *reinterpret_cast<float2*>(to) = make_float2(input.of[0], input.of[1]);
    } else {
      *to = input.of[0];
    }
  }
  if (channel == 0) note_if_alone(p.state, part);
}

// Those of kTokens tokens of the step that are not among a sequence's first.
template <int kLength, int kWide, int kTokens>
__device__ void run_others(const ConvolveParams& p, const Filter<kLength, kWide, kTokens>& filter,
                           int block) {
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
  Numbers<kWide> in[kPast + kTokens] = {};
#pragma unroll
  for (int i = 0; i < kPast + kTokens; ++i) {
    const int t = first - kPast + i;
    if (t >= 0 && t < end) in[i] = filter.input(t);
  }
  filter.write(in, first, is_written);
}

template <int kLength, int kWide, int kTokens>
__global__ void __launch_bounds__(kThreads) convolve_kernel(const ConvolveParams p) {
  const int channel =
      kWide * (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x));
  if (channel >= p.channels) return;
  const Filter<kLength, kWide, kTokens> filter(p, channel);
  dependency_wait();
  dependency_trigger();
  const auto block = static_cast<int>(blockIdx.y);
  if (block < p.state.seqs) {
    run_first(p, filter, block, channel);
  } else {
    run_others(p, filter, block - p.state.seqs);
  }
}

template <int kLength, int kWide, int kTokens>
cudaError_t launch_tokens(const ConvolveParams& p, cudaStream_t stream) {
  const int32_t others = p.state.tokens > kTokens ? (p.state.tokens + kTokens - 1) / kTokens : 0;
  constexpr int32_t kChannels = kThreads * kWide;
  const dim3 grid(static_cast<unsigned>((p.channels + kChannels - 1) / kChannels),
                  static_cast<unsigned>(p.state.seqs + others));
  return launch_pdl(convolve_kernel<kLength, kWide, kTokens>, grid, dim3(kThreads), 0, stream, p);
}

template <int kLength, int kWide>
cudaError_t launch_wide(const ConvolveParams& p, cudaStream_t stream) {
  return p.state.tokens <= 2 * p.state.seqs ? launch_tokens<kLength, kWide, kFewTokens>(p, stream)
                                            : launch_tokens<kLength, kWide, kManyTokens>(p, stream);
}

template <int kLength>
cudaError_t launch_length(const ConvolveParams& p, cudaStream_t stream) {
  const bool is_even = p.channels % 2 == 0 && p.x_stride % 2 == 0 && p.state.pool_stride % 8 == 0 &&
                       is_aligned(p.state.pool, 8) && is_aligned(p.x, 4) && is_aligned(p.out, 4) &&
                       is_aligned(p.weight);
  return is_even ? launch_wide<kLength, 2>(p, stream) : launch_wide<kLength, 1>(p, stream);
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
