#include "rudder/cuda/kernels/experts/one_token.h"

#include <type_traits>

#include "rudder/cuda/kernels/experts/few_pairs_forms.cuh"
#include "rudder/cuda/kernels/experts/gate_experts.cuh"
#include "rudder/cuda/kernels/experts/route.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/prefetch.cuh"

namespace rudder::cuda {
namespace {

constexpr int kRows = 16;       // of W, an instruction's
constexpr int kPiece = 64;      // bytes of a row that the four lanes of a group bring at a time
constexpr int kOpenWarps = 4;   // which share the inputs of a block's rows
constexpr int kCloseWarps = 8;  // which share the experts, or an expert's inputs
constexpr int kOpenAhead = 4;   // pieces that a lane asks for before it multiplies
constexpr int kCloseAhead = 8;

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
// for kAhead of them in front of the one that it multiplies. Of W in bf16 or e4m3.
template <bool kFp8, int kAhead>
class WideSums {
 public:
  __device__ WideSums(const OneTokenWeight& weight, const FewRows& rows, int first, int step)
      : row_bytes_(weight.in * (kFp8 ? 1 : 2)),
        stride_(int64_t{step} * kPiece),
        at_(int64_t{first} * kPiece + 16 * (threadIdx.x % 4)) {
    const int64_t top = rows.expert * weight.out + threadIdx.x % 32 / 4;
    low_ = static_cast<const char*>(weight.weight) + (top + rows.first) * row_bytes_;
    high_ = static_cast<const char*>(weight.weight) + (top + rows.second) * row_bytes_;
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

  // Of the lanes that are the first of a group of four, rows g and g + 8; the others have zeros.
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
  const char* low_;
  const char* high_;
  int64_t at_;
  uint4 low_pieces_[kAhead];
  uint4 high_pieces_[kAhead];
  float c_[4] = {};
};

// The same of W in codes, whose pieces are chunks.
template <int kAhead>
class CodeSums {
 public:
  __device__ CodeSums(const OneTokenWeight& weight, const FewRows& rows, int first, int step)
      : weight_(weight),
        rows_(rows),
        chunks_(static_cast<int32_t>(code_chunks(weight.in))),
        step_(step),
        at_(first) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) ask(u, at_ + u * step_);
  }

  __device__ void run(const char* x) {
    for (; at_ < chunks_; at_ += kAhead * step_) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int32_t chunk = at_ + u * step_;
        if (chunk < chunks_) multiply(u, x, chunk);
        ask(u, chunk + kAhead * step_);
      }
    }
  }

  __device__ float low() const {
    return c_[0];
  }
  __device__ float high() const {
    return c_[2];
  }

 private:
  __device__ __forceinline__ void ask(int u, int32_t chunk) {
    if (chunk < chunks_) FewCodes::load(weight_, rows_, chunk, threadIdx.x % 32, parts_[u]);
  }
  // Lane t of the first four has group t of the chunk's inputs.
  __device__ __forceinline__ void multiply(int u, const char* x, int32_t chunk) {
    const int64_t at = int64_t{chunk} * FewCodes::kRowBytes + 2 * kCodeGroup * (threadIdx.x % 4);
    const bool has_it = threadIdx.x % 32 < 4 && at < 2 * weight_.in;
#pragma unroll
    for (int i = 0; i < FewCodes::kSteps; ++i) {
      const uint4 v =
          has_it ? *reinterpret_cast<const uint4*>(x + at + 16 * i) : make_uint4(0, 0, 0, 0);
      uint32_t w[2][4];
      FewCodes::operands(parts_[u], i, w);
      FewCodes::multiply(c_, w[0], v.x, v.y);
      FewCodes::multiply(c_, w[1], v.z, v.w);
    }
  }

  const OneTokenWeight& weight_;
  const FewRows rows_;
  const int32_t chunks_;
  const int32_t step_;
  int32_t at_;
  FewCodes::Part parts_[kAhead];
  float c_[4] = {};
};

template <ExpertForm kForm, int kAhead>
using TokenSums = std::conditional_t<kForm == ExpertForm::kE2m1, CodeSums<kAhead>,
                                     WideSums<kForm == ExpertForm::kE4m3, kAhead>>;

__device__ float bias_of(const OneTokenWeight& weight, int64_t row) {
  return weight.bias == nullptr ? 0.0f
                                : __bfloat162float(static_cast<const Bf16*>(weight.bias)[row]);
}

// By what a row's sum is multiplied, beside what x is.
template <ExpertForm kForm>
__device__ float scale_of(const OneTokenWeight& weight, int64_t row) {
  if constexpr (kForm == ExpertForm::kE4m3) return weight.w_scale[row];
  return kForm == ExpertForm::kE2m1 ? kCodeUnit : 1.0f;
}

// Grid: tiles of eight columns of y by the chosen experts. Every block chooses alike, and writes
// the same choice.
template <ExpertForm kForm, int kEach>
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
  const auto width = static_cast<int32_t>(p.product.out / 2);
  const auto column = static_cast<int32_t>(blockIdx.x) * (kRows / 2);
  const FewRows rows = {chosen, static_cast<int32_t>(blockIdx.x), column, width + column};
  TokenSums<kForm, kOpenAhead> own(p.product, rows, warp, kOpenWarps);
  if (threadIdx.x == 0 && p.next != nullptr) {
    prefetch_part(static_cast<const char*>(p.next) + chosen * p.next_expert_bytes,
                  p.next_expert_bytes, blockIdx.x, gridDim.x);
  }
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
  const int64_t row = chosen * p.product.out + column + r;
  const float x_scale = kForm == ExpertForm::kE4m3 ? p.x_scale[0] : 1.0f;
  of_gate *= x_scale * scale_of<kForm>(p.product, row);
  of_up *= x_scale * scale_of<kForm>(p.product, row + width);
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

// What the experts of a token make of a tile of outputs.
struct Tile {
  float sums[kMostChosen][kRows];  // of a warp's unit: an expert's, or a part of its inputs'
  float scales[kMostChosen][kRows];
  float biases[kMostChosen][kRows];
  float x_scales[kMostChosen];
  float weights[kMostChosen];
};
static_assert(kMostChosen >= kCloseWarps);

// Grid: tiles of 16 outputs.
template <ExpertForm kForm>
__global__ void __launch_bounds__(kCloseWarps * 32, 2)
    close_kernel(const __grid_constant__ CloseExpertsParams p) {
  extern __shared__ __align__(16) char quantised[];  // of e4m3: a row a warp
  __shared__ Tile tile;
  dependency_wait();
  dependency_trigger();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto first = static_cast<int32_t>(blockIdx.x) * kRows;
  const int parts = max(1, kCloseWarps / p.k);  // of an expert's inputs
  float shared = 0;
  float shared_gate = INFINITY;
  if (p.shared != nullptr && threadIdx.x < kRows) {
    shared = __bfloat162float(static_cast<const Bf16*>(p.shared)[first + threadIdx.x]);
    if (p.shared_gate != nullptr) {
      shared_gate = __bfloat162float(*static_cast<const Bf16*>(p.shared_gate));
    }
  }
  for (int unit = warp; unit < p.k * parts; unit += kCloseWarps) {
    const int slot = unit / parts;
    const int part = unit - slot * parts;
    const int32_t expert = p.chosen[slot];
    const FewRows rows = {expert, static_cast<int32_t>(blockIdx.x), first, first + kRows / 2};
    TokenSums<kForm, kCloseAhead> own(p.product, rows, part, parts);
    if (part == 0 && lane < kRows) {
      const int64_t row = expert * p.product.out + first + lane;
      tile.scales[slot][lane] = scale_of<kForm>(p.product, row);
      tile.biases[slot][lane] = bias_of(p.product, row);
      if (lane == 0) tile.weights[slot] = p.weights[slot];
    }
    const auto* const x = static_cast<const Bf16*>(p.x) + slot * p.product.in;
    if constexpr (kForm == ExpertForm::kE4m3) {
      char* const to = quantised + warp * p.product.in;
      const float scale = quantise_row(x, p.product.in, to);
      if (part == 0 && lane == 0) tile.x_scales[slot] = scale;
      own.run(to);
      __syncwarp();  // the next unit's row takes its place
    } else {
      own.run(reinterpret_cast<const char*>(x));
    }
    if (lane % 4 != 0) continue;
    tile.sums[unit][lane / 4] = own.low();
    tile.sums[unit][lane / 4 + kRows / 2] = own.high();
  }
  __syncthreads();
  if (threadIdx.x >= kRows) return;
  const auto r = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int slot = 0; slot < p.k; ++slot) {
    float made = 0;
    for (int part = 0; part < parts; ++part) made += tile.sums[slot * parts + part][r];
    const float x_scale = kForm == ExpertForm::kE4m3 ? tile.x_scales[slot] : 1.0f;
    made = made * (x_scale * tile.scales[slot][r]) + tile.biases[slot][r];
    sum = fmaf(tile.weights[slot], __bfloat162float(__float2bfloat16_rn(made)), sum);
  }
  if (p.shared != nullptr) sum = fmaf(sigmoid(shared_gate), shared, sum);
  static_cast<Bf16*>(p.y)[first + r] = __float2bfloat16_rn(sum);
}

template <ExpertForm kForm>
cudaError_t launch_open(const OpenExpertsParams& p, cudaStream_t stream) {
  const auto kernel = p.route.experts <= 128   ? open_kernel<kForm, 4>
                      : p.route.experts <= 256 ? open_kernel<kForm, 8>
                                               : open_kernel<kForm, kMostExperts / 32>;
  const dim3 grid(static_cast<unsigned>(p.product.out / kRows), static_cast<unsigned>(p.route.k));
  const size_t bytes =
      p.route.logits == nullptr ? 0 : sizeof(float) * 2 * static_cast<size_t>(p.route.experts);
  return launch_pdl(kernel, grid, dim3(kOpenWarps * 32), bytes, stream, p);
}

template <ExpertForm kForm>
cudaError_t launch_close(const CloseExpertsParams& p, cudaStream_t stream) {
  const size_t bytes =
      kForm == ExpertForm::kE4m3 ? static_cast<size_t>(kCloseWarps * p.product.in) : 0;
  return launch_pdl(close_kernel<kForm>, dim3(static_cast<unsigned>(p.product.out / kRows)),
                    dim3(kCloseWarps * 32), bytes, stream, p);
}

}  // namespace

cudaError_t launch_open_experts(const OpenExpertsParams& p, cudaStream_t stream) {
  if (p.route.tokens != 1 || !is_routable(p.route)) return cudaErrorInvalidValue;
  switch (p.product.form) {
    case ExpertForm::kBf16:
      return launch_open<ExpertForm::kBf16>(p, stream);
    case ExpertForm::kE4m3:
      return launch_open<ExpertForm::kE4m3>(p, stream);
    case ExpertForm::kE2m1:
      return launch_open<ExpertForm::kE2m1>(p, stream);
    case ExpertForm::kLow:
      break;
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_close_experts(const CloseExpertsParams& p, cudaStream_t stream) {
  if (p.k < 1 || p.k > kMostChosen) return cudaErrorInvalidValue;
  switch (p.product.form) {
    case ExpertForm::kBf16:
      return launch_close<ExpertForm::kBf16>(p, stream);
    case ExpertForm::kE4m3:
      return launch_close<ExpertForm::kE4m3>(p, stream);
    case ExpertForm::kE2m1:
      return launch_close<ExpertForm::kE2m1>(p, stream);
    case ExpertForm::kLow:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace rudder::cuda
