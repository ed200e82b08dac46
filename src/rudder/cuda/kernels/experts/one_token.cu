#include "rudder/cuda/kernels/experts/one_token.h"

#include "rudder/cuda/kernels/experts/gate_experts.cuh"
#include "rudder/cuda/kernels/experts/route.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kRows = 16;       // of W, an instruction's
constexpr int kPiece = 64;      // bytes of a row that the four lanes of a group bring at a time
constexpr int kOpenWarps = 4;   // which share the inputs of a block's rows
constexpr int kCloseWarps = 8;  // which share the experts
                                // pieces that a lane asks for before it multiplies

__device__ __forceinline__ uint4 load_weight(const char* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// c[16 rows x 8 columns] += the four bytes a lane has of rows g and g + 8, g = lane / 4, times
// those of column g. Which inputs an instruction adds is free as long as both sides agree.
template <bool kFp8>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t low0, uint32_t high0, uint32_t low1,
                                    uint32_t high1, uint32_t x0, uint32_t x1) {
  if constexpr (kFp8) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(low0), "r"(high0), "r"(low1), "r"(high1), "r"(x0), "r"(x1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(low0), "r"(high0), "r"(low1), "r"(high1), "r"(x0), "r"(x1));
  }
}

// The sums of 16 rows with one x, whose column is the first of the instruction's eight: lanes of
// other columns have zeros. A warp takes the pieces first, first + step, ... of the rows, and asks
// for kAhead of them in front of the one that it multiplies.
template <bool kFp8, int kAhead>
class RowSums {
 public:
  // The lane's rows: `low` is row g of the first eight, `high` of the others.
  __device__ RowSums(const char* low, const char* high, int64_t row_bytes, int first, int step)
      : row_bytes_(row_bytes),
        stride_(int64_t{step} * kPiece),
        low_(low),
        high_(high),
        at_(int64_t{first} * kPiece + 16 * (threadIdx.x % 4)) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) ask(u, at_ + u * stride_);
  }

  // x: the bytes of the row.
  __device__ void run(const char* x) {
    const int64_t lane_at = 16 * (threadIdx.x % 4);
    for (; at_ - lane_at < row_bytes_; at_ += kAhead * stride_) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int64_t at = at_ + u * stride_;
        const bool has_it = threadIdx.x % 32 < 4 && at < row_bytes_;
        const uint4 v = has_it ? *reinterpret_cast<const uint4*>(x + at) : make_uint4(0, 0, 0, 0);
        mma<kFp8>(c_, low_pieces_[u].x, high_pieces_[u].x, low_pieces_[u].y, high_pieces_[u].y, v.x,
                  v.y);
        mma<kFp8>(c_, low_pieces_[u].z, high_pieces_[u].z, low_pieces_[u].w, high_pieces_[u].w, v.z,
                  v.w);
        ask(u, at + kAhead * stride_);
      }
    }
  }

  // Of the lanes that are the first of a group of four; the others have sums of zeros.
  __device__ float low() const {
    return c_[0];
  }
  __device__ float high() const {
    return c_[2];
  }

 private:
  __device__ __forceinline__ void ask(int u, int64_t at) {
    const bool inside = at < row_bytes_;
    low_pieces_[u] = inside ? load_weight(low_ + at) : make_uint4(0, 0, 0, 0);
    high_pieces_[u] = inside ? load_weight(high_ + at) : make_uint4(0, 0, 0, 0);
  }

  const int64_t row_bytes_;
  const int64_t stride_;
  const char* const low_;
  const char* const high_;
  int64_t at_;
  uint4 low_pieces_[kAhead];
  uint4 high_pieces_[kAhead];
  float c_[4] = {};
};

__device__ float bias_of(const OneTokenWeight& weight, int64_t row) {
  return weight.bias == nullptr ? 0.0f
                                : __bfloat162float(static_cast<const Bf16*>(weight.bias)[row]);
}

// Grid: tiles of eight columns of y by the chosen experts. Every block chooses alike, and writes
// the same choice.
template <bool kFp8, int kEach>
__global__ void __launch_bounds__(kOpenWarps * 32, 6)
    open_kernel(const __grid_constant__ OpenExpertsParams p) {
  extern __shared__ float of_router[];
  __shared__ float sums[kOpenWarps][kRows];
  __shared__ int32_t chosen;
  dependency_wait();
  dependency_trigger();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto slot = static_cast<int>(blockIdx.y);
  if (p.route.logits == nullptr) {
    if (threadIdx.x == 0) chosen = p.route.chosen[slot];
  } else if (warp == 0) {
    const auto* const logits = static_cast<const Bf16*>(p.route.logits);
    const int32_t expert =
        Router<kEach>(p.route, of_router, of_router + p.route.experts).run(0, [&](int e) {
          return __bfloat162float(logits[e]);
        });
    if (lane == slot) chosen = expert;
    if (blockIdx.x == 0 && slot == 0 && lane == 0) count_hits(p.route, p.route.k);
  }
  __syncthreads();
  const int64_t width = p.product.out / 2;
  const int64_t column = int64_t{blockIdx.x} * (kRows / 2);
  const int64_t row_bytes = p.product.in * (kFp8 ? 1 : 2);
  const int64_t gate = int64_t{chosen} * p.product.out + column;  // its first row, and that of up
  const auto* const rows =
      static_cast<const char*>(p.product.weight) + (gate + lane / 4) * row_bytes;
  RowSums<kFp8, 4> own(rows, rows + width * row_bytes, row_bytes, warp, kOpenWarps);
  own.run(static_cast<const char*>(p.x));
  if (lane % 4 == 0) {
    sums[warp][lane / 4] = own.low();
    sums[warp][lane / 4 + kRows / 2] = own.high();
  }
  __syncthreads();
  if (threadIdx.x >= kRows / 2) return;
  const auto r = static_cast<int>(threadIdx.x);
  float of_gate = 0;
  float of_up = 0;
#pragma unroll
  for (int w = 0; w < kOpenWarps; ++w) {
    of_gate += sums[w][r];
    of_up += sums[w][r + kRows / 2];
  }
  const int64_t row = gate + r;
  if constexpr (kFp8) {
    of_gate *= p.x_scale[0] * p.product.w_scale[row];
    of_up *= p.x_scale[0] * p.product.w_scale[row + width];
  }
  of_gate += bias_of(p.product, row);
  of_up += bias_of(p.product, row + width);
  static_cast<Bf16*>(p.y)[slot * width + column + r] =
      __float2bfloat16_rn(gated(of_gate, of_up, p.activation));
}

// A row of bf16 in shared memory as e4m3, by a warp; its scale.
__device__ float quantise_row(const Bf16* row, int64_t width, char* to) {
  float most = 0;
  for (int64_t i = (threadIdx.x % 32) * kRun; i < width; i += 32 * kRun) {
    const Floats x = unpack(load_run<true>(row + i, kRun));
#pragma unroll
    for (const float value : x.v) most = fmaxf(most, fabsf(value));
  }
  const Fp8RowScale scale(warp_max(most));
  for (int64_t i = (threadIdx.x % 32) * kRun; i < width; i += 32 * kRun) {
    const Floats x = unpack(load_run<true>(row + i, kRun));
    store_run_fp8<true>(reinterpret_cast<uint8_t*>(to) + i, kRun, scale.stored(x));
  }
  __syncwarp();
  return scale.value();
}

// Grid: tiles of 16 outputs.
template <bool kFp8>
__global__ void __launch_bounds__(kCloseWarps * 32)
    close_kernel(const __grid_constant__ CloseExpertsParams p) {
  extern __shared__ __align__(16) char quantised[];  // of e4m3: a row a warp
  __shared__ float made[kMostChosen][kRows];
  dependency_wait();
  dependency_trigger();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = int64_t{blockIdx.x} * kRows;
  const int64_t row_bytes = p.product.in * (kFp8 ? 1 : 2);
  for (int slot = warp; slot < p.k; slot += kCloseWarps) {
    const int64_t top = int64_t{p.chosen[slot]} * p.product.out + first;
    const auto* const rows =
        static_cast<const char*>(p.product.weight) + (top + lane / 4) * row_bytes;
    RowSums<kFp8, 6> own(rows, rows + (kRows / 2) * row_bytes, row_bytes, 0, 1);
    const auto* const x = static_cast<const Bf16*>(p.x) + slot * p.product.in;
    float scale = 1;
    if constexpr (kFp8) {
      char* const to = quantised + warp * p.product.in;
      scale = quantise_row(x, p.product.in, to);
      own.run(to);
      __syncwarp();  // the next slot's row takes its place
    } else {
      own.run(reinterpret_cast<const char*>(x));
    }
    if (lane % 4 != 0) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = lane / 4 + half * (kRows / 2);
      float sum = half == 0 ? own.low() : own.high();
      if constexpr (kFp8) sum *= scale * p.product.w_scale[top + r];
      sum += bias_of(p.product, top + r);
      made[slot][r] = __bfloat162float(__float2bfloat16_rn(sum));
    }
  }
  __syncthreads();
  if (threadIdx.x >= kRows) return;
  const auto r = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int slot = 0; slot < p.k; ++slot) sum = fmaf(p.weights[slot], made[slot][r], sum);
  if (p.shared != nullptr) {
    const float share = p.shared_gate == nullptr
                            ? 1.0f
                            : sigmoid(__bfloat162float(*static_cast<const Bf16*>(p.shared_gate)));
    sum = fmaf(share, __bfloat162float(static_cast<const Bf16*>(p.shared)[first + r]), sum);
  }
  static_cast<Bf16*>(p.y)[first + r] = __float2bfloat16_rn(sum);
}

template <bool kFp8>
cudaError_t launch_open(const OpenExpertsParams& p, cudaStream_t stream) {
  const auto kernel = p.route.experts <= 128   ? open_kernel<kFp8, 4>
                      : p.route.experts <= 256 ? open_kernel<kFp8, 8>
                                               : open_kernel<kFp8, kMostExperts / 32>;
  const dim3 grid(static_cast<unsigned>(p.product.out / kRows), static_cast<unsigned>(p.route.k));
  const size_t bytes =
      p.route.logits == nullptr ? 0 : sizeof(float) * 2 * static_cast<size_t>(p.route.experts);
  return launch_pdl(kernel, grid, dim3(kOpenWarps * 32), bytes, stream, p);
}

}  // namespace

cudaError_t launch_open_experts(const OpenExpertsParams& p, cudaStream_t stream) {
  if (p.route.tokens != 1 || !is_routable(p.route)) return cudaErrorInvalidValue;
  return p.product.is_fp8() ? launch_open<true>(p, stream) : launch_open<false>(p, stream);
}

cudaError_t launch_close_experts(const CloseExpertsParams& p, cudaStream_t stream) {
  if (p.k < 1 || p.k > kMostChosen) return cudaErrorInvalidValue;
  const bool is_fp8 = p.product.is_fp8();
  const size_t bytes = is_fp8 ? static_cast<size_t>(kCloseWarps * p.product.in) : 0;
  return launch_pdl(is_fp8 ? close_kernel<true> : close_kernel<false>,
                    dim3(static_cast<unsigned>(p.product.out / kRows)), dim3(kCloseWarps * 32),
                    bytes, stream, p);
}

}  // namespace rudder::cuda
