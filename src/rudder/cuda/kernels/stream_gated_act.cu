// gated_act into fp8 of many rows (rows.h, row_stream.cuh): a block has a whole row. The scales of
// columns come from the multiprocessor's cache for each row.
#include "rudder/cuda/kernels/gated_act.cuh"
#include "rudder/cuda/kernels/row_stream.cuh"
#include "rudder/cuda/kernels/stream_rows.h"

namespace rudder::cuda {
namespace {

enum class Numbers { kPlain, kRounded, kScaled };

// kWhole: every thread has all of its runs.
template <Numbers kNumbers, bool kWhole, int kStreamRuns = 4>
__global__ void __launch_bounds__(kStreamRuns == 2 ? 768 : kMaxStreamThreads, kStreamRuns == 2 ? 2 : 1)
    stream_gated_act_kernel(const __grid_constant__ GatedActParams p) {
  constexpr bool kScaled = kNumbers == Numbers::kScaled;
  extern __shared__ uint4 cells_shared[];
  __shared__ StreamBlock::Shared block_shared;
  StreamBlock block(block_shared);
  const StreamCells<2 * kStreamRuns> cells(cells_shared);
  const int width = static_cast<int>(p.width);
  const int first = stream_column<kStreamRuns>();
  const auto left = [&](int r) { return kWhole ? kRun : width - first - r * kStreamStride; };
  const auto gates_of = [&](int64_t row) {
    return static_cast<const Bf16*>(p.x) + row * 2 * width + first;
  };
  const auto ask = [&](const Bf16* gate, const Bf16* up, int r) {
    cells.ask(2 * r, gate + r * kStreamStride, left(r) > 0);
    cells.ask(2 * r + 1, up + r * kStreamStride, left(r) > 0);
  };
  const float* const gate_scales = p.x_scales.column + first;
  const float* const up_scales = gate_scales + width;
  if (p.lets_next_begin) dependency_trigger();
  dependency_wait();
  dependency_trigger();
#pragma unroll
  for (int r = 0; r < kStreamRuns; ++r) ask(gates_of(blockIdx.x), gates_of(blockIdx.x) + width, r);
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
    Floats y[kStreamRuns];
    float highest = 0.0f;
#pragma unroll
    for (int r = 0; r < kStreamRuns; ++r) {
      const GatedRun run = {cells.take(2 * r), cells.take(2 * r + 1), row_scale};
      if (next < p.rows) ask(next_gate, next_up, r);
      GatedScales scales = {};
      if constexpr (kScaled) {
        scales.gate = load_floats<true>(gate_scales + r * kStreamStride, left(r));
        scales.up = load_floats<true>(up_scales + r * kStreamStride, left(r));
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
    for (int r = 0; r < kStreamRuns; ++r) {
      store_run_fp8<true>(out + r * kStreamStride, left(r), scale.stored(y[r]));
    }
  }
}

template <bool kWhole>
auto stream_kernel(const GatedActParams& p) {
  if (p.x_scales.row != nullptr) return stream_gated_act_kernel<Numbers::kScaled, kWhole>;
  return p.rounds ? stream_gated_act_kernel<Numbers::kRounded, kWhole>
                  : stream_gated_act_kernel<Numbers::kPlain, kWhole>;
}

}  // namespace

bool streams(const GatedActParams& p, bool is_aligned) {
  return is_aligned && p.rows >= kStreamedRows && p.out_scale != nullptr &&
         p.width <= kMaxQuantisedWidth && (p.x_scales.row == nullptr || takes_scales(p));
}

cudaError_t launch_streamed_gated_act(const GatedActParams& p, cudaStream_t stream) {
  static const bool two = std::getenv("ROWS_GATED") != nullptr;
  if (two && p.width % 512 == 0 && p.width <= 12288) {
    const unsigned threads = static_cast<unsigned>(p.width / 512 * 32);
    const size_t bytes = StreamCells<4>::bytes(threads);
    return launch_stream(p.x_scales.row != nullptr ? stream_gated_act_kernel<Numbers::kScaled, true, 2> : stream_gated_act_kernel<Numbers::kPlain, true, 2>, p, stream_grid(p.rows, 1, threads, 1536, bytes), threads, bytes, stream);
  }
  const unsigned threads = stream_threads(p.width);
  const auto kernel = is_whole_stream(p.width) ? stream_kernel<true>(p) : stream_kernel<false>(p);
  return launch_stream(kernel, p, p.rows, threads, StreamCells<2 * kStreamRuns>::bytes(threads),
                       stream);
}

}  // namespace rudder::cuda
