// gated_act into fp8 of many rows (rows.h, rows_ahead.cuh): a block has a whole row. The scales of
// columns come from the multiprocessor's cache for each row.
#include "rudder/cuda/kernels/rows/gated_act.cuh"
#include "rudder/cuda/kernels/rows/rows_ahead.cuh"
#include "rudder/cuda/kernels/rows/rows_ahead.h"

namespace rudder::cuda {
namespace {

enum class Numbers { kPlain, kRounded, kScaled };

// kWhole: every thread has all of its runs.
template <Numbers kNumbers, bool kWhole>
__global__ void __launch_bounds__(kMaxAheadThreads)
    gated_act_ahead_kernel(const __grid_constant__ GatedActParams p) {
  constexpr bool kScaled = kNumbers == Numbers::kScaled;
  extern __shared__ uint4 cells_shared[];
  __shared__ AheadBlock::Shared block_shared;
  AheadBlock block(block_shared);
  const AheadCells<2 * kAheadRuns> cells(cells_shared);
  const int width = static_cast<int>(p.width);
  const int first = ahead_column();
  const auto left = [&](int r) { return kWhole ? kRun : width - first - r * kAheadStride; };
  const auto gates_of = [&](int64_t row) {
    return static_cast<const Bf16*>(p.x) + row * 2 * width + first;
  };
  const auto ask = [&](const Bf16* gate, const Bf16* up, int r) {
    cells.ask(2 * r, gate + r * kAheadStride, left(r) > 0);
    cells.ask(2 * r + 1, up + r * kAheadStride, left(r) > 0);
  };
  const float* const gate_scales = p.x_scales.column + first;
  const float* const up_scales = gate_scales + width;
  if (p.lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
#pragma unroll
  for (int r = 0; r < kAheadRuns; ++r) ask(gates_of(blockIdx.x), gates_of(blockIdx.x) + width, r);
  if constexpr (kScaled) cells.ask_number(p.x_scales.row + blockIdx.x);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t next = row + gridDim.x;
    const Bf16* const next_gate = gates_of(next);
    const Bf16* const next_up = next_gate + width;
    cells.wait();
    float row_scale = 1.0f;
    if constexpr (kScaled) {
      row_scale = cells.take_number();
      if (next < p.rows) cells.ask_number(p.x_scales.row + next);
    }
    Floats y[kAheadRuns];
    float highest = 0.0f;
#pragma unroll
    for (int r = 0; r < kAheadRuns; ++r) {
      const GatedRun run = {cells.take(2 * r), cells.take(2 * r + 1), row_scale};
      if (next < p.rows) ask(next_gate, next_up, r);
      GatedScales scales = {};
      if constexpr (kScaled) {
        scales.gate = load_floats<true>(gate_scales + r * kAheadStride, left(r));
        scales.up = load_floats<true>(up_scales + r * kAheadStride, left(r));
      }
      y[r] = gated<kScaled>(run, scales, p.activation);
      if (kNumbers == Numbers::kRounded) y[r] = rounded(y[r]);
#pragma unroll
      for (const float v : y[r].v) highest = fmaxf(highest, fabsf(v));  // a NaN is passed over
    }
    const Fp8RowScale scale(block.max(highest));
    if (threadIdx.x == 0) p.out_scale[row] = scale.value();
    uint8_t* const out = static_cast<uint8_t*>(p.out) + row * width + first;
#pragma unroll
    for (int r = 0; r < kAheadRuns; ++r) {
      store_run_fp8<true>(out + r * kAheadStride, left(r), scale.stored(y[r]));
    }
  }
}

template <bool kWhole>
auto kernel_of(const GatedActParams& p) {
  if (p.x_scales.row != nullptr) return gated_act_ahead_kernel<Numbers::kScaled, kWhole>;
  return p.rounds ? gated_act_ahead_kernel<Numbers::kRounded, kWhole>
                  : gated_act_ahead_kernel<Numbers::kPlain, kWhole>;
}

}  // namespace

bool goes_ahead(const GatedActParams& p) {
  constexpr int64_t kLeast = int64_t{3} << 19;  // numbers of the result
  return p.out_scale != nullptr && p.rows * p.width >= kLeast && p.width % kRun == 0 &&
         p.width <= kMaxQuantisedWidth && is_aligned(p.x) && is_aligned(p.out) &&
         is_aligned(p.x_scales.column) && (p.x_scales.row == nullptr || takes_scales(p));
}

cudaError_t launch_gated_act_ahead(const GatedActParams& p, cudaStream_t stream) {
  const unsigned threads = ahead_threads(p.width);
  const size_t bytes = AheadCells<2 * kAheadRuns>::bytes(threads);
  return launch_ahead(is_whole_ahead(p.width) ? kernel_of<true>(p) : kernel_of<false>(p), p,
                      ahead_grid(p.rows, 1, threads, kMaxAheadThreads, bytes), threads, bytes,
                      p.lets_next_begin, stream);
}

}  // namespace rudder::cuda
