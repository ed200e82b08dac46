#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/states/state_part.cuh"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

// Threads that have a run of a row, at least kRun elements each as long as they are no whole block.
int team_of(int64_t run) {
  if (run > int64_t{4} * kWarp * kRun) return kThreads;
  int team = 1;
  while (team < kWarp && team * kRun < run) team *= 2;
  return team;
}

__device__ float gate_factor(ops::GateFunction function, float gate) {
  if (function == ops::GateFunction::kItself) return gate;
  return function == ops::GateFunction::kSilu ? __fmul_rn(gate, sigmoid(gate)) : sigmoid(gate);
}

// `run` columns of a row.
template <bool kAligned>
struct RowRun {
  const Bf16* x;
  const Bf16* gate;
  int left;  // behind the run's begin

  __device__ Floats in(const GateRowsParams& p, int i) const {
    Floats value = unpack(load_run<kAligned>(x + i, left - i));
    return p.gates_first ? gated(p, value, i) : value;
  }
  __device__ Floats gated(const GateRowsParams& p, Floats value, int i) const {
    const Floats by = unpack(load_run<kAligned>(gate + i, left - i));
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      value.v[j] = __fmul_rn(value.v[j], gate_factor(p.function, by.v[j]));
    }
    return value;
  }
};

template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    gate_rows_kernel(const GateRowsParams p, const int team) {
  __shared__ float scratch[kWarp];
  dependency_wait();
  dependency_trigger();
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t runs = (p.width + p.run - 1) / p.run;
  const int64_t item = int64_t{blockIdx.x} * (kThreads / team) + thread / team;
  const int64_t row = item / runs;
  const int64_t begin = item % runs * p.run;
  RowRun<kAligned> run = {};
  if (row < p.rows) {
    run.x = static_cast<const Bf16*>(p.x) + row * p.x_stride + begin;
    run.gate = static_cast<const Bf16*>(p.gate) + row * p.gate_stride + begin;
    run.left = static_cast<int>(min(p.run, p.width - begin));
  }
  const int lane = thread % team;
  float factor = 1.0f;
  if (p.norm != nullptr) {
    float squares = 0.0f;
    for (int i = lane * kRun; i < run.left; i += team * kRun) {
      const Floats x = run.in(p, i);
#pragma unroll
      for (const float v : x.v) squares = fmaf(v, v, squares);
    }
    if (team > kWarp) {
      squares = block_sum(squares, scratch);
    } else {
      for (int step = team / 2; step > 0; step /= 2) {
        squares += __shfl_xor_sync(0xffffffffu, squares, step);
      }
    }
    factor = 1.0f / sqrtf(squares / static_cast<float>(p.run) + p.eps);
  }
  Bf16* const out = static_cast<Bf16*>(p.out) + row * p.width + begin;
  const float* const weight = p.norm == nullptr ? nullptr : p.norm + (p.norm_is_whole ? begin : 0);
  for (int i = lane * kRun; i < run.left; i += team * kRun) {
    Floats value = run.in(p, i);
    if (p.norm != nullptr) {
      const Floats by = load_floats<kAligned>(weight + i, run.left - i);
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        value.v[j] = __fmul_rn(__fmul_rn(value.v[j], factor), by.v[j]);
      }
    }
    if (!p.gates_first) value = run.gated(p, value, i);
    store_run<kAligned>(out + i, run.left - i, pack(value));
  }
}

}  // namespace

cudaError_t launch_gate_rows(const GateRowsParams& params, cudaStream_t stream) {
  if (params.rows == 0 || params.width == 0) return cudaSuccess;
  GateRowsParams p = params;
  if (p.norm == nullptr) {  // any runs do
    p.run = kWarp * kRun;
    p.gates_first = false;
  }
  const bool aligned = p.width % kRun == 0 && p.run % kRun == 0 && p.x_stride % kRun == 0 &&
                       p.gate_stride % kRun == 0 && is_aligned(p.x) && is_aligned(p.gate) &&
                       is_aligned(p.norm) && is_aligned(p.out);
  const int team = team_of(p.run);
  const int64_t items = p.rows * ((p.width + p.run - 1) / p.run);
  const int64_t of_block = kThreads / team;
  const dim3 grid(static_cast<unsigned>((items + of_block - 1) / of_block));
  const auto kernel = aligned ? gate_rows_kernel<true> : gate_rows_kernel<false>;
  return launch_pdl(kernel, grid, dim3(kThreads), 0, stream, p, team);
}

}  // namespace rudder::cuda
