#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/states/state_part.cuh"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) keep_rows_kernel(const KeepRowsParams p) {
  dependency_wait();
  dependency_trigger();
  const auto seq = static_cast<int>(blockIdx.y);
  const StateParams& state = p.state;
  const int begin = state.q_begin[seq];
  const int count = state.q_begin[seq + 1] - begin;
  const int32_t index = state.state[seq];
  if (index < 0 || count <= 0) return;
  const bool has_drafts = state.num_draft[seq] > 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *reinterpret_cast<int32_t*>(state.pool + index * state.pool_stride) =
        state.positions[begin] + (has_drafts ? 0 : count);
  }
  if (!has_drafts) return;
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  int of_run = column;
  for (const KeptRun& run : p.runs) {
    if (of_run < run.count) {
      const Bf16* const from =
          static_cast<const Bf16*>(run.rows) + int64_t{begin} * run.stride + of_run;
      float* const to = state.kept + state.table_row[seq] * state.slot_stride + column;
      for (int t = 0; t < min(count, state.kept_rows); ++t) {
        to[t * state.row_stride] = __bfloat162float(from[t * run.stride]);
      }
      return;
    }
    of_run -= run.count;
  }
}

}  // namespace

cudaError_t launch_keep_rows(const KeepRowsParams& p, cudaStream_t stream) {
  if (p.state.seqs == 0 || p.state.tokens == 0) return cudaSuccess;
  int32_t width = 0;
  for (const KeptRun& run : p.runs) width += run.count;
  const dim3 grid(static_cast<unsigned>((width + kThreads - 1) / kThreads),
                  static_cast<unsigned>(p.state.seqs));
  return launch_pdl(keep_rows_kernel, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace rudder::cuda
